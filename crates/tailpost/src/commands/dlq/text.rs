//! Dead letters for people.

use std::fmt::Write;
use std::time::Duration;

use relay::dead_letters::{DeadLetter, GROUPED_MAX, Overview, Story};
use uuid::Uuid;

use crate::commands::status::duration;

/// A reason in a table; `show` has all of it.
const REASON_CHARS: usize = 72;

pub(super) fn list(overview: &Overview) -> String {
    let mut text = headline(overview);
    groups(&mut text, overview);
    if !overview.dead_letters.is_empty() {
        let shown = overview.dead_letters.len();
        line(&mut text, &format!("\nthe newest {shown}:"));
        for dead in &overview.dead_letters {
            let DeadLetter { id, aggregate_type, aggregate_id, event_type, .. } = dead;
            let at = dead.dead_at.strftime("%Y-%m-%d %H:%M:%S");
            let shard = dead.shard.map(|it| format!("  shard {it}")).unwrap_or_default();
            let aggregate = format!("{aggregate_type}:{aggregate_id}");
            line(&mut text, &format!("{id}  {at}  {aggregate}  {event_type}{shard}"));
            line(&mut text, &format!("    {}", short(&dead.reason)));
        }
        line(&mut text, "\nmore: `tailpost outbox dlq show ID`; then `requeue` or `discard`");
    }
    text
}

pub(super) fn plan(overview: &Overview, verb: &str) -> String {
    let mut text = format!("to {verb}: {}", headline(overview));
    groups(&mut text, overview);
    text
}

fn headline(overview: &Overview) -> String {
    let s = if overview.total == 1 { "" } else { "s" };
    let age = overview.oldest_seconds.map(|it| Duration::try_from_secs_f64(it).unwrap_or_default());
    let age = age.map(|it| format!(", the oldest {} old", duration(it))).unwrap_or_default();
    format!("{} dead letter{s}{age}\n", overview.total)
}

fn groups(text: &mut String, overview: &Overview) {
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
        line(&mut text, &format!("{label:<12} {value}"));
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
        add("payload", payload);
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

fn short(text: &str) -> String {
    let line: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    match line.char_indices().nth(REASON_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a string");
}
