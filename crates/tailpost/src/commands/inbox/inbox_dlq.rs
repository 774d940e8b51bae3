//! Dead letters on the terminal.

use std::fmt::Write;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use inbox::{DeadLetter, DeadLetters, Decision, Grounds, Marked, Original, Selection};
use outbox::dead_letters::Progress;
use serde::Serialize;
use tokio::sync::watch;
use uuid::Uuid;

use crate::cli::MarkProcessedArgs;
use crate::cli::dlq_args::{ExportArgs, InboxDlqCommand, ListArgs, OfConsumer, ShowArgs, WorkArgs};
use crate::commands::decide;
use crate::commands::dlq::text;
use crate::config::Settings;
use crate::letter::Letter;
use crate::output::one_line;
use crate::refusal::Refusal;
use crate::{output, shutdown};

/// How many dead letters one command looks at.
const LETTERS_MAX: u32 = 100_000;
/// How many payloads are in memory at a time.
const EXPORT_BATCH: usize = 100;

pub(super) async fn run(command: &InboxDlqCommand, settings: &Settings) -> anyhow::Result<()> {
    let letters = super::dead_letters(settings).await?;
    match command {
        InboxDlqCommand::List(args) => list(&letters, args).await,
        InboxDlqCommand::Show(args) => show(&letters, args).await,
        InboxDlqCommand::Requeue(args) => decide(&letters, Decision::Requeue, args).await,
        InboxDlqCommand::Reject(args) => decide(&letters, Decision::Reject, args).await,
        InboxDlqCommand::Discard(args) => decide(&letters, Decision::Discard, args).await,
        InboxDlqCommand::Export(args) => export(&letters, args).await,
    }
}

