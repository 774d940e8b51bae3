//! The short run: the drain at the default point, and latency at an easy pace.

use std::io::Write;

use anyhow::{Context, Result};

use crate::load::Shape;
use crate::pace::Pace;
use crate::report::Report;
use crate::servers::{Keeping, Servers};
use crate::variant::Variant;
use crate::{drain, latency, progress};

/// How much is measured.
pub(crate) struct Size {
    pub(crate) rows: u32,
    pub(crate) rounds: u32,
    pub(crate) latency_seconds: u32,
}

/// Measures, and prints the report.
pub(crate) async fn run(size: Size, json: bool) -> Result<()> {
    let servers = Servers::start(Keeping::DEFAULT).await?;
    let conditions = servers.conditions().await?;
    let shape = Shape { rows: size.rows, ..Shape::DEFAULT };
    let mut rounds = Vec::new();
    for number in 0..size.rounds {
        progress(&format!("round {} of {}", number + 1, size.rounds));
        let round = drain::round(&servers, shape, Variant::DEFAULT, number).await;
        rounds.push(round.with_context(|| format!("round {number}"))?);
    }
    progress("latency: paced events, one per transaction");
    let seconds = size.latency_seconds;
    let pace = Pace { events_per_second: 500, events_per_transaction: 1, seconds };
    let latency = latency::measure(&servers, pace).await.context("measure latency")?;

    let report = Report::new(conditions, shape, &rounds, latency);
    let text = if json { serde_json::to_string(&report)? + "\n" } else { report.to_string() };
    std::io::stdout().write_all(text.as_bytes()).context("print the report")
}
