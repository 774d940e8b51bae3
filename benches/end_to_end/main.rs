//! Measures the relay beside its limits, on throw-away servers.
//!
//! `benches/README.md` says what each figure means. Without `--suite` only the [`headline`] is
//! measured; [`suite`] asks one question after the other and keeps the answers as files.

mod acks;
mod arrivals;
mod bare;
mod bench_env;
mod cpu;
mod drain;
mod figures;
mod headline;
mod latency;
mod limits;
mod load;
mod measured;
mod pace;
mod process;
mod readers;
mod report;
mod servers;
mod suite;
mod turns;
mod variant;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::headline::Size;
use crate::load::Shape;
use crate::suite::Question;

const QUICK: Size = Size { rows: 20_000, rounds: 1, latency_seconds: 5 };
const FULL: Size = Size { rows: Shape::DEFAULT.rows, rounds: 3, latency_seconds: 20 };

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
    /// Ask every question, in about half an hour, and write the answers to files
    #[arg(long, conflicts_with_all = ["rows", "rounds", "json"])]
    suite: bool,
    /// Ask only these questions
    #[arg(long, requires = "suite", value_delimiter = ',', value_name = "QUESTION")]
    only: Vec<Question>,
    /// Add a backlog of five million rows, and verify ten million: minutes, and 20 GB
    #[arg(long, requires = "suite", conflicts_with = "quick")]
    large: bool,
    /// Where the answers go [default: benches/results, with --quick a temporary folder]
    #[arg(long, requires = "suite", value_name = "FOLDER")]
    results: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    if cli.suite {
        let folder = cli.results.unwrap_or_else(|| suite::default_folder(cli.quick));
        let whole = suite::run(&cli.only, cli.quick, cli.large, &folder).await?;
        return Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let Size { rows, rounds, latency_seconds } = if cli.quick { QUICK } else { FULL };
    let (rows, rounds) = (cli.rows.unwrap_or(rows), cli.rounds.unwrap_or(rounds));
    headline::run(Size { rows, rounds, latency_seconds }, cli.json).await?;
    Ok(ExitCode::SUCCESS)
}

/// Says on stderr what is going on; stdout is for results.
fn progress(what: &str) {
    // Nobody to tell if stderr is gone.
    let _ = writeln!(std::io::stderr(), "{what}");
}