pub(super) async fn mark_processed(
    args: &MarkProcessedArgs,
    settings: &Settings,
) -> anyhow::Result<()> {
    let MarkProcessedArgs { consumer, event_id, why, by, occurred_at, json, .. } = args;
    let letters = super::dead_letters(settings).await?;
    let grounds = Grounds { by: decide::decider(by.as_ref()), why: Some(why.clone()) };
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

async fn list(
    letters: &DeadLetters,
    OfConsumer { args, consumer }: &OfConsumer<ListArgs>,
) -> anyhow::Result<()> {
    let (consumer, filter) = (consumer.clone(), args.filter.filter());
    let of = Selection { consumer, filter, ..Selection::default() };
    let overview = letters.overview(&of, args.limit).await?;
    if args.json {
        output::json(&overview)
    } else {
        output::text(&text::list("inbox", &overview, line))
    }
}

async fn show(
    letters: &DeadLetters,
    OfConsumer { args, consumer }: &OfConsumer<ShowArgs>,
) -> anyhow::Result<()> {
    let of = named(consumer.as_ref(), &[args.id]);
    let mut found = letters.originals(&of, LETTERS_MAX).await?;
    let original = match found.len() {
        0 => return Err(Refusal::no_dead_letter(args.id).into()),
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

fn named(consumer: Option<&String>, ids: &[Uuid]) -> Selection {
    let (consumer, events) = (consumer.cloned(), Some(ids.to_vec()));
    Selection { consumer, events, ..Selection::default() }
}

async fn decide(
    letters: &DeadLetters,
    decision: Decision,
    OfConsumer { args, consumer }: &OfConsumer<WorkArgs>,
) -> anyhow::Result<()> {
    let verb = decision.name();
    let grounds = Grounds { by: decide::decider(args.by.as_ref()), why: args.why.clone() };
    if args.all_matching {
        let (consumer, filter) = (consumer.clone(), args.filter.filter());
        let of = Selection { consumer, filter, ..Selection::default() };
        let overview = letters.overview(&of, decide::FIRST).await?;
        if !decide::plan(args, verb, &overview, line)? {
            return Ok(());
        }
        return many(letters, decision, &of, args, &grounds).await;
    }
    let of = named(consumer.as_ref(), &args.ids);
    let found = letters.list(&of, LETTERS_MAX).await?;
    if let Some(id) = args.ids.iter().find(|id| !found.iter().any(|it| it.event_id == **id)) {
        return Err(Refusal::no_dead_letter(*id).into());
    }
    let fits = |it: &&DeadLetter| match decision {
        Decision::Requeue => it.can_be_requeued(),
        Decision::Reject | Decision::Discard => !it.requeued,
    };
    let (fitting, unfit): (Vec<_>, Vec<_>) = found.iter().partition(fits);
    if args.dry_run || fitting.is_empty() {
        output::text(&summary(verb, "would be done", &fitting, &unfit))?;
        return if fitting.is_empty() { Err(Refusal::not_dead(verb).into()) } else { Ok(()) };
    }
    // Whoever names events to be tried again means them; for what cannot be undone we ask back.
    if decision != Decision::Requeue && !args.yes {
        output::note(&summary(verb, "would be done", &fitting, &unfit));
        decide::confirm(&format!("{verb} {}?", fitting.len()))?;
    }
    let done = letters.decide(decision, &of, &grounds).await?;
    let is_done =
        |it: &&DeadLetter| done.iter().any(|(c, id)| *c == it.consumer && *id == it.event_id);
    let (done, skipped): (Vec<_>, Vec<_>) = found.iter().partition(is_done);
    let said = summary(verb, "done", &done, &skipped);
    let progress = Progress {
        total: found.len() as u64,
        done: done.len() as u64,
        skipped: skipped.len() as u64,
        last_refusal: skipped.last().map(|it| format!("{} {}", it.event_id, why_not(it))),
        ended: true,
        cancelled: false,
    };
    decide::tell(args, verb, &progress, &said)
}

async fn many(
    letters: &DeadLetters,
    decision: Decision,
    of: &Selection,
    args: &WorkArgs,
    grounds: &Grounds,
) -> anyhow::Result<()> {
    let (sender, watcher) = watch::channel(Progress::default());
    let stop = shutdown::on_signal()?;
    let bar = tokio::spawn(decide::draw(watcher));
    let worked = letters.work_through(decision, of, args.rate, grounds, &sender, &stop).await;
    let progress = sender.borrow().clone();
    drop(sender);
    bar.await?;
    worked?;
    decide::tell_many(args, decision.name(), &progress)
}

async fn export(
    letters: &DeadLetters,
    OfConsumer { args, consumer }: &OfConsumer<ExportArgs>,
) -> anyhow::Result<()> {
    let (consumer, filter) = (consumer.clone(), args.filter.filter());
    let of = Selection { consumer, filter, ..Selection::default() };
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
    /// Never over another export, and for nobody else to read.
    fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::Stdout) };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
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

/// One in a list.
fn line(it: &DeadLetter) -> String {
    let at = it.dead_at.strftime("%Y-%m-%d %H:%M:%S");
    let what = match (&it.aggregate_type, &it.aggregate_id, &it.event_type) {
        (Some(kind), Some(id), Some(event_type)) => format!("{kind}:{id}  {event_type}"),
        _ => it.subject.clone(),
    };
    let cause = if it.requeued { "requeued" } else { &it.cause };
    let DeadLetter { event_id, consumer, attempts, .. } = it;
    format!(
        "{event_id}  {at}  {}  {consumer}  {cause}  {attempts} attempts\n    {}\n",
        one_line(&what),
        text::short(&it.reason)
    )
}

fn details(original: &Original, with_payload: bool) -> String {
    let it = &original.letter;
    let mut text = String::new();
    let mut line = |label: &str, value: &dyn std::fmt::Display| {
        let value = value.to_string();
        writeln!(text, "{label:<12} {}", one_line(&value)).expect("writing to a string");
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
    if !with_payload {
        let bytes = it.payload_bytes;
        line("payload", &format_args!("{bytes} bytes, with headers not shown without --payload"));
        return text;
    }
    for (name, values) in original.headers.as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten().filter_map(|it| it.as_str()) {
            line("header", &format_args!("{name}: {value}"));
        }
    }
    let payload = String::from_utf8_lossy(&original.payload);
    writeln!(text, "{:<12} {payload}", "payload").expect("writing to a string");
    text
}

fn summary(verb: &str, how: &str, done: &[&DeadLetter], skipped: &[&DeadLetter]) -> String {
    let mut text = String::new();
    for it in done {
        writeln!(text, "{verb} {} of {}: {how}", it.event_id, it.consumer).expect("a string");
    }
    for it in skipped {
        let (id, consumer, why) = (it.event_id, &it.consumer, why_not(it));
        writeln!(text, "{verb} {id} of {consumer}: skipped, it {why}").expect("a string");
    }
    text
}

fn why_not(it: &DeadLetter) -> &'static str {
    match (it.requeued, it.recorded) {
        (true, _) => "is requeued",
        (false, false) => "has no record in the inbox any more",
        (false, true) => "cannot be handled, whatever changes",
    }
}
