//! Who saw which event when.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use uuid::Uuid;

/// Latencies are kept in microseconds, with three significant digits.
pub(super) type Latencies = Histogram<u64>;

/// Shared by producer and consumer.
pub(super) struct Journal {
    inner: Mutex<Inner>,
}

struct Inner {
    // Events under way.
    sent: HashMap<Uuid, Instant>,
    received: Vec<Received>,
    all: Latencies,
}

/// A message that the consumer got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) sequence: u64,
    pub(super) id: Uuid,
}

impl Journal {
    pub(super) fn new() -> Self {
        let inner = Inner { sent: HashMap::new(), received: Vec::new(), all: histogram() };
        Self { inner: Mutex::new(inner) }
    }

    /// The producer is about to send COMMIT.
    ///
    /// The clock starts here, not when COMMIT returns: the consumer may well be faster than the
    /// answer to the producer, so the latency shown includes the commit itself.
    pub(super) fn committing(&self, ids: &[Uuid]) {
        let now = Instant::now();
        self.lock().sent.extend(ids.iter().map(|id| (*id, now)));
    }

    /// The consumer got an event, at `at`.
    pub(super) fn received(&self, event: Received, at: Instant) {
        let mut inner = self.lock();
        inner.received.push(event);
        if let Some(sent) = inner.sent.remove(&event.id) {
            inner.all.saturating_record(micros(at - sent));
        }
    }

    pub(super) fn received_count(&self) -> u64 {
        self.lock().received.len() as u64
    }

    /// Everything the consumer got, in its order, and all latencies.
    pub(super) fn take(&self) -> (Vec<Received>, Latencies) {
        let mut inner = self.lock();
        (std::mem::take(&mut inner.received), inner.all.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The latencies of these durations.
pub(super) fn latencies(durations: impl Iterator<Item = Duration>) -> Latencies {
    let mut all = histogram();
    for duration in durations {
        all.saturating_record(micros(duration));
    }
    all
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn histogram() -> Latencies {
    // An hour is longer than any demo.
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("valid bounds")
}

/// Microseconds as milliseconds with two decimals.
#[allow(clippy::cast_precision_loss, reason = "below 2^53 microseconds: 285 years")]
pub(super) fn millis(micros: u64) -> f64 {
    (micros as f64 / 10.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_runs_from_the_commit_to_the_consumer() {
        let journal = Journal::new();
        let id = Uuid::now_v7();
        journal.committing(&[id, Uuid::now_v7()]);
        let at = Instant::now() + Duration::from_millis(7);
        journal.received(Received { sequence: 1, id }, at);
        let (received, latencies) = journal.take();
        assert_eq!((received.len(), latencies.len()), (1, 1));
        assert!((7_000..60_000).contains(&latencies.max()), "{}", latencies.max());
    }

    #[test]
    fn milliseconds_have_two_decimals() {
        assert!((millis(1_239) - 1.24).abs() < f64::EPSILON);
    }
}
