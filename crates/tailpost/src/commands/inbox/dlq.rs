//! Dead letters on the terminal.

use std::fmt::Write;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context;
use inbox::{DeadLetter, DeadLetters, Decision, Grounds, Marked, Original, Selection};
use serde::Serialize;
use uuid::Uuid;

use crate::cli::{
    InboxDlqCommand, InboxDlqExportArgs, InboxDlqListArgs, InboxDlqShowArgs, InboxDlqTarget,
    MarkProcessedArgs,
};
use crate::config::Settings;
use crate::letter::{Letter, Letters};
use crate::output;
use crate::refusal::Refusal;

/// How many dead letters one command looks at.
const LETTERS_MAX: u32 = 100_000;
/// How many payloads are in memory at a time.
const EXPORT_BATCH: usize = 100;

pub(super) async fn run(command: &InboxDlqCommand, settings: &Settings) -> anyhow::Result<()> {
    let letters = super::dead_letters(settings).await?;
    match command {
        InboxDlqCommand::List(args) => list(&letters, args).await,
        InboxDlqCommand::Show(args) => show(&letters, args).await,
        InboxDlqCommand::Requeue(args) => {
            decide(&letters, Decision::Requeue, &args.target, args.reason.clone()).await
        }
        InboxDlqCommand::Reject(args) => {
            decide(&letters, Decision::Reject, &args.target, Some(args.reason.clone())).await
        }
        InboxDlqCommand::Discard(args) => {
            decide(&letters, Decision::Discard, &args.target, Some(args.reason.clone())).await
        }
        InboxDlqCommand::Export(args) => export(&letters, args).await,
    }
}

pub(super) async fn mark_processed(
    args: &MarkProcessedArgs,
    settings: &Settings,
) -> anyhow::Result<()> {
    let MarkProcessedArgs { consumer, event_id, reason, occurred_at, json } = args;
    let letters = super::dead_letters(settings).await?;
    let grounds = grounds(Some(reason.clone()));
    let marked = letters.mark_processed(consumer, *event_id, *occurred_at, &grounds).await?;
    let told = match marked {
        Marked::Marked => "marked as processed",
        Marked::AlreadyProcessed => "was processed already",
        Marked::Leased => return Err(Refusal::leased(consumer, *event_id).into()),
        Marked::Forgotten => return Err(Refusal::forgotten(*event_id).into()),
        Marked::Unknown => return Err(Refusal::unknown_event(*event_id).into()),
    };
    if *json {
        output::json(&MarkReport { consumer, event_id: *event_id, result: marked })
    } else {
        output::text(&format!("{event_id} {told} by {consumer}"))
    }
}

#[derive(Serialize)]
struct MarkReport<'a> {
    consumer: &'a str,
    event_id: Uuid,
    result: Marked,
}

async fn list(letters: &DeadLetters, args: &InboxDlqListArgs) -> anyhow::Result<()> {
    let of = Selection { consumer: args.consumer.clone(), events: None };
    let found = letters.list(&of, args.limit).await?;
    if args.json {
        output::json(&Letters { dead_letters: &found })
    } else {
        output::text(&table(&found))
    }
}

async fn show(letters: &DeadLetters, args: &InboxDlqShowArgs) -> anyhow::Result<()> {
    let of = Selection { consumer: args.consumer.clone(), events: Some(vec![args.event_id]) };
    let mut found = letters.originals(&of, LETTERS_MAX).await?;
    let original = match found.len() {
        0 => return Err(Refusal::no_dead_letter(args.event_id).into()),
        1 => found.remove(0),
        _ => {
            let consumers: Vec<_> = found.iter().map(|it| it.letter.consumer.clone()).collect();
            return Err(Refusal::several_consumers(&consumers).into());
        }
    };
    if args.json {
        output::json(&Letter::of(&original, args.payload))
    } else {
        output::text(&details(&original, args.payload))
    }
}

/// What `requeue`, `reject` and `discard` print.
#[derive(Serialize)]
struct Decided<'a> {
    decision: &'static str,
    done: bool,
    dead_letters: Vec<&'a DeadLetter>,
    skipped: Vec<&'a DeadLetter>,
}

async fn decide(
    letters: &DeadLetters,
    decision: Decision,
    target: &InboxDlqTarget,
    reason: Option<String>,
) -> anyhow::Result<()> {
    let events = (!target.all).then(|| target.event_ids.clone());
    let of = Selection { consumer: target.consumer.clone(), events };
    let found = letters.list(&of, LETTERS_MAX).await?;
    if let Some(id) = target.event_ids.iter().find(|id| !found.iter().any(|it| it.event_id == **id))
    {
        return Err(Refusal::no_dead_letter(*id).into());
    }
    let fits = |it: &&DeadLetter| match decision {
        Decision::Requeue => it.can_be_requeued(),
        Decision::Reject | Decision::Discard => !it.requeued,
    };
    // Whoever names one event means it; for more, and for what cannot be undone, we ask back.
    let meant = target.yes || (decision == Decision::Requeue && !target.all);
    let done = if target.dry_run || !meant {
        found.iter().filter(fits).map(|it| (it.consumer.clone(), it.event_id)).collect()
    } else {
        letters.decide(decision, &of, &grounds(reason)).await?
    };
    let is_done =
        |it: &&DeadLetter| done.iter().any(|(c, id)| *c == it.consumer && *id == it.event_id);
    let (affected, skipped): (Vec<_>, Vec<_>) = found.iter().partition(is_done);
    let nothing = affected.is_empty() && !target.event_ids.is_empty();
    let decided = Decided {
        decision: decision.name(),
        done: meant && !target.dry_run,
        dead_letters: affected,
        skipped,
    };
    if target.json {
        output::json(&decided)?
    } else {
        output::text(&summary(&decided))?
    }
    if nothing {
        return Err(Refusal::not_dead(decision.name()).into());
    }
    if meant || target.dry_run { Ok(()) } else { Err(Refusal::unconfirmed().into()) }
}

