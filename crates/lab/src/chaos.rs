//! `tailpost chaos`: named faults under load, and what they cost.
//!
//! ```text
//!   writers ──proxy──▶ PostgreSQL ◀──proxy── relay (a process) ──proxy──▶ NATS
//!      └──── what was committed ────▶ ledger ◀──── what the stream holds ────┘
//! ```
//!
//! A scenario is a row of `scenarios::ALL`: it gets a `Lab` with servers of its own and a load
//! that is already running, breaks something, and returns the relays that should carry on. The rest
//! is the same for all: the load ends, the relays catch up, table and stream are compared. Where a
//! scenario opened a service and returns an inbox too, the effects are counted in the end.

mod daemon;
mod lab;
mod logs;
mod outcome;
mod scenarios;
mod shipping;
mod soak;
mod wait;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use daemon::Daemon;
use lab::Lab;
use outcome::Outcome;
use scenarios::{ALL, Scenario};

/// Not scenarios, but names all the same.
const EVERY: &str = "all";
/// Mixes faults at random, for as long as [`Options::duration`].
pub const SOAK: &str = "soak";

/// Committed events a second. Enough to keep some under way at any moment.
const RATE: f64 = 300.0;

/// What to break, and how to tell what came of it.
pub struct Options {
    /// One of [`names`].
    pub scenario: String,
    /// How long the soak goes on; one minute if not given.
    pub duration: Option<Duration>,
    /// Fixes the load and the faults that are drawn.
    pub seed: Option<u64>,
    /// The [`generators`] that the soak draws from; all if there are none.
    pub only: Vec<String>,
    /// Prints the ledger as one JSON object, for each scenario.
    pub json: bool,
    /// Prints data.
    pub print: fn(&str) -> Result<()>,
    /// Reports the error of a scenario that others follow.
    pub report: fn(&anyhow::Error),
}

/// What can be asked for.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|it| it.name).chain([EVERY, SOAK])
}

/// What a soak can be told to draw from alone.
pub fn generators() -> impl Iterator<Item = &'static str> {
    soak::GENERATORS.iter().copied()
}

/// The scenarios, and what each proves; and the generators of the soak.
pub fn list() -> String {
    let width = ALL.iter().map(|it| it.name.len()).max().unwrap_or_default();
    let soak = format!("faults at random, by generators: {}", soak::GENERATORS.join(", "));
    let scenarios = ALL.iter().map(|it| (it.name, it.proves)).chain([(SOAK, soak.as_str())]);
    scenarios.map(|(name, proves)| format!("{name:width$}  {proves}\n")).collect()
}

/// Runs what was asked for, until `stop` at most.
///
/// # Errors
///
/// When a server does not start, when a fault could not be provoked, and when an event was lost,
/// doubled, out of order, or never committed.
pub async fn run(options: &Options, stop: &CancellationToken) -> Result<()> {
    let seed = options.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    match options.scenario.as_str() {
        SOAK => soak::run(options, seed, stop).await,
        EVERY => run_all(options, seed, stop).await,
        name => {
            let scenario = ALL.iter().find(|it| it.name == name);
            let scenario = scenario.with_context(|| format!("there is no scenario {name}"))?;
            run_one(scenario, options, seed, stop).await?;
            Ok(())
        }
    }
}

async fn run_all(options: &Options, seed: u64, stop: &CancellationToken) -> Result<()> {
    let mut rows = Vec::with_capacity(ALL.len());
    let mut failed = Vec::new();
    for scenario in ALL {
        let outcome = run_one(scenario, options, seed, stop).await;
        if stop.is_cancelled() {
            bail!("stopped at {}", scenario.name);
        }
        rows.push(match outcome {
            Ok(outcome) => outcome.row(),
            Err(error) => {
                (options.report)(&error);
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

impl Options {
    fn print(&self, outcome: &Outcome) -> Result<()> {
        (self.print)(&if self.json { outcome.json()? } else { outcome.text() })
    }
}

/// Plays one scenario on a lab of its own, prints its ledger, and checks it.
async fn run_one(
    scenario: &Scenario,
    options: &Options,
    seed: u64,
    stop: &CancellationToken,
) -> Result<Outcome> {
    eprintln!("{}: {}", scenario.name, scenario.proves);
    let play = Box::pin(play(scenario, options, seed));
    tokio::select! {
        outcome = play => outcome,
        () = stop.cancelled() => bail!("stopped before the end"),
    }
}

async fn play(scenario: &Scenario, options: &Options, seed: u64) -> Result<Outcome> {
    let mut lab = Lab::open(&scenario.servers).await?;
    lab.start_load(RATE, seed).await?;
    let outcome = measure(&mut lab, scenario).await;
    let verdict = match &outcome {
        Ok(outcome) => options.print(outcome).and_then(|()| outcome.verdict()),
        Err(_) => Ok(()),
    };
    if outcome.is_err() || verdict.is_err() {
        lab.keep_logs(scenario.name)?;
    }
    verdict.and(outcome)
}

async fn measure(lab: &mut Lab, scenario: &Scenario) -> Result<Outcome> {
    let mut daemons = (scenario.play)(lab).await?;
    let tally = lab.finish().await?;
    let (effects, expected) = lab.effects().await?;
    daemons.iter_mut().try_for_each(Daemon::check)?;
    drop(daemons);
    lab.check_logs()?;
    let outcome = Outcome::new(scenario.name, &tally, lab.recovered(), lab.elapsed());
    Ok(outcome.with_effects(effects, expected))
}
