//! A histogram of durations, cheap to copy, with the buckets of both kinds of Prometheus histograms.

use std::time::Duration;

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Buckets to a power of two: each bound is 9 % above the one before.
const PER_OCTAVE: i32 = 8;

/// The upper bound of the zero bucket is 2 to this power, in seconds: 8 µs.
const LOWEST_OCTAVE: i32 = -17;

/// Nothing is told apart above 2 to this power: 2.3 hours.
const HIGHEST_OCTAVE: i32 = 13;

const NATIVE: usize = ((HIGHEST_OCTAVE - LOWEST_OCTAVE) * PER_OCTAVE) as usize;

/// A histogram of durations with fixed bounds, cheap to copy.
///
/// As JSON it has `buckets`, too: pairs of a native bucket's number and how many durations it has,
/// without the empty ones. Bucket n ends at 2^(n/8) seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// How many durations there are for each bound of [`BOUNDS`](Self::BOUNDS), and above all.
    pub counts: [u64; 16],
    /// Their sum, in seconds.
    pub sum_seconds: f64,
    zero: u64,
    native: [u64; NATIVE],
}

/// The buckets of a native histogram of Prometheus, of schema [`Latency::SCHEMA`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NativeBuckets {
    /// How many durations are at most [`Latency::ZERO_THRESHOLD`].
    pub zero: u64,
    /// Runs of buckets: how far each begins behind the one before, and how many it has.
    pub spans: Vec<(i32, u32)>,
    /// By how much each bucket's number differs from that of the one before.
    pub deltas: Vec<i64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: [0; 16], sum_seconds: 0.0, zero: 0, native: [0; NATIVE] }
    }
}

impl Latency {
    /// The upper bounds of the buckets, in seconds. The last bucket has none.
    pub const BOUNDS: [f64; 15] =
        [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

    /// Of the native buckets: 2 to the power of it buckets make a power of two.
    pub const SCHEMA: i32 = 3;

    /// What is not longer, in seconds, is in the zero bucket.
    pub const ZERO_THRESHOLD: f64 = 1.0 / (1 << -LOWEST_OCTAVE) as f64;

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.counts[Self::BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        self.sum_seconds += seconds;
        if seconds <= Self::ZERO_THRESHOLD {
            self.zero += 1;
            return;
        }
        // An upper bound belongs to its bucket.
        let bucket = (seconds.log2() * f64::from(PER_OCTAVE)).ceil() - f64::from(FIRST);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates at 0, and is limited above"
        )]
        let bucket = (bucket as usize).min(NATIVE - 1);
        self.native[bucket] += 1;
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The upper bound, in seconds, of the native bucket of this number.
    pub fn bound(bucket: i32) -> f64 {
        (f64::from(bucket) / f64::from(PER_OCTAVE)).exp2()
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.counts.iter_mut().zip(other.counts).for_each(|(it, more)| *it += more);
        self.native.iter_mut().zip(other.native).for_each(|(it, more)| *it += more);
        self.sum_seconds += other.sum_seconds;
        self.zero += other.zero;
        self
    }

    /// The native buckets that have something.
    pub fn native(&self) -> NativeBuckets {
        let mut buckets = NativeBuckets { zero: self.zero, ..NativeBuckets::default() };
        let (mut next, mut before) = (0, 0);
        let filled = self.native.iter().zip(FIRST..).filter(|(count, _)| **count > 0);
        for (count, index) in filled {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            match buckets.spans.last_mut() {
                Some((_, length)) if index == next => *length += 1,
                // The first one's place counts from the bucket 0.
                _ => buckets.spans.push((index - next, 1)),
            }
            buckets.deltas.push(count - before);
            (next, before) = (index + 1, count);
        }
        buckets
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What is too short to be told apart ends where the lowest bucket begins.
        let all = [self.zero].into_iter().chain(self.native);
        let buckets: Vec<_> = (FIRST - 1..).zip(all).filter(|(_, count)| *count > 0).collect();
        let mut fields = serializer.serialize_struct("Latency", 3)?;
        fields.serialize_field("counts", &self.counts)?;
        fields.serialize_field("sum_seconds", &self.sum_seconds)?;
        fields.serialize_field("buckets", &buckets)?;
        fields.end()
    }
}

/// The lowest native bucket. The upper bound of bucket n is 2^(n/8).
const FIRST: i32 = LOWEST_OCTAVE * PER_OCTAVE + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_belongs_below_it() {
        let mut latency = Latency::default();
        for millis in [0, 1, 2, 60_000, 60_001] {
            latency.record(Duration::from_millis(millis));
        }
        assert_eq!(latency.counts[..2], [2, 1]);
        assert_eq!(latency.counts[14..], [1, 1]);
        assert_eq!(latency.count(), 5);
        assert!((latency.sum_seconds - 120.004).abs() < 1e-9, "{}", latency.sum_seconds);
    }

    /// Bucket n ends at 2^(n/8) seconds, so 1 s is in bucket 0, 2 s in 8, and 3 s in 13.
    // proves: G-MET-3
    #[test]
    fn native_buckets_are_those_of_prometheus() {
        let mut latency = Latency::default();
        for seconds in [0, 1, 1, 1, 2, 3, 3, u64::from(u32::MAX)] {
            latency.record(Duration::from_secs(seconds));
        }
        latency.record(Duration::from_millis(999));
        latency.record(Duration::from_millis(1001));
        let native = latency.native();
        assert_eq!(native.zero, 1);
        assert_eq!(native.spans, [(0, 2), (6, 1), (4, 1), (90, 1)]);
        assert_eq!(native.deltas, [4, -3, 0, 1, -1]);
    }

    #[test]
    fn json_has_the_buckets_that_have_something() {
        let mut latency = Latency::default();
        for seconds in [0, 1, 1, 2] {
            latency.record(Duration::from_secs(seconds));
        }
        let json = serde_json::to_value(latency).expect("serialisable");
        assert_eq!(json["buckets"], serde_json::json!([[-136, 1], [0, 2], [8, 1]]));
        assert_eq!([Latency::bound(0), Latency::bound(8)], [1.0, 2.0]);
        assert!((Latency::bound(-136) - Latency::ZERO_THRESHOLD).abs() < f64::EPSILON);
    }

    // proves: G-MET-3
    #[test]
    fn all_native_buckets_together_have_what_was_counted() {
        let mut latency = Latency::default();
        for power in 0..64 {
            latency.record(Duration::from_nanos(1 << power));
        }
        let (native, mut value) = (latency.plus(&Latency::default()).native(), 0);
        let counts = native.deltas.iter().map(|delta| {
            value += delta;
            value
        });
        assert_eq!(counts.sum::<i64>().unsigned_abs() + native.zero, latency.count());
        let buckets: u32 = native.spans.iter().map(|(_, length)| length).sum();
        assert_eq!(buckets as usize, native.deltas.len());
    }
}