async fn export(letters: &DeadLetters, args: &InboxDlqExportArgs) -> anyhow::Result<()> {
    let of = Selection { consumer: args.consumer.clone(), events: None };
    let found = letters.list(&of, LETTERS_MAX).await?;
    let mut events: Vec<_> = found.iter().map(|it| it.event_id).collect();
    events.dedup();
    let mut to = Destination::open(args.output.as_deref())?;
    // A few at a time: payloads may be large.
    for events in events.chunks(EXPORT_BATCH) {
        let of = Selection { events: Some(events.to_vec()), ..of.clone() };
        for original in letters.originals(&of, LETTERS_MAX).await? {
            to.line(&output::to_json(&Letter::of(&original, true))?)?;
        }
    }
    to.close()
}

/// Where an export goes.
enum Destination {
    Stdout,
    File(BufWriter<File>),
}

impl Destination {
    /// Never over another export.
    fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::Stdout) };
        match File::create_new(path) {
            Ok(file) => Ok(Self::File(BufWriter::new(file))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(Refusal::file_exists(path).into())
            }
            Err(error) => Err(error).with_context(|| format!("could not write {}", path.display())),
        }
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => output::text(line),
            Self::File(file) => writeln!(file, "{line}").context("could not write the export"),
        }
    }

    fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout => Ok(()),
            Self::File(mut file) => file.flush().context("could not write the export"),
        }
    }
}

/// Who decides.
fn grounds(reason: Option<String>) -> Grounds {
    let user = std::env::var("USER").ok().filter(|it| !it.is_empty());
    Grounds { by: user.unwrap_or_else(|| "tailpost".into()), reason }
}

fn table(letters: &[DeadLetter]) -> String {
    if letters.is_empty() {
        return "no dead letters".into();
    }
    let consumer = letters.iter().map(|it| it.consumer.len()).max().unwrap_or(0).max(8);
    let mut text = format!(
        "{:<36}  {:<consumer$}  {:<12}  {:>8}  {:>8}  reason\n",
        "event", "consumer", "cause", "attempts", "age"
    );
    for it in letters {
        let cause = if it.requeued { "(requeued)" } else { &it.cause };
        let age = output::duration(it.age_seconds);
        let reason = it.reason.lines().next().unwrap_or_default();
        writeln!(
            text,
            "{}  {:<consumer$}  {cause:<12}  {:>8}  {age:>8}  {reason}",
            it.event_id, it.consumer, it.attempts
        )
        .expect("writing to a string");
    }
    text
}

fn details(original: &Original, with_payload: bool) -> String {
    let it = &original.letter;
    let mut text = String::new();
    let mut line = |label: &str, value: &dyn std::fmt::Display| {
        writeln!(text, "{label:<12} {value}").expect("writing to a string");
    };
    line("event", &it.event_id);
    line("consumer", &it.consumer);
    line("occurred at", &it.occurred_at);
    line("subject", &it.subject);
    line("stream", &format_args!("{}, sequence {}", it.stream, it.stream_seq));
    line("dead since", &format_args!("{}, {}", it.dead_at, output::duration(it.age_seconds)));
    line("attempts", &it.attempts);
    line("cause", &it.cause);
    line("reason", &it.reason);
    if it.requeued {
        line("now", &"requeued");
    }
    for (name, values) in original.headers.as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten().filter_map(|it| it.as_str()) {
            line("header", &format_args!("{name}: {value}"));
        }
    }
    if with_payload {
        line("payload", &String::from_utf8_lossy(&original.payload));
    } else {
        line("payload", &format_args!("{} bytes, not shown without --payload", it.payload_bytes));
    }
    text
}

fn summary(decided: &Decided<'_>) -> String {
    let Decided { decision, done, dead_letters, skipped } = decided;
    let verb = if *done { "done" } else { "would be done" };
    let mut text = String::new();
    for it in dead_letters {
        writeln!(text, "{decision} {} of {}: {verb}", it.event_id, it.consumer).expect("a string");
    }
    for it in skipped {
        let why = match (it.requeued, it.recorded) {
            (true, _) => "is requeued",
            (false, false) => "has no record in the inbox any more",
            (false, true) => "cannot be handled, whatever changes",
        };
        writeln!(text, "{decision} {} of {}: skipped, it {why}", it.event_id, it.consumer)
            .expect("a string");
    }
    if text.is_empty() { "no dead letters".into() } else { text }
}
