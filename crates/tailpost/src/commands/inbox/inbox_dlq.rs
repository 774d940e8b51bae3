//! Dead letters on the terminal.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
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
use crate::cli::dlq_args::{ExportArgs, InboxDlqCommand};
use crate::commands::decide::{self, Queue, decide};
use crate::commands::dlq;
use crate::config::Settings;
use crate::errors::Refusal;
use crate::{letters, output};

/// How many dead letters one command looks at.
const LETTERS_MAX: u32 = 100_000;
/// How many payloads are in memory at a time.
const EXPORT_BATCH: usize = 100;

pub(super) async fn run(command: &InboxDlqCommand, settings: &Settings) -> anyhow::Result<()> {
    let of_all = super::dead_letters(settings).await?;
    let of = |consumer: &Option<String>| of_all.of_consumer(consumer.clone());
    match command {
        InboxDlqCommand::List(it) => decide::list(&of(&it.consumer), &it.args).await,
        InboxDlqCommand::Show(it) => {
            let ids = &[it.args.id][..];
            let found = of(&it.consumer).details(&ids.into(), it.args.payload, LETTERS_MAX).await?;
            dlq::show_one(&letters::only(it.args.id, found)?, it.args.json)
        }
        InboxDlqCommand::Requeue(it) => {
            decide(&of(&it.consumer), Action::Requeue, &it.args, None).await
        }
        InboxDlqCommand::Reject(it) => {
            decide(&of(&it.consumer), Action::Reject, &it.args, None).await
        }
        InboxDlqCommand::Discard(it) => {
            decide(&of(&it.consumer), Action::Discard, &it.args, None).await
        }
        InboxDlqCommand::Export(it) => export(&of(&it.consumer), &it.args).await,
    }
}

impl Queue for DeadLetters {
    type Letter = DeadLetter;

    async fn overview(&self, filter: &Filter, limit: u32) -> anyhow::Result<Overview> {
        Ok(self.overview(&filter.clone().into(), None, limit).await?)
    }

    async fn find(&self, events: &[Uuid]) -> anyhow::Result<Vec<DeadLetter>> {
        let found = self.list(&events.into(), None, LETTERS_MAX).await?;
        match events.iter().find(|id| !found.iter().any(|it| it.event_id == **id)) {
            Some(id) => Err(letters::no_letter(*id).into()),
            None => Ok(found),
        }
    }

    async fn decide(
        &self,
        action: Action,
        events: &[Uuid],
        _: Option<String>,
        actor: &Actor,
    ) -> anyhow::Result<Vec<String>> {
        let done = self.decide(action, &events.into(), actor).await?;
        Ok(done.iter().map(|(consumer, id)| format!("{id} of {consumer}")).collect())
    }

    async fn work_through(
        &self,
        request: BulkRequest,
        actor: &Actor,
        progress: &watch::Sender<Progress>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        letters::work_through(self, &request, actor, progress, stop).await
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
            return Err(letters::not_marked(marked, consumer, *event_id).into());
        }
    };
    let report = MarkReport { consumer, event_id: *event_id, result: marked };
    output::show(*json, &report, || format!("{event_id} {told} by {consumer}"))
}

#[derive(Serialize)]
struct MarkReport<'a> {
    consumer: &'a str,
    event_id: Uuid,
    result: Marked,
}

async fn export(letters: &DeadLetters, args: &ExportArgs) -> anyhow::Result<()> {
    let filter = args.filter.filter();
    let found = letters.list(&filter.clone().into(), None, LETTERS_MAX).await?;
    let mut events: Vec<_> = found.iter().map(|it| it.event_id).collect();
    events.dedup();
    let to = args.output.as_deref().map(new_file).transpose()?;
    let to = to.map_or_else(|| Box::new(std::io::stdout()) as Box<dyn Write>, |it| Box::new(it));
    let mut to = BufWriter::new(to);
    let write = async {
        // A few at a time: payloads may be large.
        for events in events.chunks(EXPORT_BATCH) {
            let filter = filter.clone();
            let of = Selection { events: Some(events.to_vec()), filter, dead_at: None };
            for detail in letters.details(&of, true, LETTERS_MAX).await? {
                writeln!(to, "{}", output::to_json(&detail)?)?;
            }
        }
        to.flush()?;
        anyhow::Ok(())
    };
    let is_unread = |it: &std::io::Error| it.kind() == ErrorKind::BrokenPipe;
    match write.await {
        Err(error) if error.downcast_ref().is_some_and(is_unread) => Ok(()),
        written => written.context("could not write the export"),
    }
}

/// Never overwrites another export. Other users cannot read it.
fn new_file(path: &Path) -> anyhow::Result<File> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let problem = format!("{} exists", path.display());
            Err(Refusal::conflict(problem).with_hint("name another file").into())
        }
        opened => opened.with_context(|| format!("could not write {}", path.display())),
    }
}
