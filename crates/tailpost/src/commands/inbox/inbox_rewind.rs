//! Sends a consumer back in its stream: the plan, the request, and how far the worker is with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use inbox::{Connection, RewindState};
use indicatif::ProgressBar;
use operate::consumers::{RewindPlan, Rewinder};
use serde::Serialize;
use tokio::sync::watch;

use super::builder::builder;
use crate::admin::Rewinders;
use crate::cli::RewindArgs;
use crate::commands::progress;
use crate::config::{Consumer, Settings};
use crate::errors::Refusal;
use crate::output::{self, Lines};

/// How often to ask how far the worker is.
const LOOK: Duration = Duration::from_millis(200);

/// What its connections are called.
const NAME: &str = "tailpost inbox rewind";

const BAR: &str = "{bar:40} {pos}/{len}, {per_sec}, {eta} left";

/// What was planned, and what became of it, as JSON.
#[derive(Serialize)]
struct Outcome<'a> {
    state: &'static str,
    /// Nothing if it was planned before.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a RewindPlan>,
    rewind: Option<&'a RewindState>,
}

pub(super) async fn run(args: &RewindArgs, settings: &Settings) -> anyhow::Result<()> {
    let rewinder = rewinder(settings).await?;
    let Some(target) = args.target() else { return cancel(&rewinder, args).await };
    if let Some(requested) = rewinder.pending().await? {
        return resume(&rewinder, args, requested).await;
    }
    let planned =
        async |looked_at: &_| rewinder.plan(target, (args.again, args.only()), looked_at).await;
    let plan = progress::shown(BAR, draw, planned).await?;
    if !args.execute {
        let outcome = Outcome { state: "planned", plan: Some(&plan), rewind: None };
        let undone = || format!("{}nothing was done: --execute does it\n", text(&plan));
        return output::show(args.json, &outcome, undone);
    }
    output::note(&text(&plan));
    let requested = rewinder.request(&plan, &args.who.actor()).await?;
    if !is_same(args, plan.from_sequence, &requested) {
        return Err(pending(&plan.consumer, &requested).into());
    }
    let (state, rewind) = if plan.worker_active {
        ("rewound", follow(&rewinder, args, requested).await?)
    } else {
        ("requested", requested)
    };
    let outcome = Outcome { state, plan: Some(&plan), rewind: Some(&rewind) };
    output::show(args.json, &outcome, || told(&args.consumer, &rewind))
}

async fn rewinder(settings: &Settings) -> anyhow::Result<Rewinder> {
    // --consumer leaves one.
    let consumer = settings.consumers()?.pop().context("no consumer is named")?;
    rewinder_of(settings, &consumer, settings.connection(NAME).await?).await
}

async fn rewinder_of(
    settings: &Settings,
    consumer: &Consumer,
    connection: Connection,
) -> anyhow::Result<Rewinder> {
    let nats = settings.nats_target()?.connect(NAME).await?;
    let builder = builder(consumer).nats(nats).schema(settings.postgres.table.schema());
    Ok(Rewinder::new(builder, connection)?)
}

/// What sends the consumers of the settings back.
pub(super) fn rewinders(settings: &Settings) -> Rewinders {
    let settings = Arc::new(settings.clone());
    Arc::new(move |name, connection| {
        let settings = Arc::clone(&settings);
        Box::pin(async move {
            let mut consumers = settings.consumers()?.into_iter();
            let Some(consumer) = consumers.find(|it| it.name == name) else { return Ok(None) };
            Ok(Some(rewinder_of(&settings, &consumer, connection).await?))
        })
    })
}

async fn cancel(rewinder: &Rewinder, args: &RewindArgs) -> anyhow::Result<()> {
    let Some(rewind) = rewinder.cancel(&args.who.actor()).await? else {
        let problem = format!("no rewind of {} is requested and not begun", args.consumer);
        return Err(Refusal::not_found(problem).into());
    };
    let (consumer, from) = (&args.consumer, rewind.from_sequence);
    let said = || format!("{consumer} is not rewound to sequence {from}");
    let outcome = Outcome { state: "cancelled", plan: None, rewind: Some(&rewind) };
    output::show(args.json, &outcome, said)
}

