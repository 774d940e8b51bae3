//! Finding and mending dead letters of the outbox.

mod backend;
pub(crate) mod client;
pub(super) mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use operate::dead_letters::outbox_letters::DeadLetterDetail;
use operate::dead_letters::{Action, Aggregate, Progress};
use serde::Serialize;
use uuid::Uuid;

use self::backend::Backend;
use super::decide::{self, Queue};
use crate::cli::dlq_args::{DlqCommand, RequeueArgs, ShowArgs, WorkArgs};
use crate::config::Settings;
use crate::errors::Refusal;
use crate::output;

/// How often a requeued event is looked at.
const POLL: Duration = Duration::from_millis(200);

pub(super) async fn run(command: &DlqCommand, settings: &Settings) -> anyhow::Result<()> {
    let open = async |direct| Backend::open(settings, direct).await;
    match command {
        DlqCommand::List(it) => decide::list(&open(it.direct).await?, &it.args).await,
        DlqCommand::Show(it) => {
            let ShowArgs { id, payload, json } = it.args;
            show_one(&open(it.direct).await?.detail(id, payload).await?, json)
        }
        DlqCommand::Requeue(it) => requeue(&open(it.direct).await?, &it.args).await,
        DlqCommand::Discard(it) => {
            decide::decide(&open(it.direct).await?, Action::Discard, &it.args, None).await
        }
    }
}

async fn requeue(backend: &Backend, args: &RequeueArgs) -> anyhow::Result<()> {
    let RequeueArgs { work, payload_file, wait: patience } = args;
    if let Some(aggregate) = work.filter.aggregate.as_ref().filter(|_| !work.all_matching) {
        return requeue_aggregate(backend, aggregate, work).await;
    }
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path);
        text.with_context(|| format!("could not read {}", path.display()))
    };
    let payload = payload_file.as_ref().map(read).transpose()?;
    match (patience, &work.ids[..]) {
        (Some(patience), [id]) if !work.dry_run => {
            backend.decide(Action::Requeue, &[*id], payload, &work.who.actor()).await?;
            let detail = wait(backend, *id, *patience).await?;
            output::show(work.json, &detail, || text::published(&detail))
        }
        _ => decide::decide(backend, Action::Requeue, work, payload).await,
    }
}

/// All of an aggregate, in order.
async fn requeue_aggregate(
    backend: &Backend,
    aggregate: &Aggregate,
    work: &WorkArgs,
) -> anyhow::Result<()> {
    if !decide::plan(backend, Action::Requeue, work).await? {
        return Ok(());
    }
    let done = backend.requeue_aggregate(aggregate, &work.who.actor()).await?;
    let said = format!("requeued {done} of {aggregate}, in order");
    let progress = Progress { total: done, done, ended: true, ..Progress::default() };
    decide::tell(work, Action::Requeue, &progress, &said)
}

pub(super) fn show_one<L: Serialize + text::Shown>(
    detail: &operate::dead_letters::DeadLetterDetail<L>,
    json: bool,
) -> anyhow::Result<()> {
    if json { output::json(detail) } else { output::text(&text::detail(detail)?) }
}

async fn wait(backend: &Backend, id: Uuid, patience: Duration) -> anyhow::Result<DeadLetterDetail> {
    let started = Instant::now();
    loop {
        let detail = backend.detail(id, false).await?;
        match (detail.state.as_str(), &detail.dead_letter) {
            ("published", _) => return Ok(detail),
            ("dead", Some(dead)) => {
                let problem = format!("event {id} is a dead letter again: {}", dead.reason);
                return Err(Refusal::conflict(problem).into());
            }
            _ => {}
        }
        if started.elapsed() >= patience {
            let problem = format!("event {id} was not published within {patience:?}");
            return Err(Refusal::timed_out(problem).into());
        }
        tokio::time::sleep(POLL).await;
    }
}
