//! Measures the relay beside its limits, on throw-away servers.
//!
//! Every round loads the same waiting rows and drains them four times: by `pg_recvlogical` to
//! nothing, by a bare JetStream publisher (which needs no rows), by both at once, and by the relay.
//! The order of the four changes from round to round, so that none always finds the machine warm.
//! `benches/README.md` says what each figure means.

mod cpu;
mod drain;
mod latency;
mod limits;
mod process;
mod report;
mod stage;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use crate::report::{Report, Round};
use crate::stage::{Servers, Stage};

const ROWS: u32 = 200_000;
const ROUNDS: u32 = 3;
const LATENCY_TIME: Duration = Duration::from_secs(20);

const QUICK_ROWS: u32 = 20_000;
const QUICK_LATENCY_TIME: Duration = Duration::from_secs(5);

/// Measures the relay beside its limits, on throw-away servers
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Cli {
    /// Rows that wait to be drained [default: 200000, with --quick 20000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    rows: Option<u32>,
    /// How often everything is drained; the medians count [default: 3, with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Only see that it works: the figures mean little
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Log,
    Publisher,
    Both,
    Relay,
}

const PHASES: [Phase; 4] = [Phase::Log, Phase::Publisher, Phase::Both, Phase::Relay];

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let (rows, rounds, latency_time) =
        if cli.quick { (QUICK_ROWS, 1, QUICK_LATENCY_TIME) } else { (ROWS, ROUNDS, LATENCY_TIME) };
    let (rows, rounds) = (cli.rows.unwrap_or(rows), cli.rounds.unwrap_or(rounds));

    let servers = Servers::start().await?;
    let conditions = servers.conditions(rows).await?;
    let mut done = Vec::new();
    for number in 0..rounds {
        done.push(round(&servers, rows, number).await.with_context(|| format!("round {number}"))?);
    }
    progress("latency: paced events, one per transaction");
    let latency = latency::measure(&servers, latency_time).await.context("measure latency")?;

    let report = Report::new(conditions, done, latency);
    let text = if cli.json { serde_json::to_string(&report)? + "\n" } else { report.to_string() };
    std::io::stdout().write_all(text.as_bytes()).context("print the report")
}

async fn round(servers: &Servers, rows: u32, number: u32) -> Result<Round> {
    progress(&format!("round {}: loading {rows} rows", number + 1));
    let stage = Stage::set_up(servers, &format!("round{number}")).await?;
    let slots = stage.add_slots(["log", "both"]).await?;
    stage.load(rows).await?;
    let end = stage.end_of_log().await?;
    let mut phases = PHASES;
    phases.rotate_left(number as usize % PHASES.len());
    let (mut log, mut publisher, mut both, mut relay) = (None, None, None, None);
    for phase in phases {
        progress(&format!("round {}: {phase:?}", number + 1));
        match phase {
            Phase::Log => log = Some(limits::log(&stage, &slots[0], &end, rows).await?),
            Phase::Publisher => publisher = Some(limits::publisher(&stage, rows).await?),
            Phase::Both => both = Some(limits::both(&stage, &slots[1], &end, rows).await?),
            Phase::Relay => relay = Some(drain::relay(&stage, rows).await?),
        }
    }
    stage.tear_down(&slots).await?;
    let every = "every phase ran";
    Ok(Round {
        log: log.context(every)?,
        publisher: publisher.context(every)?,
        both: both.context(every)?,
        relay: relay.context(every)?,
    })
}

/// Says on stderr what is going on; stdout is for results.
fn progress(what: &str) {
    // Nobody to tell if stderr is gone.
    let _ = writeln!(std::io::stderr(), "{what}");
}
