//! Dead letters on the terminal.

use std::fmt::Write;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use operate::dead_letters::inbox_letters::{DeadLetter, DeadLetters, Marked, Overview, Selection};
use operate::dead_letters::{Action, Actor, BulkRequest, Filter, Progress};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::cli::MarkProcessedArgs;
use crate::cli::dlq_args::{ExportArgs, InboxDlqCommand, WorkArgs};
use crate::commands::decide::Queue;
use crate::commands::{decide, dlq};
use crate::config::Settings;
use crate::refusal::{self, Refusal};
use crate::{bulk, output};

/// How many dead letters one command looks at.
const LETTERS_MAX: u32 = 100_000;
/// How many payloads are in memory at a time.
const EXPORT_BATCH: usize = 100;

pub(super) async fn run(command: &InboxDlqCommand, settings: &Settings) -> anyhow::Result<()> {
    let letters = super::dead_letters(settings).await?;
    let of = |consumer: &Option<String>| letters.of_consumer(consumer.clone());
    match command {
        InboxDlqCommand::List(it) => decide::list(&of(&it.consumer), &it.args).await,
        InboxDlqCommand::Show(it) => {
            let ids = &[it.args.id][..];
            let found = of(&it.consumer).details(&ids.into(), it.args.payload, LETTERS_MAX).await?;
            dlq::show_one(&refusal::only(it.args.id, found)?, it.args.json)
        }
        InboxDlqCommand::Requeue(it) => decide(&of(&it.consumer), Action::Requeue, &it.args).await,
        InboxDlqCommand::Reject(it) => decide(&of(&it.consumer), Action::Reject, &it.args).await,
        InboxDlqCommand::Discard(it) => decide(&of(&it.consumer), Action::Discard, &it.args).await,
        InboxDlqCommand::Export(it) => export(&of(&it.consumer), &it.args).await,
    }
}

impl Queue for DeadLetters {
    type Letter = DeadLetter;

    async fn overview(&self, filter: &Filter, limit: u32) -> anyhow::Result<Overview> {
        Ok(self.overview(&filter.clone().into(), None, limit).await?)
    }

    async fn work_through(
        &self,
        request: BulkRequest,
        actor: &Actor,
        progress: &watch::Sender<Progress>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        bulk::work_through(self, &request, actor, progress, stop).await
    }
}

pub(super) async fn mark_processed(
    args: &MarkProcessedArgs,
    settings: &Settings,
) -> anyhow::Result<()> {
    let MarkProcessedArgs { consumer, event_id, why, by, occurred_at, json } = args;
    let letters = super::dead_letters(settings).await?;
    let actor = decide::actor(by.as_ref(), Some(why));
    let marked = letters.mark_processed(consumer, *event_id, *occurred_at, &actor).await?;
    let told = match marked {
        Marked::Marked => "marked as processed",
        Marked::AlreadyProcessed => "was processed already",
        Marked::Leased | Marked::Forgotten | Marked::Unknown => {
            return Err(not_marked(marked, consumer, *event_id).into());
        }
    };
    let report = MarkReport { consumer, event_id: *event_id, result: marked };
    output::show(*json, &report, || format!("{event_id} {told} by {consumer}"))
}

fn not_marked(why: Marked, consumer: &str, event: Uuid) -> Refusal {
    match why {
        Marked::Leased => {
            Refusal::conflict(format!("a worker of {consumer} has event {event} right now"))
                .with_hint("try again when its lease is over, or stop the consumer first")
        }
        Marked::Forgotten => {
            Refusal::conflict(format!("event {event} is older than the inbox remembers"))
                .with_hint("it is not handled any more: if it comes again it becomes a dead letter")
        }
        _ => Refusal::not_found(format!("neither inbox nor outbox know event {event}"))
            .with_hint("name the time in its Occurred-At header with --occurred-at"),
    }
}

#[derive(Serialize)]
struct MarkReport<'a> {
    consumer: &'a str,
    event_id: Uuid,
    result: Marked,
}

async fn decide(letters: &DeadLetters, action: Action, args: &WorkArgs) -> anyhow::Result<()> {
    if args.all_matching {
        return decide::many(letters, action, args).await;
    }
    let (verb, of) = (action.name(), args.ids.as_slice().into());
    let found = letters.list(&of, None, LETTERS_MAX).await?;
    if let Some(id) = args.ids.iter().find(|id| !found.iter().any(|it| it.event_id == **id)) {
        return Err(Refusal::no_dead_letter(*id).into());
    }
    let fits = |it: &&DeadLetter| match action {
        Action::Requeue => it.can_be_requeued(),
        Action::Reject | Action::Discard => !it.requeued,
    };
    let (fitting, unfit): (Vec<_>, Vec<_>) = found.iter().partition(fits);
    if args.dry_run || fitting.is_empty() {
        output::text(&summary(verb, "would be done", &fitting, &unfit))?;
        return if fitting.is_empty() { Err(Refusal::not_dead(verb).into()) } else { Ok(()) };
    }
    // Whoever names events to be tried again means them; for what cannot be undone we ask back.
    if action.is_final() && !args.yes {
        output::note(&summary(verb, "would be done", &fitting, &unfit));
        decide::confirm(&format!("{verb} {}?", fitting.len()))?;
    }
    let done = letters.decide(action, &of, &args.who.actor()).await?;
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
    decide::tell(args, action, &progress, &said)
}

async fn export(letters: &DeadLetters, args: &ExportArgs) -> anyhow::Result<()> {
    let filter = args.filter.filter();
    let found = letters.list(&filter.clone().into(), None, LETTERS_MAX).await?;
    let mut events: Vec<_> = found.iter().map(|it| it.event_id).collect();
    events.dedup();
    let mut to = Destination::open(args.output.as_deref())?;
    // A few at a time: payloads may be large.
    for events in events.chunks(EXPORT_BATCH) {
        let of = Selection { events: Some(events.to_vec()), filter: filter.clone() };
        for detail in letters.details(&of, true, LETTERS_MAX).await? {
            to.line(&output::to_json(&detail)?)?;
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
                let problem = format!("{} exists", path.display());
                Err(Refusal::conflict(problem).with_hint("name another file").into())
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
