//! Drains of several kinds, each beside its limits.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::Bench;
use super::chart::{Chart, Scale};
use crate::drain;
use crate::figures::{Drained, Figures};
use crate::load::Shape;
use crate::servers::{Keeping, Servers};
use crate::variant::Variant;

/// A drain to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) label: String,
    pub(crate) shape: Shape,
    pub(crate) keeping: Keeping,
    pub(crate) variant: Variant,
    pub(crate) rounds: u32,
}

impl Case {
    /// More would be stuck.
    fn time_max(&self) -> Duration {
        Duration::from_secs(60) + Duration::from_millis(self.shape.rows.into()) * self.rounds
    }
}

/// A drain that was measured.
pub(crate) struct Compared {
    case: Case,
    drained: Drained,
}

/// Measures one case after the other, on servers of their own. What fails is missing.
pub(crate) async fn compare(bench: &mut Bench, cases: Vec<Case>) -> Vec<Compared> {
    let mut compared = Vec::new();
    for case in cases {
        let (label, time_max) = (case.label.clone(), case.time_max());
        compared.extend(bench.measure(&label, time_max, measure(case)).await);
    }
    compared
}

async fn measure(case: Case) -> Result<Compared> {
    let servers = Servers::start(case.keeping).await?;
    let mut rounds = Vec::new();
    for number in 0..case.rounds {
        rounds.push(drain::round(&servers, case.shape, case.variant, number).await?);
    }
    Ok(Compared { drained: Drained::new(&rounds), case })
}

impl Compared {
    pub(crate) fn json(&self) -> serde_json::Value {
        let Case { label, shape, keeping, variant, .. } = &self.case;
        let Self { drained, .. } = self;
        json!({
            "label": label, "shape": shape, "keeping": keeping, "variant": variant,
            "drained": drained,
        })
    }
}

/// The charts that every comparison has.
pub(crate) fn charts(compared: &[Compared]) -> Vec<Chart> {
    let chart = |title, series, decimals, keys: &[&str]| Chart {
        title,
        series,
        scale: Scale::Linear,
        decimals,
        rows: rows(compared, keys),
    };
    vec![
        chart(
            "events/s",
            &["both at once", "stored", "and marked", "from the first"],
            0,
            &["both_per_second", "stored_per_second", "marked_per_second", "flow_per_second"],
        ),
        chart(
            "as a part of both at once",
            &["stored", "and marked"],
            2,
            &["stored_ratio", "marked_ratio"],
        ),
        chart(
            "CPU, us/event",
            &["relay", "PostgreSQL", "NATS"],
            1,
            &["relay_us_per_event", "postgres_us_per_event", "nats_us_per_event"],
        ),
        chart("peak RSS, MiB", &["relay"], 1, &["relay_peak_resident_mib"]),
    ]
}

/// Some figures of each, in the middle.
pub(crate) fn rows(compared: &[Compared], keys: &[&str]) -> Vec<(String, Vec<f64>)> {
    compared.iter().map(|it| row(it, keys)).collect()
}

fn row(compared: &Compared, keys: &[&str]) -> (String, Vec<f64>) {
    let figures: &Figures = &compared.drained.median;
    (compared.case.label.clone(), keys.iter().map(|key| figures[key]).collect())
}
