//! What was measured, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// What the figures depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Conditions {
    pub(crate) postgresql: String,
    pub(crate) nats: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    /// The machine's load average over the minute before the run.
    pub(crate) load_before: f64,
    pub(crate) events: u32,
    pub(crate) http_events: u32,
    pub(crate) payload_bytes: usize,
    pub(crate) aggregates: u32,
}

/// How fast a phase was, and what it cost the servers.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) events_per_second: f64,
    pub(crate) postgres_us_per_event: f64,
    pub(crate) nats_us_per_event: f64,
}

/// An inbox's phase.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) cost: Cost,
    pub(crate) inbox_us_per_event: f64,
    pub(crate) peak_resident_bytes: u64,
}

/// How long events took that came at a steady pace.
#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// All phases over the same events.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) consumer: Cost,
    pub(crate) insert: Cost,
    pub(crate) both: Cost,
    pub(crate) transactional: Drain,
    pub(crate) http: Drain,
    pub(crate) paced: Latency,
}

impl Round {
    fn slower_limit(&self) -> f64 {
        self.consumer.events_per_second.min(self.insert.events_per_second)
    }
}

/// A figure of each round.
struct Figure {
    key: &'static str,
    title: &'static str,
    decimals: usize,
    of: fn(&Round) -> f64,
}

const MIB: f64 = (1 << 20) as f64;

static FIGURES: [Figure; 21] = [
    figure("consumer_per_second", "bare pull consumer, events/s", 0, |it| {
        it.consumer.events_per_second
    }),
    figure("insert_per_second", "bare INSERT ON CONFLICT, events/s", 0, |it| {
        it.insert.events_per_second
    }),
    figure("both_per_second", "both at once, events/s", 0, |it| it.both.events_per_second),
    figure("both_ratio", "  both at once / slower limit", 2, |it| {
        it.both.events_per_second / it.slower_limit()
    }),
    figure("transactional_per_second", "inbox, transactional, events/s", 0, |it| {
        it.transactional.cost.events_per_second
    }),
    figure("transactional_ratio", "  transactional / slower limit", 2, |it| {
        it.transactional.cost.events_per_second / it.slower_limit()
    }),
    figure("transactional_both_ratio", "  transactional / both at once", 2, |it| {
        it.transactional.cost.events_per_second / it.both.events_per_second
    }),
    figure("http_per_second", "inbox, HTTP, events/s", 0, |it| it.http.cost.events_per_second),
    figure("http_ratio", "  HTTP / slower limit", 2, |it| {
        it.http.cost.events_per_second / it.slower_limit()
    }),
    figure("paced_p50_ms", "HTTP at 500/s, stored to called, p50 in ms", 2, |it| it.paced.p50_ms),
    figure("paced_p99_ms", "  the same, p99 in ms", 2, |it| it.paced.p99_ms),
    figure("transactional_us", "CPU of the inbox, transactional, us/event", 1, |it| {
        it.transactional.inbox_us_per_event
    }),
    figure("transactional_postgres_us", "  PostgreSQL meanwhile", 1, |it| {
        it.transactional.cost.postgres_us_per_event
    }),
    figure("insert_postgres_us", "  the same, bare INSERT", 1, |it| {
        it.insert.postgres_us_per_event
    }),
    figure("transactional_nats_us", "  NATS meanwhile", 1, |it| {
        it.transactional.cost.nats_us_per_event
    }),
    figure("consumer_nats_us", "  the same, bare consumer", 1, |it| it.consumer.nats_us_per_event),
    figure("http_us", "CPU of the inbox, HTTP, us/event", 1, |it| it.http.inbox_us_per_event),
    figure("http_postgres_us", "  PostgreSQL meanwhile", 1, |it| {
        it.http.cost.postgres_us_per_event
    }),
    figure("http_nats_us", "  NATS meanwhile", 1, |it| it.http.cost.nats_us_per_event),
    figure("transactional_peak_mib", "peak RSS, transactional, MiB", 1, |it| {
        it.transactional.peak_resident_bytes as f64 / MIB
    }),
    figure("http_peak_mib", "peak RSS, HTTP, MiB", 1, |it| {
        it.http.peak_resident_bytes as f64 / MIB
    }),
];

const fn figure(
    key: &'static str,
    title: &'static str,
    decimals: usize,
    of: fn(&Round) -> f64,
) -> Figure {
    Figure { key, title, decimals, of }
}

/// Everything.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    conditions: Conditions,
    /// Figures by name, for each round.
    rounds: Vec<BTreeMap<&'static str, f64>>,
    /// Of each figure by itself: ratios are medians of the rounds' ratios.
    median: BTreeMap<&'static str, f64>,
}

impl Report {
    /// Of at least one round.
    pub(crate) fn new(conditions: Conditions, rounds: &[Round]) -> Self {
        let figures = |round: &Round| FIGURES.iter().map(|it| (it.key, (it.of)(round))).collect();
        let all = |it: &Figure| rounds.iter().map(it.of).collect();
        Self {
            conditions,
            median: FIGURES.iter().map(|it| (it.key, median(all(it)))).collect(),
            rounds: rounds.iter().map(figures).collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conditions { postgresql, nats, processor, cores, load_before, .. } = &self.conditions;
        let Conditions { events, http_events, payload_bytes, aggregates, .. } = &self.conditions;
        writeln!(f, "PostgreSQL {postgresql}, NATS {nats}, {cores} cores of {processor}")?;
        writeln!(f, "load average before: {load_before}")?;
        writeln!(
            f,
            "{events} waiting events ({http_events} for HTTP), {payload_bytes}-byte payload, \
             {aggregates} aggregates\n"
        )?;
        write!(f, "{:43}", "")?;
        for number in 1..=self.rounds.len() {
            write!(f, "{:>10}", format!("round {number}"))?;
        }
        writeln!(f, "{:>10}", "median")?;
        for Figure { key, title, decimals, .. } in &FIGURES {
            write!(f, "{title:43}")?;
            for figures in self.rounds.iter().chain([&self.median]) {
                write!(f, "{:>10.decimals$}", figures[key])?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The middle one; of an even number, the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
