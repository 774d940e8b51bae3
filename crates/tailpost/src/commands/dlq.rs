//! Finding and mending dead letters.

mod backend;
pub(crate) mod client;
mod text;

use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use relay::dead_letters::{Action, Author, Progress, Story};
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

use self::backend::{Backend, Work};
use crate::cli::dlq::{DiscardArgs, DlqCommand, ListArgs, RequeueArgs, ShowArgs, WorkArgs};
use crate::config::Settings;
use crate::{output, shutdown};

/// How often a requeued event is looked at.
const POLL: Duration = Duration::from_millis(200);

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DlqError {
    /// Nobody confirmed.
    #[error("nothing was done: {0}")]
    NotConfirmed(&'static str),
    /// It became a dead letter again.
    #[error("event {id} is a dead letter again: {reason}")]
    DeadAgain { id: Uuid, reason: String },
    /// It was not published in time.
    #[error("event {id} was not published within {waited:?}")]
    NotYet { id: Uuid, waited: Duration },
    /// Some were refused.
    #[error("{skipped} of {total} were skipped, the last because {why}")]
    Skipped { skipped: u64, total: u64, why: String },
}

pub(super) async fn run(command: &DlqCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        DlqCommand::List(args) => list(args, settings).await,
        DlqCommand::Show(args) => show(args, settings).await,
        DlqCommand::Requeue(args) => requeue(args, settings).await,
        DlqCommand::Discard(args) => discard(args, settings).await,
    }
}

async fn list(args: &ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let backend = Backend::open(settings, args.access.direct).await?;
    let overview = backend.overview(&args.filter.filter(), args.limit).await?;
    if args.access.json { output::json(&overview) } else { output::text(&text::list(&overview)) }
}

async fn show(args: &ShowArgs, settings: &Settings) -> anyhow::Result<()> {
    let backend = Backend::open(settings, args.access.direct).await?;
    let story = backend.story(args.id, args.payload).await?;
    if args.access.json {
        output::json(&story)
    } else {
        output::text(&text::story(args.id, &story))
    }
}

async fn requeue(args: &RequeueArgs, settings: &Settings) -> anyhow::Result<()> {
    let work = &args.work;
    let backend = Backend::open(settings, work.access.direct).await?;
    let author = author(work);
    if let Some(id) = args.id {
        let payload = match &args.payload_file {
            Some(path) => Some(
                tokio::fs::read_to_string(path)
                    .await
                    .with_context(|| format!("could not read {}", path.display()))?,
            ),
            None => None,
        };
        if work.dry_run {
            let story = backend.story(id, false).await?;
            return output::text(&text::story(id, &story));
        }
        backend.requeue(id, payload, &author).await?;
        let Some(patience) = args.wait else {
            return told(work, &json!({ "requeued": 1 }), &format!("requeued {id}"));
        };
        let story = wait(&backend, id, patience).await?;
        return if work.access.json {
            output::json(&story)
        } else {
            output::text(&text::published(id, &story))
        };
    }
    match &work.filter.aggregate {
        Some(aggregate) if !work.all_matching => {
            anyhow::ensure!(
                work.filter.is_only_an_aggregate(),
                "an aggregate is requeued whole: add --all-matching to requeue what matches of it"
            );
            if !plan(&backend, work, "requeue").await? {
                return Ok(());
            }
            let requeued = backend.requeue_aggregate(aggregate, &author).await?;
            let said = format!("requeued {requeued} of {aggregate}, in order");
            told(work, &json!({ "requeued": requeued }), &said)
        }
        _ => many(&backend, Action::Requeue, work, &author).await,
    }
}

async fn discard(args: &DiscardArgs, settings: &Settings) -> anyhow::Result<()> {
    let work = &args.work;
    let backend = Backend::open(settings, work.access.direct).await?;
    let author = author(work);
    let Some(id) = args.id else {
        return many(&backend, Action::Discard, work, &author).await;
    };
    let story = backend.story(id, false).await?;
    if work.dry_run {
        return output::text(&text::story(id, &story));
    }
    if !work.yes {
        eprintln!("{}", text::story(id, &story).trim_end());
        confirm("discard it for good?")?;
    }
    backend.discard(id, &author).await?;
    told(work, &json!({ "discarded": 1 }), &format!("discarded {id}"))
}

/// Shows the plan, asks, works, and tells.
async fn many(
    backend: &Backend,
    action: Action,
    args: &WorkArgs,
    author: &Author,
) -> anyhow::Result<()> {
    let (verb, done) = match action {
        Action::Requeue => ("requeue", "requeued"),
        Action::Discard => ("discard", "discarded"),
    };
    if !plan(backend, args, verb).await? {
        return Ok(());
    }
    let (sender, watcher) = watch::channel(Progress::default());
    let stop = shutdown::on_signal()?;
    let bar = tokio::spawn(draw(watcher));
    let work = Work { action, filter: args.filter.filter(), rate: args.rate };
    let worked = backend.work_through(work, author, &sender, &stop).await;
    let progress = sender.borrow().clone();
    drop(sender);
    bar.await?;
    worked?;
    let Progress { total, done: count, skipped, ref last_refusal, cancelled, .. } = progress;
    let how = if cancelled { ", cancelled" } else { "" };
    told(args, &progress, &format!("{done} {count} of {total}{how}"))?;
    match last_refusal {
        Some(why) if skipped > 0 => {
            Err(DlqError::Skipped { skipped, total, why: why.clone() }.into())
        }
        Some(why) => Err(anyhow::anyhow!("could not go on: {why}")),
        None => Ok(()),
    }
}

/// Says whether to go on.
async fn plan(backend: &Backend, args: &WorkArgs, verb: &str) -> anyhow::Result<bool> {
    let overview = backend.overview(&args.filter.filter(), 0).await?;
    if args.dry_run {
        if args.access.json {
            output::json(&overview)?;
        } else {
            output::text(&text::plan(&overview, verb))?;
        }
        return Ok(false);
    }
    eprintln!("{}", text::plan(&overview, verb).trim_end());
    if !args.yes && overview.total > 0 {
        confirm(&format!("{verb} {}?", overview.total))?;
    }
    Ok(true)
}

fn confirm(question: &str) -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(DlqError::NotConfirmed("--yes is needed where nobody can be asked").into());
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(DlqError::NotConfirmed("you did not say yes").into()),
    }
}

/// A bar on a terminal, nothing elsewhere.
async fn draw(mut progress: watch::Receiver<Progress>) {
    let style = "{bar:40} {pos}/{len}, {per_sec}, {eta} left";
    let bar = ProgressBar::new(0)
        .with_style(ProgressStyle::with_template(style).expect("a valid template"));
    while progress.changed().await.is_ok() {
        let now = progress.borrow_and_update().clone();
        bar.set_length(now.total);
        bar.set_position(now.done + now.skipped);
    }
    bar.finish_and_clear();
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

fn told(args: &WorkArgs, data: &impl serde::Serialize, said: &str) -> anyhow::Result<()> {
    if args.access.json { output::json(data) } else { output::text(said) }
}

fn author(args: &WorkArgs) -> Author {
    let name = args.by.clone().or_else(|| whoami::username().ok());
    let name = name.unwrap_or_else(|| "unnamed".into());
    Author { name, via: "cli".into(), why: args.why.clone() }
}