/// After the command was ended in the middle: follows what it had requested.
async fn resume(
    rewinder: &Rewinder,
    args: &RewindArgs,
    requested: RewindState,
) -> anyhow::Result<()> {
    let asked = args.to_sequence.unwrap_or(0);
    if !args.execute || !is_same(args, asked, &requested) {
        return Err(pending(&args.consumer, &requested).into());
    }
    output::note("this rewind is requested already: following it");
    let rewind = follow(rewinder, args, requested).await?;
    let outcome = Outcome { state: "rewound", plan: None, rewind: Some(&rewind) };
    output::show(args.json, &outcome, || told(&args.consumer, &rewind))
}

fn is_same(args: &RewindArgs, from: u64, state: &RewindState) -> bool {
    (from, args.again, args.only()) == (state.from_sequence, state.again, state.only.clone())
}

/// Waits until the worker has done it, for as long as it gets on.
async fn follow(
    rewinder: &Rewinder,
    args: &RewindArgs,
    mut state: RewindState,
) -> anyhow::Result<RewindState> {
    let followed = async |sender: &watch::Sender<(u64, u64)>| {
        let mut moved_at = Instant::now();
        while state.ended_at.is_none() {
            if moved_at.elapsed() > args.timeout {
                return Err(not_yet(args).into());
            }
            tokio::time::sleep(LOOK).await;
            let now = rewinder.state(state.id).await?.context("the request is gone")?;
            if now != state {
                moved_at = Instant::now();
            }
            state = now;
            if state.again {
                let done = (state.removed_to + 1).saturating_sub(state.from_sequence);
                sender.send_replace((done, state.until_sequence + 1 - state.from_sequence));
            }
        }
        anyhow::Ok(state)
    };
    let state = progress::shown(BAR, draw, followed).await?;
    if state.is_done() {
        return Ok(state);
    }
    let why = state.outcome.unwrap_or_default();
    let problem = format!("the rewind of {} was given up: {why}", args.consumer);
    Err(Refusal::conflict(problem).into())
}

/// Another rewind is requested.
fn pending(consumer: &str, state: &RewindState) -> Refusal {
    let (from, again) = (state.from_sequence, if state.again { " --again" } else { "" });
    let (of, same) = match state.only.is_all() {
        true => (String::new(), ""),
        false => (format!(" for {}", state.only), ", --aggregate and --type of that"),
    };
    let (at, by) = (state.requested_at, &state.requested_by);
    let problem = format!(
        "{consumer} is to be rewound to sequence {from}{of} already, as {by} asked at {at}"
    );
    Refusal::conflict(problem).with_hint(format!(
        "follow it with --to-sequence {from}{again}{same}, or withdraw it with --cancel while no worker \
         has begun"
    ))
}

fn not_yet(args: &RewindArgs) -> Refusal {
    let (consumer, waited) = (&args.consumer, args.timeout);
    Refusal::timed_out(format!(
        "no worker of {consumer} got on with the rewind within {waited:?}; it stays requested"
    ))
    .with_hint(
        "workers without rights on inbox_rewinds carry out none; repeat the command to follow it, \
         or withdraw it with --cancel",
    )
}

fn draw(bar: &ProgressBar, (done, all): (u64, u64)) {
    progress::set(bar, done, all);
}

fn told(consumer: &str, rewind: &RewindState) -> String {
    let from = rewind.from_sequence;
    if rewind.ended_at.is_none() {
        return format!(
            "requested: the next worker of {consumer} begins at sequence {from}\n\
             --cancel withdraws it until then"
        );
    }
    let removed = if rewind.again {
        format!("; {} processed events are handled again", rewind.removed)
    } else {
        String::new()
    };
    format!("{consumer} is rewound to sequence {from}{removed}")
}

fn text(plan: &RewindPlan) -> String {
    let mut lines = Lines::default();
    plan.in_words().iter().for_each(|(label, value)| lines.add(label, value));
    lines.text
}
