//! `tailpost chaos`: named faults under load, and what they cost.
//!
//! ```text
//!   writers ──proxy──▶ PostgreSQL ◀──proxy── relay (a process) ──proxy──▶ NATS
//!      └──── what was committed ────▶ ledger ◀──── what the stream holds ────┘
//! ```
//!
//! A scenario is a row of [`scenarios::ALL`]: it gets a [`Stage`] with servers of its own and a load
//! that is already running, breaks something, and returns the relays that should carry on. The rest
//! is the same for all: the load ends, the relays catch up, table and stream are compared. Where a
//! scenario opened a service and returns an inbox too, the effects are counted in the end.

mod daemon;
mod front;
mod ledger;
mod logs;
mod scenarios;
mod shipping;
mod soak;
mod stage;
mod wait;

use anyhow::{Result, bail};
use clap::CommandFactory;
use clap::error::ErrorKind;
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use crate::cli::{ChaosArgs, Cli};
use crate::{exit, output, shutdown};

use daemon::Daemon;
use ledger::Outcome;
use scenarios::{ALL, Scenario};
use stage::Stage;

/// Not scenarios, but names all the same.
const EVERY: &str = "all";
const SOAK: &str = "soak";

/// Committed events a second. Enough to keep some under way at any moment.
const RATE: f64 = 300.0;

/// What can be asked for.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|it| it.name).chain([EVERY, SOAK])
}

/// What a soak can be told to draw from alone.
pub(crate) fn generators() -> impl Iterator<Item = &'static str> {
    soak::GENERATORS.iter().copied()
}

/// Runs what was asked for, until the first signal at most.
///
/// # Errors
///
/// When a server does not start, when a fault could not be provoked, and when an event was lost,
/// doubled, out of order, or never committed.
pub(crate) async fn run(args: &ChaosArgs) -> Result<()> {
    let Some(name) = args.scenario.as_deref() else { return list() };
    if args.duration.is_some() && name != SOAK {
        let text = "--for is for `soak`: a scenario ends when its fault is over";
        Cli::command().error(ErrorKind::ArgumentConflict, text).exit();
    }
    if !args.only.is_empty() && name != SOAK {
        let text = "--only is for `soak`: a scenario has its own fault";
        Cli::command().error(ErrorKind::ArgumentConflict, text).exit();
    }
    let stop = shutdown::on_signal()?;
    let seed = args.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    match name {
        SOAK => soak::run(args, seed, &stop).await,
        EVERY => run_all(args, seed, &stop).await,
        name => {
            let scenario = ALL.iter().find(|it| it.name == name);
            run_one(scenario.expect("checked by the command line"), args, seed, &stop).await?;
            Ok(())
        }
    }
}

fn list() -> Result<()> {
    let width = ALL.iter().map(|it| it.name.len()).max().unwrap_or_default();
    let lines = ALL.iter().map(|it| format!("{:width$}  {}\n", it.name, it.proves));
    output::text(&lines.collect::<String>())
}

async fn run_all(args: &ChaosArgs, seed: u64, stop: &CancellationToken) -> Result<()> {
    let mut rows = Vec::with_capacity(ALL.len());
    let mut failed = Vec::new();
    for scenario in ALL {
        let outcome = run_one(scenario, args, seed, stop).await;
        if stop.is_cancelled() {
            bail!("stopped at {}", scenario.name);
        }
        rows.push(match outcome {
            Ok(outcome) => outcome.row(),
            Err(error) => {
                exit::report(&error);
                failed.push(scenario.name);
                format!("{}  failed", scenario.name)
            }
        });
    }
    eprintln!("\n{}\n{}", Outcome::head(), rows.join("\n"));
    if !failed.is_empty() {
        bail!("{} of {} scenarios failed: {}", failed.len(), ALL.len(), failed.join(", "));
    }
    Ok(())
}

/// Plays one scenario on a stage of its own, prints its ledger, and checks it.
async fn run_one(
    scenario: &Scenario,
    args: &ChaosArgs,
    seed: u64,
    stop: &CancellationToken,
) -> Result<Outcome> {
    eprintln!("{}: {}", scenario.name, scenario.proves);
    let play = Box::pin(play(scenario, args, seed));
    tokio::select! {
        outcome = play => outcome,
        () = stop.cancelled() => bail!("stopped before the end"),
    }
}

async fn play(scenario: &Scenario, args: &ChaosArgs, seed: u64) -> Result<Outcome> {
    let mut stage = Stage::open(&scenario.servers, seed).await?;
    stage.start_load(RATE, seed).await?;
    let outcome = measure(&mut stage, scenario).await;
    let verdict = match &outcome {
        Ok(outcome) => outcome.print(args.json).and_then(|()| outcome.verdict()),
        Err(_) => Ok(()),
    };
    if outcome.is_err() || verdict.is_err() {
        stage.keep_logs(scenario.name)?;
    }
    verdict.and(outcome)
}

async fn measure(stage: &mut Stage, scenario: &Scenario) -> Result<Outcome> {
    let mut daemons = (scenario.play)(stage).await?;
    let tally = stage.finish().await?;
    let (effects, expected) = stage.effects().await?;
    daemons.iter_mut().try_for_each(Daemon::check)?;
    drop(daemons);
    stage.check_logs()?;
    let outcome = Outcome::new(scenario.name, &tally, stage.recovered(), stage.elapsed());
    Ok(outcome.with_effects(effects, expected))
}
