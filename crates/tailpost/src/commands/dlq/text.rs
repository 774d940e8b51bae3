//! Dead letters for people. What others wrote is put on one line, without what controls terminals.

use std::fmt::Write;
use std::time::Duration;

use outbox::dead_letters::{Filter, GROUPED_MAX, Overview};
use relay::dead_letters::{DeadLetter, Story};
use uuid::Uuid;

use crate::commands::status::duration;
use crate::output::one_line;

/// A reason in a table; `show` has all of it.
const REASON_CHARS: usize = 72;

/// `queue` is `outbox` or `inbox`; `letter` shows one, with its reason.
pub(in crate::commands) fn list<L>(
    queue: &str,
    overview: &Overview<L>,
    letter: impl Fn(&L) -> String,
) -> String {
    let mut text = headline(overview);
    groups(&mut text, overview);
    if !overview.dead_letters.is_empty() {
        let shown = overview.dead_letters.len();
        line(&mut text, &format!("\nthe newest {shown}:"));
        overview.dead_letters.iter().for_each(|it| text += &letter(it));
        let then = if queue == "inbox" { "`requeue`, `reject`" } else { "`requeue`" };
        line(
            &mut text,
            &format!("\nmore: `tailpost {queue} dlq show ID`; then {then} or `discard`"),
        );
    }
    text
}

pub(in crate::commands) fn plan<L>(
    verb: &str,
    filter: &Filter,
    overview: &Overview<L>,
    letter: impl Fn(&L) -> String,
) -> String {
    let mut text = format!("to {verb}: {}", headline(overview));
    line(&mut text, &format!("filter: {}", one_line(&filter.to_string())));
    groups(&mut text, overview);
    if !overview.dead_letters.is_empty() {
        let rest = overview.total.saturating_sub(overview.dead_letters.len() as u64);
        overview.dead_letters.iter().for_each(|it| text += &letter(it));
        if rest > 0 {
            line(&mut text, &format!("and {rest} more"));
        }
    }
    text
}

/// One of the outbox.
pub(super) fn letter(dead: &DeadLetter) -> String {
    let DeadLetter { id, aggregate_type, aggregate_id, event_type, .. } = dead;
    let at = dead.dead_at.strftime("%Y-%m-%d %H:%M:%S");
    let shard = dead.shard.map(|it| format!("  shard {it}")).unwrap_or_default();
    let what = format!("{aggregate_type}:{aggregate_id}  {event_type}");
    format!("{id}  {at}  {}{shard}\n    {}\n", one_line(&what), short(&dead.reason))
}

fn headline<L>(overview: &Overview<L>) -> String {
    if overview.total == 0 {
        return "no dead letters\n".into();
    }
    let s = if overview.total == 1 { "" } else { "s" };
    let age = overview.oldest_seconds.map(|it| Duration::try_from_secs_f64(it).unwrap_or_default());
    let age = age.map(|it| format!(", the oldest {} old", duration(it))).unwrap_or_default();
    format!("{} dead letter{s}{age}\n", overview.total)
}

fn groups<L>(text: &mut String, overview: &Overview<L>) {
    if overview.total > GROUPED_MAX {
        line(text, &format!("the newest {GROUPED_MAX}:"));
    }
    for group in &overview.groups {
        let (s, aggregates) = (if group.aggregates == 1 { "" } else { "s" }, group.aggregates);
        let reason = short(&group.fingerprint);
        line(text, &format!("{:>8}  {reason}  ({aggregates} aggregate{s})", group.count));
    }
}

pub(super) fn story(id: Uuid, story: &Story) -> String {
    let mut text = String::new();
    let mut add = |label: &str, value: &dyn std::fmt::Display| {
        line(&mut text, &format!("{label:<12} {}", one_line(&value.to_string())));
    };
    add("event", &id);
    add("state", &story.state);
    if let Some(dead) = &story.dead_letter {
        add("aggregate", &format_args!("{}:{}", dead.aggregate_type, dead.aggregate_id));
        let version = dead.event_version.unwrap_or(1);
        add("type", &format_args!("{}, version {version}", dead.event_type));
        if let Some(shard) = dead.shard {
            add("shard", &shard);
        }
        if let Some(at) = dead.occurred_at {
            add("occurred", &at);
        }
        add("parked", &dead.dead_at);
        add("reason", &dead.reason);
        add("attempts", &dead.attempts.unwrap_or(0));
        if let Some(by) = dead.blocked_by {
            add("waits for", &by);
        } else if dead.blocks {
            add("blocks", &"later events of its aggregate wait for it");
        }
        if let Some(at) = dead.discarded_at {
            add("discarded", &at);
        }
    }
    if let Some(at) = story.published_at {
        add("published", &at);
    }
    if let Some(seq) = story.stream_seq {
        add("stored as", &format_args!("{} {seq}", story.stream.as_deref().unwrap_or("sequence")));
    }
    for deed in &story.history {
        let why = deed.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let changed = if deed.payload_replaced { ", payload replaced" } else { "" };
        let (at, action, actor) = (deed.at, &deed.action, &deed.actor);
        add("history", &format_args!("{at} {action} by {actor}{changed}{why}"));
    }
    if let Some(headers) = &story.headers {
        add("headers", headers);
    }
    if let Some(payload) = &story.payload {
        line(&mut text, &format!("{:<12} {payload}", "payload"));
    }
    text
}

/// What became of a requeued event.
pub(super) fn published(id: Uuid, story: &Story) -> String {
    let place = story.stream_seq.map(|seq| format!(" as sequence {seq}")).unwrap_or_default();
    let found = story.history.iter().any(|deed| deed.action == "found");
    let found = if found { ": the stream had it already, nothing was sent" } else { "" };
    format!("{id} is published{place}{found}")
}

/// The beginning of a reason, on one line.
pub(in crate::commands) fn short(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(REASON_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into_owned(),
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a string");
}
