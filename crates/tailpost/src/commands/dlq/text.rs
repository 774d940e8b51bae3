//! Dead letters for people. What others wrote is put on one line, without what controls terminals.

use std::fmt::Write;

use operate::dead_letters::{Action, DeadLetterDetail, Filter, GROUPED_MAX, Overview};
use serde::Serialize;
use serde_json::Value;

use crate::commands::explain::add_attempts;
use crate::output::{Lines, bare, duration, if_any, one_line};

/// A reason in a table; `show` has all of it.
const REASON_CHARS: usize = 72;

/// A dead letter of either queue.
pub(in crate::commands) trait Shown {
    /// The queue, and what can be done to its dead letters besides discarding them.
    const QUEUE: &'static str;
    const VERBS: &'static str;

    /// The event, and whose dead letter it is.
    fn name(&self) -> String;
    /// Why the action cannot be done to it, if so.
    fn why_not(&self, action: Action) -> Option<&'static str>;
    /// What it is, in a list.
    fn headline(&self) -> String;
    fn reason(&self) -> &str;
}

pub(in crate::commands) fn list<L: Shown>(overview: &Overview<L>) -> String {
    let mut text = headline(overview);
    groups(&mut text, overview);
    if !overview.dead_letters.is_empty() {
        let shown = overview.dead_letters.len();
        line(&mut text, &format!("\nthe newest {shown}:"));
        overview.dead_letters.iter().for_each(|it| letter(&mut text, it));
        let (queue, then) = (L::QUEUE, L::VERBS);
        let then = format!("\nmore: `tailpost {queue} dlq show ID`; then {then} or `discard`");
        line(&mut text, &then);
    }
    text
}

pub(in crate::commands) fn plan<L: Shown>(
    action: &str,
    filter: &Filter,
    overview: &Overview<L>,
) -> String {
    let mut text = format!("to {action}: {}", headline(overview));
    line(&mut text, &format!("filter: {}", one_line(&filter.to_string())));
    groups(&mut text, overview);
    if !overview.dead_letters.is_empty() {
        let rest = overview.total.saturating_sub(overview.dead_letters.len() as u64);
        overview.dead_letters.iter().for_each(|it| letter(&mut text, it));
        if rest > 0 {
            line(&mut text, &format!("and {rest} more"));
        }
    }
    text
}

fn letter<L: Shown>(text: &mut String, letter: &L) {
    let (headline, reason) = (letter.headline(), short(letter.reason()));
    line(text, &format!("{}\n    {reason}", one_line(&headline)));
}

impl Shown for operate::dead_letters::outbox_letters::DeadLetter {
    const QUEUE: &'static str = "outbox";
    const VERBS: &'static str = "`requeue`";

    fn name(&self) -> String {
        self.id.to_string()
    }

    fn why_not(&self, _: Action) -> Option<&'static str> {
        None
    }

    fn headline(&self) -> String {
        let Self { id, aggregate_type, aggregate_id, event_type, .. } = self;
        let at = self.dead_at.strftime("%Y-%m-%d %H:%M:%S");
        let shard = if_any("  shard ", self.shard);
        format!("{id}  {at}  {aggregate_type}:{aggregate_id}  {event_type}{shard}")
    }

    fn reason(&self) -> &str {
        &self.reason
    }
}

impl Shown for operate::dead_letters::inbox_letters::DeadLetter {
    const QUEUE: &'static str = "inbox";
    const VERBS: &'static str = "`requeue`, `reject`";

    fn name(&self) -> String {
        format!("{} of {}", self.event_id, self.consumer)
    }

    fn why_not(&self, action: Action) -> Option<&'static str> {
        match (self.requeued, self.recorded) {
            (true, _) => Some("is requeued"),
            _ if action.is_final() || self.can_be_requeued() => None,
            (false, false) => Some("has no record in the inbox any more"),
            (false, true) => Some("cannot be handled, whatever changes"),
        }
    }

    fn headline(&self) -> String {
        let Self { event_id, consumer, attempts, .. } = self;
        let at = self.dead_at.strftime("%Y-%m-%d %H:%M:%S");
        let what = match (&self.aggregate_type, &self.aggregate_id, &self.event_type) {
            (Some(kind), Some(id), Some(event_type)) => format!("{kind}:{id}  {event_type}"),
            _ => self.subject.clone(),
        };
        let cause = if self.requeued { "requeued" } else { &self.cause };
        format!("{event_id}  {at}  {what}  {consumer}  {cause}  {attempts} attempts")
    }

    fn reason(&self) -> &str {
        &self.reason
    }
}

fn headline<L>(overview: &Overview<L>) -> String {
    if overview.total == 0 {
        return "no dead letters\n".into();
    }
    let s = if overview.total == 1 { "" } else { "s" };
    let age = overview.oldest_seconds.map(|it| format!("{} old", duration(it)));
    format!("{} dead letter{s}{}\n", overview.total, if_any(", the oldest ", age))
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

/// What became of one event: each field that has a value.
pub(super) fn detail<L: Serialize + Shown>(detail: &DeadLetterDetail<L>) -> anyhow::Result<String> {
    let mut lines = Lines::with_labels(14);
    let id = || detail.id.to_string();
    lines.add("event", detail.dead_letter.as_ref().map_or_else(id, Shown::headline));
    lines.add("state", &detail.state);
    lines.add_fields(&detail.dead_letter)?;
    lines.add_some("published at", detail.published_at.as_ref());
    if let Some(seq) = detail.stream_seq {
        lines.add(
            "stored as",
            format_args!("{} {seq}", detail.stream.as_deref().unwrap_or("sequence")),
        );
    }
    add_attempts(&mut lines, &detail.failed_attempts);
    for entry in &detail.history {
        let why = if_any(": ", entry.why.as_ref());
        let changed = if entry.payload_replaced { ", payload replaced" } else { "" };
        let (at, action, actor) = (entry.at, &entry.action, &entry.actor);
        lines.add("history", format_args!("{at} {action} by {actor}{changed}{why}"));
    }
    for (name, values) in detail.headers.iter().filter_map(Value::as_object).flatten() {
        let values = values.as_array().map_or(std::slice::from_ref(values), Vec::as_slice);
        for value in values {
            lines.add("header", format_args!("{name}: {}", bare(value)));
        }
    }
    let payload = detail.payload_text().map(|it| format!("{:<14} {it}\n", "payload"));
    Ok(lines.text + &payload.unwrap_or_default())
}

/// What became of a requeued event.
pub(super) fn published<L>(detail: &DeadLetterDetail<L>) -> String {
    let place = if_any(" as sequence ", detail.stream_seq);
    let found = detail.history.iter().any(|entry| entry.action == "found");
    let found = if found { ": the stream had it already, nothing was sent" } else { "" };
    format!("{} is published{place}{found}", detail.id)
}

/// The beginning of a reason, on one line.
fn short(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(REASON_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into_owned(),
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a string");
}
