//! Decisions about dead letters of either queue: the plan, the question, the progress, the result.

use std::io::{BufRead, IsTerminal, Write};

use operate::dead_letters::{Action, Actor, BulkRequest, Filter, Overview, Progress, Reason};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::dlq::text::{self, Shown};
use super::progress;
use crate::cli::dlq_args::{ListArgs, WhoArgs, WorkArgs};
use crate::errors::Refusal;
use crate::{letters, output, shutdown};

/// Dead letters that can be looked at and worked through.
pub(super) trait Queue {
    type Letter: Serialize + Shown;

    async fn overview(&self, filter: &Filter, limit: u32)
    -> anyhow::Result<Overview<Self::Letter>>;
    /// The dead letters of these events. An event without one is an error.
    async fn find(&self, events: &[Uuid]) -> anyhow::Result<Vec<Self::Letter>>;
    /// Decides about these events, and returns the [names](Shown::name) of the dead letters to
    /// which the action was done. An event of the outbox may get another payload.
    async fn decide(
        &self,
        action: Action,
        events: &[Uuid],
        payload: Option<String>,
        actor: &Actor,
    ) -> anyhow::Result<Vec<String>>;
    async fn work_through(
        &self,
        request: BulkRequest,
        actor: &Actor,
        progress: &watch::Sender<Progress>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()>;
}

/// Shows how many there are, why, and the newest.
pub(super) async fn list<Q: Queue>(queue: &Q, args: &ListArgs) -> anyhow::Result<()> {
    let overview = queue.overview(&args.filter.filter(), args.limit).await?;
    output::show(args.json, &overview, || text::list(&overview))
}

/// Decides about the events that are named, or else about all that match.
pub(super) async fn decide<Q: Queue>(
    queue: &Q,
    action: Action,
    args: &WorkArgs,
    payload: Option<String>,
) -> anyhow::Result<()> {
    if args.ids.is_empty() {
        return many(queue, action, args).await;
    }
    let found = queue.find(&args.ids).await?;
    let (fitting, unfit): (Vec<_>, Vec<_>) =
        found.iter().partition(|it| it.why_not(action).is_none());
    let plan = summary(action, "would be done", &fitting, &unfit);
    if args.dry_run || fitting.is_empty() {
        output::text(&plan)?;
        let refusal = || letters::not_dead(action.name()).into();
        return if fitting.is_empty() { Err(refusal()) } else { Ok(()) };
    }
    // An event that is named is meant. We ask before what cannot be undone.
    if action.is_final() && !args.yes {
        output::note(&plan);
        confirm(&format!("{} {}?", action.name(), fitting.len()))?;
    }
    let done = queue.decide(action, &args.ids, payload, &args.who.actor()).await?;
    let (done, skipped): (Vec<_>, Vec<_>) = found.iter().partition(|it| done.contains(&it.name()));
    let progress = Progress {
        total: found.len() as u64,
        done: done.len() as u64,
        skipped: skipped.len() as u64,
        last_refusal: skipped
            .last()
            .map(|it| format!("{} {}", it.name(), why_skipped(*it, action))),
        ended: true,
        cancelled: false,
    };
    tell(args, action, &progress, &summary(action, "done", &done, &skipped))
}

fn summary<L: Shown>(action: Action, how: &str, done: &[&L], skipped: &[&L]) -> String {
    let verb = action.name();
    let done = done.iter().map(|it| format!("{verb} {}: {how}\n", it.name()));
    let skipped = skipped
        .iter()
        .map(|it| format!("{verb} {}: skipped, it {}\n", it.name(), why_skipped(*it, action)));
    done.chain(skipped).collect()
}

fn why_skipped<L: Shown>(letter: &L, action: Action) -> &'static str {
    letter.why_not(action).unwrap_or("is decided about by now")
}

