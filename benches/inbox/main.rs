//! Measures the inbox beside its limits, on throw-away servers.
//!
//! Every round stores events in streams of its own and takes them: with a bare pull
//! consumer, with an inbox whose transactional handler does nothing, and with one that calls an HTTP
//! service; the fourth writes the same records without any stream, and the fifth is the first and the
//! fourth at once. A sixth phase stores events at a steady pace while an inbox calls the service. The
//! order changes from round to round. `benches/README.md` says what each figure means.

// What both benchmarks measure in the same way.
mod bench_env;
#[expect(dead_code, reason = "the other benchmark needs more of it")]
#[path = "../end_to_end/cpu.rs"]
mod cpu;
mod drain;
mod limits;
mod paced;
mod report;
mod worker;

use std::io::Write;

use anyhow::{Context, Result};
use clap::Parser;

use crate::bench_env::{BenchEnv, Measured, Servers};
use crate::report::{Report, Round};
use crate::worker::Mode;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const EVENTS: u32 = 100_000;
const ROUNDS: u32 = 3;
const QUICK_EVENTS: u32 = 10_000;

/// Events that come at a steady pace.
const PACED_EVENTS: u32 = 5_000;
const QUICK_PACED_EVENTS: u32 = 1_000;

/// The HTTP phase gets one in so many of the events: it takes longer for each.
const HTTP_PART: u32 = 5;

/// Measures the inbox beside its limits, on throw-away servers
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Cli {
    /// Events that wait to be handled [default: 100000, with --quick 10000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    events: Option<u32>,
    /// How often everything is measured; the medians count [default: 3, with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Only see that it works: the figures mean little
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Handlers of the HTTP phases at a time
    #[arg(long, default_value_t = worker::HTTP_LANES)]
    lanes: usize,
    /// Measure the inbox of another build of this program
    #[arg(long, hide = true)]
    inbox: Option<std::path::PathBuf>,
    /// Be the inbox that is measured
    #[arg(long, hide = true)]
    worker: Option<Mode>,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Consumer,
    Insert,
    Both,
    Transactional,
    Http,
    Paced,
}

const PHASES: [Phase; 6] =
    [Phase::Consumer, Phase::Insert, Phase::Both, Phase::Transactional, Phase::Http, Phase::Paced];

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(mode) = cli.worker {
        return Box::pin(worker::run(mode)).await;
    }
    let (events, rounds) = if cli.quick { (QUICK_EVENTS, 1) } else { (EVENTS, ROUNDS) };
    let (events, rounds) = (cli.events.unwrap_or(events), cli.rounds.unwrap_or(rounds));
    let paced = if cli.quick { QUICK_PACED_EVENTS } else { PACED_EVENTS };
    let servers = Servers::start(Measured { lanes: cli.lanes, inbox: cli.inbox, paced }).await?;
    let conditions = servers.conditions(events).await?;
    let mut done = Vec::new();
    for number in 0..rounds {
        let measured = round(&servers, events, number).await;
        done.push(measured.with_context(|| format!("round {}", number + 1))?);
    }
    let report = Report::new(conditions, &done);
    let text = if cli.json { serde_json::to_string(&report)? + "\n" } else { report.to_string() };
    std::io::stdout().write_all(text.as_bytes()).context("print the report")
}

async fn round(servers: &Servers, events: u32, number: u32) -> Result<Round> {
    progress(&format!("round {}: storing {events} events", number + 1));
    let env = BenchEnv::set_up(servers, &format!("round{number}"), events).await?;
    let mut phases = PHASES;
    phases.rotate_left(number as usize % PHASES.len());
    let (mut consumer, mut insert, mut transactional) = (None, None, None);
    let (mut both, mut http, mut paced) = (None, None, None);
    for phase in phases {
        progress(&format!("round {}: {phase:?}", number + 1));
        env.checkpoint().await?;
        match phase {
            Phase::Consumer => consumer = Some(limits::consumer(&env).await?),
            Phase::Insert => insert = Some(limits::insert(&env).await?),
            Phase::Both => both = Some(limits::both(&env).await?),
            Phase::Transactional => transactional = Some(drain::transactional(&env).await?),
            Phase::Http => http = Some(drain::http(&env).await?),
            Phase::Paced => paced = Some(paced::http(&env).await?),
        }
    }
    env.tear_down().await?;
    let every = "every phase ran";
    Ok(Round {
        consumer: consumer.context(every)?,
        insert: insert.context(every)?,
        both: both.context(every)?,
        transactional: transactional.context(every)?,
        http: http.context(every)?,
        paced: paced.context(every)?,
    })
}

/// Says on stderr what is going on; stdout is for results.
fn progress(what: &str) {
    // Nobody to tell if stderr is gone.
    let _ = writeln!(std::io::stderr(), "{what}");
}
