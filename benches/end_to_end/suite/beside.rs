//! What do a replay at full rate, and retention, cost new events?

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::Bench;
use super::answer::Answer;
use super::chart::{Chart, Scale};
use crate::figures::median;
use crate::latency::{self, Work};
use crate::measured::{Latency, Quantiles};
use crate::pace::Pace;
use crate::servers::{Keeping, Servers};

const ROUNDS: u32 = 3;
const RATES: [u32; 2] = [1_000, 5_000];
const WORK: [Work; 3] = [Work::None, Work::Replay, Work::Retention];
const TRANSACTIONS_PER_SECOND: u32 = 500;

/// Rows that outlast the events, at the rate at which they are worked on.
const ROWS: u32 = 600_000;
const SECONDS: u32 = 10;

const QUICK_ROWS: u32 = 60_000;
const QUICK_SECONDS: u32 = 1;

const TIME_MAX: Duration = Duration::from_secs(300);

/// Beside other work p99 may be so many times what it is alone.
const TIMES_MAX: f64 = 2.0;

struct Measured {
    rate: u32,
    work: Work,
    latency: Latency,
    /// Rows worked on.
    per_second: f64,
}

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let (rows, seconds, rounds) = match bench.quick {
        true => (QUICK_ROWS, QUICK_SECONDS, 1),
        false => (ROWS, SECONDS, ROUNDS),
    };
    let mut measured = Vec::new();
    for round in 0..rounds as usize {
        for events_per_second in RATES {
            for turn in 0..WORK.len() {
                let work = WORK[(turn + round) % WORK.len()];
                let events_per_transaction = events_per_second / TRANSACTIONS_PER_SECOND;
                let pace = Pace { events_per_second, events_per_transaction, seconds };
                let label = told(events_per_second, work);
                measured.extend(bench.measure(&label, TIME_MAX, measure(pace, rows, work)).await);
            }
        }
    }
    let measured = All(measured);
    measured.judge(bench);
    Answer {
        title: "What do a replay at full rate, and retention, cost new events?",
        points: measured.0.iter().map(Measured::json).collect(),
        charts: measured.charts(),
    }
}

fn told(rate: u32, work: Work) -> String {
    let beside = match work {
        Work::None => "alone",
        Work::Replay => "beside a replay",
        Work::Retention => "beside retention",
    };
    format!("{rate}/s, {beside}")
}

/// The same rows lie there, whatever is done with them.
async fn measure(pace: Pace, rows: u32, work: Work) -> Result<Measured> {
    let servers = Servers::start(Keeping::DEFAULT).await?;
    let (latency, per_second) = latency::measure_beside(&servers, pace, rows, work).await?;
    Ok(Measured { rate: pace.events_per_second, work, latency, per_second })
}

impl Measured {
    fn json(&self) -> serde_json::Value {
        let Self { rate, work, latency, per_second } = self;
        json!({
            "label": told(*rate, *work), "latency_ms": latency, "worked_on_per_second": per_second,
        })
    }
}

struct All(Vec<Measured>);

impl All {
    /// In the middle of the rounds; `None` if there is none.
    fn median(&self, rate: u32, work: Work, of: &dyn Fn(&Measured) -> f64) -> Option<f64> {
        let its = self.0.iter().filter(|it| it.rate == rate && it.work == work);
        let values: Vec<f64> = its.map(of).collect();
        (!values.is_empty()).then(|| median(values))
    }

    fn p99(&self, rate: u32, work: Work) -> Option<f64> {
        self.median(rate, work, &|it| it.latency.commit_to_ack.p99)
    }

    /// As a multiple of what it is alone.
    fn times(&self, rate: u32, work: Work) -> Option<f64> {
        Some(self.p99(rate, work)? / self.p99(rate, Work::None)?)
    }

    fn judge(&self, bench: &mut Bench) {
        for (rate, work) in cases() {
            let times = self.times(rate, work).unwrap_or(0.0);
            if times > TIMES_MAX && !bench.quick {
                bench.fail(format!(
                    "{}: p99 is {times:.1} times what it is alone",
                    told(rate, work)
                ));
            }
        }
    }

    fn charts(&self) -> Vec<Chart> {
        let quantiles: [fn(&Quantiles) -> f64; 4] =
            [|it| it.p50, |it| it.p99, |it| it.p99_9, |it| it.max];
        let times = cases().filter_map(|(rate, work)| {
            let row = quantiles
                .iter()
                .map(|quantile| self.median(rate, work, &|it| quantile(&it.latency.commit_to_ack)));
            Some((told(rate, work), row.collect::<Option<Vec<_>>>()?))
        });
        let row = |of: &dyn Fn(u32, Work) -> Option<f64>| {
            let beside = cases().filter(|(_, work)| *work != Work::None);
            let rows =
                beside.filter_map(|(rate, work)| Some((told(rate, work), vec![of(rate, work)?])));
            rows.collect::<Vec<_>>()
        };
        let chart =
            |title, series, decimals, scale, rows| Chart { title, series, scale, decimals, rows };
        vec![
            chart(
                "just before COMMIT to ack, ms",
                &["p50", "p99", "p99.9", "max"],
                2,
                Scale::Logarithmic,
                times.collect(),
            ),
            chart(
                "p99, as a multiple of alone",
                &["median"],
                2,
                Scale::Linear,
                row(&|rate, work| self.times(rate, work)),
            ),
            chart(
                "rows worked on, a second",
                &["median"],
                0,
                Scale::Linear,
                row(&|rate, work| self.median(rate, work, &|it| it.per_second)),
            ),
        ]
    }
}

fn cases() -> impl Iterator<Item = (u32, Work)> {
    RATES.into_iter().flat_map(|rate| WORK.into_iter().map(move |work| (rate, work)))
}
