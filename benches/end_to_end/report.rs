//! What was measured, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
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
    pub(crate) rows: u32,
    pub(crate) payload_bytes: usize,
    pub(crate) aggregates: u32,
    pub(crate) rows_per_transaction: u32,
    /// The bare publisher's, in messages.
    pub(crate) window: u32,
}

/// How long a phase took, and what it cost the servers.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    pub(crate) events_per_second: f64,
    pub(crate) postgres_us_per_event: f64,
    pub(crate) nats_us_per_event: f64,
}

/// The relay's phase.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) stored_seconds: f64,
    pub(crate) stored_per_second: f64,
    pub(crate) marked: Cost,
    pub(crate) relay_us_per_event: f64,
    pub(crate) relay_peak_resident_bytes: u64,
}

/// All phases over the same rows.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) log: Cost,
    pub(crate) publisher: Cost,
    pub(crate) both: Cost,
    pub(crate) relay: Drain,
}

/// Of paced events.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) events_per_second: u32,
    pub(crate) events: u32,
    /// Processor time of the relay per time passed.
    pub(crate) relay_cores: f64,
    pub(crate) from_commit: Quantiles,
    pub(crate) from_schedule: Quantiles,
}

/// Milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Quantiles {
    p50: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

impl Quantiles {
    /// Of a histogram of microseconds.
    pub(crate) fn of(micros: &Histogram<u64>) -> Self {
        let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99), p99_9: at(0.999), max: micros.max() as f64 / 1e3 }
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

static FIGURES: [Figure; 16] = [
    figure("log_per_second", "pg_recvlogical to nothing, events/s", 0, |it| {
        it.log.events_per_second
    }),
    figure("publisher_per_second", "bare publisher, events/s", 0, |it| {
        it.publisher.events_per_second
    }),
    figure("both_per_second", "both at once, events/s", 0, |it| it.both.events_per_second),
    figure("stored_per_second", "relay, stored, events/s", 0, |it| it.relay.stored_per_second),
    figure("marked_per_second", "relay, stored and marked, events/s", 0, |it| {
        it.relay.marked.events_per_second
    }),
    figure("stored_ratio", "  stored / both at once", 2, |it| {
        it.relay.stored_per_second / it.both.events_per_second
    }),
    figure("marked_ratio", "  stored and marked / both at once", 2, |it| {
        it.relay.marked.events_per_second / it.both.events_per_second
    }),
    figure("both_seconds", "both at once, s", 2, |it| it.both.seconds),
    figure("stored_seconds", "relay, stored, s", 2, |it| it.relay.stored_seconds),
    figure("marked_seconds", "relay, stored and marked, s", 2, |it| it.relay.marked.seconds),
    figure("relay_us_per_event", "CPU of the relay, us/event", 1, |it| it.relay.relay_us_per_event),
    figure("postgres_us_per_event", "CPU of PostgreSQL, us/event", 1, |it| {
        it.relay.marked.postgres_us_per_event
    }),
    figure("both_postgres_us_per_event", "  the same, both at once", 1, |it| {
        it.both.postgres_us_per_event
    }),
    figure("nats_us_per_event", "CPU of NATS, us/event", 1, |it| it.relay.marked.nats_us_per_event),
    figure("both_nats_us_per_event", "  the same, both at once", 1, |it| it.both.nats_us_per_event),
    figure("relay_peak_resident_mib", "peak RSS of the relay, MiB", 1, |it| {
        it.relay.relay_peak_resident_bytes as f64 / MIB
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
    latency_ms: Latency,
}

impl Report {
    /// Of at least one round.
    pub(crate) fn new(conditions: Conditions, rounds: Vec<Round>, latency_ms: Latency) -> Self {
        let figures = |round: &Round| FIGURES.iter().map(|it| (it.key, (it.of)(round))).collect();
        let all = |it: &Figure| rounds.iter().map(it.of).collect();
        Self {
            conditions,
            median: FIGURES.iter().map(|it| (it.key, median(all(it)))).collect(),
            rounds: rounds.iter().map(figures).collect(),
            latency_ms,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conditions { postgresql, nats, processor, cores, load_before, .. } = &self.conditions;
        let Conditions { rows, payload_bytes, aggregates, rows_per_transaction, .. } =
            &self.conditions;
        writeln!(f, "PostgreSQL {postgresql}, NATS {nats}, {cores} cores of {processor}")?;
        writeln!(f, "load average before: {load_before}")?;
        writeln!(
            f,
            "{rows} waiting rows, {payload_bytes}-byte payload, {aggregates} aggregates, \
             {rows_per_transaction} rows a transaction\n"
        )?;
        write!(f, "{:38}", "")?;
        for number in 1..=self.rounds.len() {
            write!(f, "{:>10}", format!("round {number}"))?;
        }
        writeln!(f, "{:>10}", "median")?;
        for Figure { key, title, decimals, .. } in &FIGURES {
            write!(f, "{title:38}")?;
            for figures in self.rounds.iter().chain([&self.median]) {
                write!(f, "{:>10.decimals$}", figures[key])?;
            }
            writeln!(f)?;
        }
        write!(f, "\n{}", self.latency_ms)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, events_per_second, relay_cores, from_commit, from_schedule } = self;
        let title = format!("{events} events at {events_per_second}/s, latency in ms");
        writeln!(f, "{title:38}{:>10}{:>10}{:>10}{:>10}", "p50", "p99", "p99.9", "max")?;
        for (title, it) in [
            ("from just before COMMIT to consumer", from_commit),
            ("from the intended time to consumer", from_schedule),
        ] {
            let Quantiles { p50, p99, p99_9, max } = it;
            writeln!(f, "{title:38}{p50:>10.2}{p99:>10.2}{p99_9:>10.2}{max:>10.2}")?;
        }
        writeln!(f, "CPU of the relay meanwhile: {:.1} % of a core", relay_cores * 100.0)
    }
}

/// The middle one; of an even number, the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0, 2.0, 9.0]) - 3.0).abs() < f64::EPSILON);
    }
}
