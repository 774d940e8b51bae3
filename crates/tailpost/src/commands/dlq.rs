//! Finding and mending dead letters of the outbox.

mod backend;
pub(crate) mod client;
pub(super) mod text;

use std::time::{Duration, Instant};

use anyhow::Context;
use operate::dead_letters::Action;
use operate::dead_letters::outbox_letters::DeadLetterDetail;
use serde::Serialize;
use uuid::Uuid;

use self::backend::Backend;
use super::decide;
use crate::cli::dlq_args::{DlqCommand, RequeueArgs, ShowArgs, WorkArgs};
use crate::config::Settings;
use crate::output;
use crate::refusal::Refusal;

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
        DlqCommand::Discard(it) => discard(&open(it.direct).await?, &it.args).await,
    }
}

async fn requeue(backend: &Backend, args: &RequeueArgs) -> anyhow::Result<()> {
    let RequeueArgs { work, payload_file, wait: patience } = args;
    if work.ids.is_empty() {
        return requeue_many(backend, work).await;
    }
    if work.dry_run {
        return show_each(backend, work).await;
    }
    let payload = match payload_file {
        Some(path) => Some(
            tokio::fs::read_to_string(path)
                .await
                .with_context(|| format!("could not read {}", path.display()))?,
        ),
        None => None,
    };
    for id in &work.ids {
        backend.requeue(*id, payload.clone(), &work.who.actor()).await?;
    }
    if let (Some(patience), [id]) = (patience, &work.ids[..]) {
        let detail = wait(backend, *id, *patience).await?;
        return output::show(work.json, &detail, || text::published(&detail));
    }
    decide::all_done(work, Action::Requeue, work.ids.len() as u64, &listed("requeued", &work.ids))
}

async fn requeue_many(backend: &Backend, work: &WorkArgs) -> anyhow::Result<()> {
    match &work.filter.aggregate {
        Some(aggregate) if !work.all_matching => {
            if !decide::plan(backend, Action::Requeue, work).await? {
                return Ok(());
            }
            let requeued = backend.requeue_aggregate(aggregate, &work.who.actor()).await?;
            let said = format!("requeued {requeued} of {aggregate}, in order");
            decide::all_done(work, Action::Requeue, requeued, &said)
        }
        _ => decide::many(backend, Action::Requeue, work).await,
    }
}

async fn discard(backend: &Backend, work: &WorkArgs) -> anyhow::Result<()> {
    if work.ids.is_empty() {
        return decide::many(backend, Action::Discard, work).await;
    }
    if work.dry_run {
        return show_each(backend, work).await;
    }
    for id in &work.ids {
        let detail = backend.detail(*id, false).await?;
        if !work.yes {
            output::note(&text::detail(&detail));
        }
    }
    if !work.yes {
        decide::confirm("discard for good?")?;
    }
    for id in &work.ids {
        backend.discard(*id, &work.who.actor()).await?;
    }
    decide::all_done(work, Action::Discard, work.ids.len() as u64, &listed("discarded", &work.ids))
}

fn listed(done: &str, ids: &[Uuid]) -> String {
    ids.iter().map(|id| format!("{done} {id}\n")).collect()
}

/// A dry run of what is done to events that are named.
async fn show_each(backend: &Backend, work: &WorkArgs) -> anyhow::Result<()> {
    for id in &work.ids {
        show_one(&backend.detail(*id, false).await?, work.json)?;
    }
    Ok(())
}

pub(super) fn show_one<L: Serialize + text::Shown>(
    detail: &operate::dead_letters::DeadLetterDetail<L>,
    json: bool,
) -> anyhow::Result<()> {
    if json { output::json(detail) } else { output::text(&text::detail(detail)) }
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