/// Shows the plan, asks, works, and tells.
async fn many<Q: Queue>(queue: &Q, action: Action, args: &WorkArgs) -> anyhow::Result<()> {
    if !plan(queue, action, args).await? {
        return Ok(());
    }
    let stop = shutdown::on_signal()?;
    let template = "{bar:40} {pos}/{len}, {per_sec}, {eta} left";
    let draw = |bar: &_, it: Progress| progress::set(bar, it.done + it.skipped, it.total);
    let (filter, rate) = (args.filter.filter(), args.rate);
    let request = BulkRequest {
        action,
        filter,
        consumer: None,
        first: None,
        dry_run: false,
        rate,
        by: None,
        why: None,
    };
    let ended = progress::shown(template, draw, async |sender| {
        queue.work_through(request, &args.who.actor(), sender, &stop).await?;
        anyhow::Ok(sender.borrow().clone())
    });
    let ended = ended.await?;
    let Progress { total, done, cancelled, .. } = ended;
    let how = if cancelled { ", cancelled" } else { "" };
    tell(args, action, &ended, &format!("{} {done} of {total}{how}", past(action)))
}

/// How many dead letters a plan shows.
const FIRST: u32 = 5;

/// What would be done, as JSON.
#[derive(Serialize)]
struct Plan<'a, L> {
    action: &'a str,
    dry_run: bool,
    filter: &'a Filter,
    #[serde(flatten)]
    overview: &'a Overview<L>,
}

/// What was done, as JSON.
#[derive(Serialize)]
struct Outcome<'a> {
    action: &'a str,
    total: u64,
    done: u64,
    skipped: u64,
    last_refusal: Option<&'a str>,
    cancelled: bool,
}

/// Shows what an action on many is about, and asks. Whether to go on.
pub(super) async fn plan<Q: Queue>(
    queue: &Q,
    action: Action,
    args: &WorkArgs,
) -> anyhow::Result<bool> {
    let filter = args.filter.filter();
    let overview = queue.overview(&filter, FIRST).await?;
    let (filter, overview, action) = (&filter, &overview, action.name());
    if args.dry_run && args.json {
        output::json(&Plan { action, dry_run: true, filter, overview })?;
    } else if args.dry_run {
        output::text(&text::plan(action, filter, overview))?;
    } else {
        output::note(&text::plan(action, filter, overview));
        if !args.yes && overview.total > 0 {
            confirm(&format!("{action} {}?", overview.total))?;
        }
    }
    Ok(!args.dry_run)
}

/// Asks the person at the terminal, if there is one.
fn confirm(question: &str) -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let problem = "nothing was done: --yes is needed where nobody can be asked";
        return Err(Refusal::conflict(problem).into());
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Refusal::conflict("nothing was done: you did not say yes").into()),
    }
}

/// Tells the result of an action, and fails if some were skipped.
pub(super) fn tell(
    args: &WorkArgs,
    action: Action,
    progress: &Progress,
    said: &str,
) -> anyhow::Result<()> {
    let Progress { total, done, skipped, cancelled, ref last_refusal, .. } = *progress;
    let last_refusal = last_refusal.as_deref();
    let outcome = Outcome { action: action.name(), total, done, skipped, last_refusal, cancelled };
    output::show(args.json, &outcome, || said.to_owned())?;
    match last_refusal {
        Some(why) if skipped > 0 => {
            let problem = format!("{skipped} of {total} were skipped, the last because {why}");
            Err(Refusal::conflict(problem).into())
        }
        Some(why) => Err(anyhow::anyhow!("could not go on: {why}")),
        None => Ok(()),
    }
}

fn past(action: Action) -> &'static str {
    match action {
        Action::Requeue => "requeued",
        Action::Reject => "rejected",
        Action::Discard => "discarded",
    }
}

/// Who decides: the name that was given, or the user of the terminal.
pub(super) fn actor(by: Option<&String>, why: Option<&Reason>) -> Actor {
    let name = by.cloned().or_else(|| whoami::username().ok());
    let name = name.filter(|it| !it.trim().is_empty()).unwrap_or_else(|| "unnamed".into());
    Actor { name, via: "cli".into(), why: why.cloned() }
}

impl WhoArgs {
    pub(super) fn actor(&self) -> Actor {
        actor(self.by.as_ref(), self.why.as_ref())
    }
}
