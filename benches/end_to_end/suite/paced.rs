//! Latency at several paces, each beside its limit.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::Bench;
use super::chart::{Chart, Scale};
use crate::latency;
use crate::measured::{Latency, Quantiles};
use crate::pace::Pace;
use crate::servers::{Keeping, Servers};

/// Latency to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) label: String,
    pub(crate) keeping: Keeping,
    pub(crate) pace: Pace,
}

impl Case {
    /// More would be stuck.
    fn time_max(&self) -> Duration {
        Duration::from_secs(120) + 4 * Duration::from_secs(self.pace.seconds.into())
    }
}

/// Latency that was measured.
pub(crate) struct Paced {
    case: Case,
    latency: Latency,
}

/// Measures one case after the other, on servers of their own. What fails is missing.
pub(crate) async fn paced(bench: &mut Bench, cases: Vec<Case>) -> Vec<Paced> {
    let mut paced = Vec::new();
    for case in cases {
        let (label, time_max) = (case.label.clone(), case.time_max());
        paced.extend(bench.measure(&label, time_max, measure(case)).await);
    }
    paced
}

/// Cases whose acknowledgements come later than they may count as failed. They are shown all the same.
pub(crate) fn fail_above(bench: &mut Bench, paced: &[Paced], p99_max_ms: f64) {
    for it in paced {
        let p99_ms = it.latency.commit_to_ack.p99;
        if p99_ms > p99_max_ms {
            let label = &it.case.label;
            bench.fail(format!(
                "{label}: p99 from COMMIT to acknowledgement is {p99_ms:.1} ms, more than \
                 {p99_max_ms} ms"
            ));
        }
    }
}

async fn measure(case: Case) -> Result<Paced> {
    let servers = Servers::start(case.keeping).await?;
    let latency = latency::measure(&servers, case.pace).await?;
    Ok(Paced { latency, case })
}

impl Paced {
    pub(crate) fn json(&self) -> serde_json::Value {
        let Case { label, keeping, .. } = &self.case;
        json!({ "label": label, "keeping": keeping, "latency_ms": self.latency })
    }
}

/// The charts that every series of paces has.
pub(crate) fn charts(paced: &[Paced]) -> Vec<Chart> {
    const QUANTILES: &[&str] = &["p50", "p99", "p99.9", "max"];
    let chart = |title, series, scale, row: &dyn Fn(&Paced) -> Vec<f64>| Chart {
        title,
        series,
        scale,
        decimals: if scale == Scale::Logarithmic { 2 } else { 1 },
        rows: paced.iter().map(|it| (it.case.label.clone(), row(it))).collect(),
    };
    let times = |title, of: fn(&Latency) -> Quantiles| {
        chart(title, QUANTILES, Scale::Logarithmic, &|it| of(&it.latency).values().to_vec())
    };
    let cpu = |it: &Paced| {
        let Latency { relay_us_per_event, cost, .. } = &it.latency;
        vec![*relay_us_per_event, cost.postgres_us_per_event, cost.nats_us_per_event]
    };
    let resident =
        |it: &Paced| vec![it.latency.relay_peak_resident_bytes as f64 / f64::from(1 << 20)];
    vec![
        times("intended time to consumer, ms", |it| it.consumed),
        times("  the same, bare publisher, ms", |it| it.bare),
        times("intended time to ack, ms", |it| it.acked),
        times("intended time to COMMIT's end, ms", |it| it.committed),
        times("just before COMMIT to consumer, ms", |it| it.commit_to_consumer),
        times("just before COMMIT to ack, ms", |it| it.commit_to_ack),
        chart("CPU, us/event", &["relay", "PostgreSQL", "NATS"], Scale::Linear, &cpu),
        chart("peak RSS, MiB", &["relay"], Scale::Linear, &resident),
    ]
}
