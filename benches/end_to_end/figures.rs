//! The figures of a drain, of each round and in the middle.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::measured::Round;

/// A figure of each round.
struct Figure {
    key: &'static str,
    title: &'static str,
    decimals: usize,
    of: fn(&Round) -> f64,
}

const MIB: f64 = (1 << 20) as f64;

static FIGURES: [Figure; 18] = [
    figure("log_per_second", "pg_recvlogical to nothing, events/s", 0, |it| {
        it.log.events_per_second
    }),
    figure("publisher_per_second", "bare publisher, events/s", 0, |it| {
        it.publisher.events_per_second
    }),
    figure("both_per_second", "both at once, events/s", 0, |it| it.both.events_per_second),
    figure("stored_per_second", "relay, stored, events/s", 0, |it| it.relay.stored_per_second),
    figure("flow_per_second", "  the same, from the first one on", 0, |it| {
        it.relay.flow_per_second
    }),
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
    figure("wal_bytes_per_event", "log written by PostgreSQL, bytes/event", 0, |it| {
        it.relay.wal_bytes_per_event
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

/// Figures by name.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

/// A drain, measured in some rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Drained {
    pub(crate) rounds: Vec<Figures>,
    /// Of each figure by itself: ratios are medians of the rounds' ratios.
    pub(crate) median: Figures,
}

impl Drained {
    /// Of at least one round.
    pub(crate) fn new(rounds: &[Round]) -> Self {
        let figures = |round: &Round| FIGURES.iter().map(|it| (it.key, (it.of)(round))).collect();
        let all = |it: &Figure| rounds.iter().map(it.of).collect();
        Self {
            rounds: rounds.iter().map(figures).collect(),
            median: FIGURES.iter().map(|it| (it.key, median(all(it)))).collect(),
        }
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        Ok(())
    }
}

/// The middle one; of an even number, the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
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
