//! What do a replay at full rate, and retention, cost new events?

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::Bench;
use super::answer::Answer;
use super::chart::{Chart, Scale};
use crate::figures::median;
use crate::latency::{self, Beside, Work};
use crate::measured::Quantiles;
use crate::pace::Pace;
use crate::servers::{Keeping, Servers};
use crate::turns::InTurns;

const ROUNDS: u32 = 3;
const RATES: [u32; 2] = [1_000, 5_000];
const WORK: [Work; 3] = [Work::None, Work::Replay, Work::Retention];
const TRANSACTIONS_PER_SECOND: u32 = 500;

/// Rows that outlast the events, at the rate at which they are worked on.
const ROWS: u32 = 300_000;
const SECONDS: u32 = 10;
const SECONDS_IN_TURNS: u32 = 60;

const QUICK_ROWS: u32 = 60_000;
const QUICK_SECONDS: u32 = 2;
const QUICK_SECONDS_IN_TURNS: u32 = 16;

const TIME_MAX: Duration = Duration::from_secs(300);

/// Beside other work p99 may be so many times what it is without.
const TIMES_MAX: f64 = 2.0;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Alone,
    /// In turns with what follows.
    Paused,
    Replay,
    Retention,
}

const CASES: [Case; 4] = [Case::Alone, Case::Retention, Case::Paused, Case::Replay];

impl Case {
    /// What it is compared with.
    fn without(self) -> Option<Self> {
        match self {
            Self::Alone | Self::Paused => None,
            Self::Replay => Some(Self::Paused),
            Self::Retention => Some(Self::Alone),
        }
    }
}

struct Measured {
    rate: u32,
    case: Case,
    /// From just before COMMIT to the acknowledgement.
    quantiles: Quantiles,
    /// Milliseconds; in turns, that in the middle of the turns.
    p99: f64,
    /// Rows worked on.
    per_second: f64,
}

/// One run, and what is said of it.
struct Run {
    measured: Vec<Measured>,
    json: serde_json::Value,
}

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let rounds = if bench.quick { 1 } else { ROUNDS };
    let mut runs = Vec::new();
    for round in 0..rounds as usize {
        for rate in RATES {
            for turn in 0..WORK.len() {
                let work = WORK[(turn + round) % WORK.len()];
                let run = measure(rate, work, bench.quick);
                runs.extend(bench.measure(&label(rate, work), TIME_MAX, run).await);
            }
        }
    }
    let (measured, points) = runs.into_iter().map(|it| (it.measured, it.json)).unzip();
    let measured: Vec<Vec<Measured>> = measured;
    let measured = All(measured.into_iter().flatten().collect());
    measured.judge(bench);
    Answer {
        title: "What do a replay at full rate, and retention, cost new events?",
        points,
        charts: measured.charts(),
    }
}

fn label(rate: u32, work: Work) -> String {
    let beside = match work {
        Work::None => "alone",
        Work::Replay => "in turns with a replay",
        Work::Retention => "beside retention",
    };
    format!("{rate}/s, {beside}")
}

fn told(rate: u32, case: Case) -> String {
    let beside = match case {
        Case::Alone => "alone",
        Case::Paused => "replay paused",
        Case::Replay => "beside a replay",
        Case::Retention => "beside retention",
    };
    format!("{rate}/s, {beside}")
}

/// The same rows lie there, whatever is done with them.
async fn measure(rate: u32, work: Work, quick: bool) -> Result<Run> {
    let seconds = match (work, quick) {
        (Work::Replay, false) => SECONDS_IN_TURNS,
        (Work::Replay, true) => QUICK_SECONDS_IN_TURNS,
        (_, false) => SECONDS,
        (_, true) => QUICK_SECONDS,
    };
    let events_per_transaction = rate / TRANSACTIONS_PER_SECOND;
    let pace = Pace { events_per_second: rate, events_per_transaction, seconds };
    let rows = if quick { QUICK_ROWS } else { ROWS };
    let servers = Servers::start(Keeping::DEFAULT).await?;
    let Beside { latency, turns, per_second } =
        latency::measure_beside(&servers, pace, rows, work).await?;
    let json = json!({
        "label": label(rate, work), "latency_ms": latency, "in_turns_ms": turns,
        "worked_on_per_second": per_second,
    });
    let measured = |case, quantiles: Quantiles, p99, per_second| Measured {
        rate,
        case,
        quantiles,
        p99,
        per_second,
    };
    let whole = latency.commit_to_ack;
    let measured = match (work, turns) {
        (_, Some(InTurns { paused, beside, copies_per_second })) => vec![
            measured(Case::Paused, paused.quantiles, paused.p99, 0.0),
            measured(Case::Replay, beside.quantiles, beside.p99, copies_per_second),
        ],
        (Work::Retention, None) => vec![measured(Case::Retention, whole, whole.p99, per_second)],
        (_, None) => vec![measured(Case::Alone, whole, whole.p99, 0.0)],
    };
    Ok(Run { measured, json })
}

struct All(Vec<Measured>);

impl All {
    /// In the middle of the rounds; `None` if there is none.
    fn median(&self, rate: u32, case: Case, of: &dyn Fn(&Measured) -> f64) -> Option<f64> {
        let its = self.0.iter().filter(|it| it.rate == rate && it.case == case);
        let values: Vec<f64> = its.map(of).collect();
        (!values.is_empty()).then(|| median(values))
    }

    /// As a multiple of what it is without; `None` too for what is compared with nothing.
    fn times(&self, rate: u32, case: Case) -> Option<f64> {
        let p99 = |case| self.median(rate, case, &|it| it.p99);
        Some(p99(case)? / p99(case.without()?)?)
    }

    fn judge(&self, bench: &mut Bench) {
        for (rate, case) in cases() {
            let times = self.times(rate, case).unwrap_or(0.0);
            if times > TIMES_MAX && !bench.quick {
                bench.fail(format!(
                    "{}: p99 is {times:.1} times what it is without",
                    told(rate, case)
                ));
            }
        }
    }

    fn charts(&self) -> Vec<Chart> {
        let quantiles: [fn(&Quantiles) -> f64; 4] =
            [|it| it.p50, |it| it.p99, |it| it.p99_9, |it| it.max];
        let times = cases().filter_map(|(rate, case)| {
            let row = quantiles
                .iter()
                .map(|quantile| self.median(rate, case, &|it| quantile(&it.quantiles)));
            Some((told(rate, case), row.collect::<Option<Vec<_>>>()?))
        });
        let row = |of: &dyn Fn(u32, Case) -> Option<f64>| {
            let beside = cases().filter(|(_, case)| case.without().is_some());
            let rows =
                beside.filter_map(|(rate, case)| Some((told(rate, case), vec![of(rate, case)?])));
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
                "p99, as a multiple of without",
                &["median"],
                2,
                Scale::Linear,
                row(&|rate, case| self.times(rate, case)),
            ),
            chart(
                "rows worked on, a second",
                &["median"],
                0,
                Scale::Linear,
                row(&|rate, case| self.median(rate, case, &|it| it.per_second)),
            ),
        ]
    }
}

fn cases() -> impl Iterator<Item = (u32, Case)> {
    RATES.into_iter().flat_map(|rate| CASES.into_iter().map(move |case| (rate, case)))
}
