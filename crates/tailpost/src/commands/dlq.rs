//! Finding and mending dead letters of the outbox.

mod backend;
pub(crate) mod client;
pub(super) mod text;

use std::time::{Duration, Instant};

use anyhow::Context;
use relay::dead_letters::{Action, Author, Progress, Story};
use tokio::sync::watch;
use uuid::Uuid;

use self::backend::{Backend, Work};
use super::decide;
use crate::cli::dlq_args::{DlqCommand, ListArgs, OfOutbox, RequeueArgs, ShowArgs, WorkArgs};
use crate::config::Settings;
use crate::errors::DlqError;
use crate::{output, shutdown};

/// How often a requeued event is looked at.
const POLL: Duration = Duration::from_millis(200);

pub(super) async fn run(command: &DlqCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        DlqCommand::List(args) => list(args, settings).await,
        DlqCommand::Show(args) => show(args, settings).await,
        DlqCommand::Requeue(args) => requeue(args, settings).await,
        DlqCommand::Discard(args) => discard(args, settings).await,
    }
}

async fn list(
    OfOutbox { args, direct }: &OfOutbox<ListArgs>,
    settings: &Settings,
) -> anyhow::Result<()> {
    let backend = Backend::open(settings, *direct).await?;
    let overview = backend.overview(&args.filter.filter(), args.limit).await?;
    if args.json {
        output::json(&overview)
    } else {
        output::text(&text::list("outbox", &overview, text::letter))
    }
}

async fn show(
    OfOutbox { args, direct }: &OfOutbox<ShowArgs>,
    settings: &Settings,
) -> anyhow::Result<()> {
    let backend = Backend::open(settings, *direct).await?;
    let story = backend.story(args.id, args.payload).await?;
    if args.json { output::json(&story) } else { output::text(&text::story(args.id, &story)) }
}

async fn requeue(
    OfOutbox { args, direct }: &OfOutbox<RequeueArgs>,
    settings: &Settings,
) -> anyhow::Result<()> {
    let RequeueArgs { work, payload_file, wait: patience } = args;
    let backend = Backend::open(settings, *direct).await?;
    let author = author(work);
    if work.ids.is_empty() {
        return requeue_many(&backend, work, &author).await;
    }
    if work.dry_run {
        return tell_stories(&backend, work).await;
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
        backend.requeue(*id, payload.clone(), &author).await?;
    }
    if let (Some(patience), [id]) = (patience, &work.ids[..]) {
        let story = wait(&backend, *id, *patience).await?;
        return if work.json {
            output::json(&story)
        } else {
            output::text(&text::published(*id, &story))
        };
    }
    decide::all_done(work, "requeue", work.ids.len() as u64, &listed("requeued", &work.ids))
}

async fn requeue_many(backend: &Backend, work: &WorkArgs, author: &Author) -> anyhow::Result<()> {
    match &work.filter.aggregate {
        Some(aggregate) if !work.all_matching => {
            if !plan(backend, work, "requeue").await? {
                return Ok(());
            }
            let requeued = backend.requeue_aggregate(aggregate, author).await?;
            let said = format!("requeued {requeued} of {aggregate}, in order");
            decide::all_done(work, "requeue", requeued, &said)
        }
        _ => many(backend, Action::Requeue, work, author).await,
    }
}

async fn discard(
    OfOutbox { args: work, direct }: &OfOutbox<WorkArgs>,
    settings: &Settings,
) -> anyhow::Result<()> {
    let backend = Backend::open(settings, *direct).await?;
    let author = author(work);
    if work.ids.is_empty() {
        return many(&backend, Action::Discard, work, &author).await;
    }
    if work.dry_run {
        return tell_stories(&backend, work).await;
    }
    for id in &work.ids {
        let story = backend.story(*id, false).await?;
        if !work.yes {
            output::note(&text::story(*id, &story));
        }
    }
    if !work.yes {
        decide::confirm("discard for good?")?;
    }
    for id in &work.ids {
        backend.discard(*id, &author).await?;
    }
    decide::all_done(work, "discard", work.ids.len() as u64, &listed("discarded", &work.ids))
}

fn listed(done: &str, ids: &[Uuid]) -> String {
    ids.iter().map(|id| format!("{done} {id}\n")).collect()
}

/// A dry run of what is done to events that are named.
async fn tell_stories(backend: &Backend, work: &WorkArgs) -> anyhow::Result<()> {
    for id in &work.ids {
        let story = backend.story(*id, false).await?;
        if work.json {
            output::json(&story)?;
        } else {
            output::text(&text::story(*id, &story))?;
        }
    }
    Ok(())
}

/// Shows the plan, asks, works, and tells.
async fn many(
    backend: &Backend,
    action: Action,
    args: &WorkArgs,
    author: &Author,
) -> anyhow::Result<()> {
    let verb = match action {
        Action::Requeue => "requeue",
        Action::Discard => "discard",
    };
    if !plan(backend, args, verb).await? {
        return Ok(());
    }
    let (sender, watcher) = watch::channel(Progress::default());
    let stop = shutdown::on_signal()?;
    let bar = tokio::spawn(decide::draw(watcher));
    let work = Work { action, filter: args.filter.filter(), rate: args.rate };
    let worked = backend.work_through(work, author, &sender, &stop).await;
    let progress = sender.borrow().clone();
    drop(sender);
    bar.await?;
    worked?;
    decide::tell_many(args, verb, &progress)
}

/// Says whether to go on.
async fn plan(backend: &Backend, args: &WorkArgs, verb: &str) -> anyhow::Result<bool> {
    let overview = backend.overview(&args.filter.filter(), decide::FIRST).await?;
    decide::plan(args, verb, &overview, text::letter)
}

async fn wait(backend: &Backend, id: Uuid, patience: Duration) -> anyhow::Result<Story> {
    let started = Instant::now();
    loop {
        let story = backend.story(id, false).await?;
        match (story.state.as_str(), &story.dead_letter) {
            ("published", _) => return Ok(story),
            ("dead", Some(dead)) => {
                return Err(DlqError::DeadAgain { id, reason: dead.reason.clone() }.into());
            }
            _ => {}
        }
        if started.elapsed() >= patience {
            return Err(DlqError::NotYet { id, waited: patience }.into());
        }
        tokio::time::sleep(POLL).await;
    }
}

fn author(args: &WorkArgs) -> Author {
    let name = decide::decider(args.by.as_ref());
    Author { name, via: "cli".into(), why: args.why.clone() }
}
