//! What was measured: one value for each phase.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::pace::Pace;

/// Messages of the bare publisher that may be unacknowledged.
pub(crate) const WINDOW: u32 = 1_024;

/// What all figures depend on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Conditions {
    /// The relay's.
    pub(crate) version: &'static str,
    pub(crate) postgresql: String,
    pub(crate) nats: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    /// The machine's load average over the minute before the run.
    pub(crate) load_before: f64,
    /// The bare publisher's, in messages.
    pub(crate) window: u32,
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, postgresql, nats, processor, cores, load_before, .. } = self;
        writeln!(
            f,
            "tailpost {version}, PostgreSQL {postgresql}, NATS {nats}, {cores} cores of {processor}"
        )?;
        writeln!(f, "load average before: {load_before}")
    }
}

/// How long a phase took, and what it cost the servers.
#[derive(Debug, Serialize)]
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
    /// The same, counted from when the first events are stored: without the start.
    pub(crate) flow_per_second: f64,
    pub(crate) marked: Cost,
    /// What PostgreSQL wrote to its log until then, marks mostly.
    pub(crate) wal_bytes_per_event: f64,
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

/// Of paced events. Since the intended time, unless the name says since when.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) pace: Pace,
    /// Until COMMIT returned to the producer.
    pub(crate) committed: Quantiles,
    /// Until the broker's acknowledgement was overheard.
    pub(crate) acked: Quantiles,
    /// Until the event was at the consumer.
    pub(crate) consumed: Quantiles,
    pub(crate) commit_to_ack: Quantiles,
    pub(crate) commit_to_consumer: Quantiles,
    /// The limit: messages on the same schedule, published without a database and a relay, at the
    /// consumer.
    pub(crate) bare: Quantiles,
    /// Events whose acknowledgement was not overheard: in no figure of acknowledgements.
    pub(crate) acks_missed: u32,
    /// Until everything had arrived.
    pub(crate) cost: Cost,
    /// Processor time of the relay per time passed.
    pub(crate) relay_cores: f64,
    pub(crate) relay_us_per_event: f64,
    pub(crate) relay_peak_resident_bytes: u64,
}

/// Milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

impl Quantiles {
    /// Of a histogram of microseconds.
    pub(crate) fn of(micros: &Histogram<u64>) -> Self {
        let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99), p99_9: at(0.999), max: micros.max() as f64 / 1e3 }
    }

    /// In the order of the struct.
    pub(crate) fn values(self) -> [f64; 4] {
        [self.p50, self.p99, self.p99_9, self.max]
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pace { events_per_second, .. } = self.pace;
        let title =
            format!("{} events at {events_per_second}/s, latency in ms", self.pace.events());
        writeln!(f, "{title:38}{:>10}{:>10}{:>10}{:>10}", "p50", "p99", "p99.9", "max")?;
        for (title, quantiles) in [
            ("from just before COMMIT to the ack", self.commit_to_ack),
            ("from just before COMMIT to consumer", self.commit_to_consumer),
            ("from the intended time to COMMIT's end", self.committed),
            ("from the intended time to the ack", self.acked),
            ("from the intended time to consumer", self.consumed),
            ("  the same, bare publisher", self.bare),
        ] {
            let [p50, p99, p99_9, max] = quantiles.values();
            writeln!(f, "{title:38}{p50:>10.2}{p99:>10.2}{p99_9:>10.2}{max:>10.2}")?;
        }
        writeln!(f, "CPU of the relay meanwhile: {:.1} % of a core", self.relay_cores * 100.0)
    }
}
