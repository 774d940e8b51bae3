//! What became of one event, from its row to its effects.

use std::time::Duration;

use operate::dead_letters::{AuditEntry, FailedAttempt};
use operate::explain::consumer_story::{ConsumerStory, EventRecord};
use operate::explain::{MessageStory, ReplayOutcome, ReplayStory, RowStory};

use crate::cli::ExplainArgs;
use crate::config::Settings;
use crate::output::{Lines, if_any};
use crate::story::Story;
use crate::{output, story};

pub(super) async fn run(args: &ExplainArgs, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.relay_config()?;
    let story = story::of(&config, &settings.table()?, args.id).await?;
    output::show(args.json, &story, || text(&story))
}

fn text(story: &Story) -> String {
    let Story { published, consumers } = story;
    let mut lines = Lines::with_labels(13);
    lines.add("event", published.id);
    match (&published.row, &published.dead_letter) {
        (Some(row), _) => add_row(&mut lines, row, published.message.is_some()),
        (None, Some(_)) => {}
        (None, None) => lines.add("row", "the outbox does not have it, or not any more"),
    }
    if let Some(dead) = &published.dead_letter {
        lines.add(
            "aggregate",
            format_args!("{}:{}, {}", dead.aggregate_type, dead.aggregate_id, dead.event_type),
        );
        let verb = if dead.discarded_at.is_some() { "discarded, was" } else { "dead since" };
        lines.add("dead letter", format_args!("{verb} {}: {}", dead.dead_at, dead.reason));
    }
    for entry in &published.decisions {
        add_decision(&mut lines, entry);
    }
    if let Some(message) = &published.message {
        add_message(&mut lines, message);
    }
    for replay in &published.replays {
        add_replay(&mut lines, replay);
    }
    for (name, consumer) in consumers {
        add_consumer(&mut lines, name, consumer);
    }
    for note in &published.notes {
        lines.add("note", note);
    }
    lines.text
}

fn add_row(lines: &mut Lines, row: &RowStory, is_stored: bool) {
    lines.add(
        "aggregate",
        format_args!("{}:{}, {}", row.aggregate_type, row.aggregate_id, row.event_type),
    );
    lines.add_some("occurred", row.occurred_at.as_deref());
    if let (Some(transaction), Some(seq)) = (&row.transaction, row.seq) {
        lines.add("inserted", format_args!("by transaction {transaction}, number {seq}"));
    }
    if row.attempts > 0 {
        let error = row.error.as_deref().unwrap_or("no reason known");
        lines.add("attempts", format_args!("{} failed, the last: {error}", row.attempts));
        lines.add_some("next attempt", row.next_attempt_at.as_deref());
    } else if row.status == "PUBLISHED" {
        lines.add_some("outcome", row.error.as_deref());
    }
    lines.add_some("commit LSN", row.commit_lsn.as_deref());
    match (&row.published_at, &row.stream) {
        (Some(at), Some(stream)) => {
            let seq = row.stream_seq.map_or_else(|| "?".to_owned(), |it| it.to_string());
            lines.add("published", format_args!("in {stream} as {seq}, marked {at}"));
        }
        (Some(at), None) => lines.add("resolved", format_args!("marked {at}")),
        (None, _) if is_stored => lines.add("published", "the row is not marked yet"),
        (None, _) => lines.add("state", row.status.to_lowercase()),
    }
}

fn add_message(lines: &mut Lines, message: &MessageStory) {
    let MessageStory { stream, seq, subject, stored_at, position, source } = message;
    lines.add("message", format_args!("{stream} {seq}, {subject}, stored {stored_at}"));
    lines.add_some("position", position.as_deref());
    lines.add_some("source", source.as_deref());
}

fn add_replay(lines: &mut Lines, replay: &ReplayStory) {
    let ReplayStory { id, status, source, asked_at, asked_by, reason, .. } = replay;
    let outcome = match replay.outcome {
        ReplayOutcome::Published => "published again",
        ReplayOutcome::Failed => "could not be published again",
        ReplayOutcome::Waiting => "is still to be published again",
        ReplayOutcome::NotPublished => "was not published again",
        ReplayOutcome::Unknown => "meant by it",
    };
    let problem = if_any(": ", replay.problem.as_ref());
    lines.add("replay", format_args!("{outcome}{problem}, {id}, {status}, from the {source}"));
    lines.add("  asked", format_args!("{asked_at} by {asked_by}: {reason}"));
}

fn add_decision(lines: &mut Lines, entry: &AuditEntry) {
    let why = if_any(": ", entry.why.as_ref());
    lines.add("  decision", format_args!("{} {} by {}{why}", entry.at, entry.action, entry.actor));
}

fn add_consumer(lines: &mut Lines, name: &str, story: &ConsumerStory) {
    match &story.record {
        Some(record) => {
            lines.add("consumer", format_args!("{name}: {}", record.status.to_lowercase()));
            add_record(lines, record);
        }
        None => lines.add("consumer", format_args!("{name}: no record, or not any more")),
    }
    add_attempts(lines, &story.failed_attempts);
    if let Some(letter) = &story.dead_letter {
        lines.add(
            "  dead letter",
            format_args!("{}: {}: {}", letter.dead_at, letter.cause, letter.reason),
        );
    }
    for entry in &story.decisions {
        add_decision(lines, entry);
    }
}

/// Attempts that failed.
pub(super) fn add_attempts(lines: &mut Lines, attempts: &[FailedAttempt]) {
    for it in attempts {
        let FailedAttempt { failed_at, attempt, took_ms, reason, .. } = it;
        let worker = if_any(", by ", it.worker.as_ref());
        let took = Duration::from_millis(took_ms.unsigned_abs().into());
        let label = format!("  failed {attempt}");
        lines.add(&label, format_args!("{failed_at} after {took:?}{worker}: {reason}"));
    }
}

fn add_record(lines: &mut Lines, record: &EventRecord) {
    lines.add("  received", record.received_at);
    let unfinished = record.attempts - record.finished_attempts;
    match unfinished {
        0 => lines.add("  attempts", record.attempts),
        left => lines.add("  attempts", format_args!("{}, {left} without an end", record.attempts)),
    }
    if let Some(at) = record.claimed_at {
        let worker = record.worker.as_deref().unwrap_or("nobody who is known");
        lines.add("  claimed", format_args!("{at} by {worker}"));
    }
    lines.add_some("  last error", record.last_error.as_deref());
    lines.add_some("  next attempt", record.next_attempt_at.as_ref());
    if let Some(at) = record.processed_at {
        let outcome = if_any(", ", record.outcome.as_ref());
        lines.add("  processed", format_args!("{at}{outcome}"));
    }
}
