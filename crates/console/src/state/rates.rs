//! What lies between two answers: rates and percentiles.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;

use super::answers::Buckets;
use super::figures::{as_f64, latency};

/// Totals of processes that only grow until the process starts anew.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    seen: BTreeMap<String, VecDeque<(Timestamp, u64)>>,
}

impl Counters {
    /// By how much a total grew each second, in so many seconds or since the last time. `None` at first,
    /// and where it fell.
    pub(crate) fn rate(&mut self, of: &str, now: Timestamp, total: u64, over: i64) -> Option<f64> {
        let seen = self.seen.entry(of.to_owned()).or_default();
        if seen.back().is_some_and(|(_, last)| *last > total) {
            seen.clear();
        }
        seen.push_back((now, total));
        while seen.len() > 2 && seen.get(1).is_some_and(|(at, _)| is_over(*at, now, over)) {
            seen.pop_front();
        }
        let (at, before) = *seen.front()?;
        let seconds = now.duration_since(at).as_secs_f64();
        (seconds > 0.0).then(|| as_f64(total - before) / seconds)
    }
}

fn is_over(at: Timestamp, now: Timestamp, seconds: i64) -> bool {
    now.duration_since(at).as_secs() >= seconds
}

/// Histograms since the start of a process, again and again.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    seen: VecDeque<(Timestamp, BTreeMap<i32, u64>)>,
}

/// In seconds, at most 9 % above what they were.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    pub(crate) fn words(&self) -> String {
        format!("{} (p99 {})", latency(self.p50), latency(self.p99))
    }
}

impl Durations {
    /// Percentiles of what came in so many seconds; `None` if nothing did.
    pub(crate) fn see<'a>(
        &mut self,
        now: Timestamp,
        seconds: i64,
        all: impl Iterator<Item = &'a Buckets>,
    ) -> Option<Percentiles> {
        let mut counts = BTreeMap::new();
        for (bucket, count) in all.flat_map(|it| &it.buckets) {
            *counts.entry(*bucket).or_default() += count;
        }
        let total = |counts: &BTreeMap<i32, u64>| counts.values().sum::<u64>();
        if self.seen.back().is_some_and(|(_, last)| total(last) > total(&counts)) {
            self.seen.clear();
        }
        self.seen.push_back((now, counts));
        while self.seen.len() > 2
            && self.seen.get(1).is_some_and(|(at, _)| is_over(*at, now, seconds))
        {
            self.seen.pop_front();
        }
        self.percentiles()
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let ((_, first), (_, last)) = (self.seen.front()?, self.seen.back()?);
        let before = |bucket: &i32| first.get(bucket).copied().unwrap_or_default();
        let grown =
            last.iter().map(|(bucket, count)| (bucket, count.saturating_sub(before(bucket))));
        let grown: Vec<_> = grown.filter(|(_, count)| *count > 0).collect();
        let total: u64 = grown.iter().map(|(_, count)| count).sum();
        let at = |per_mille: u64| {
            let wanted = (total * per_mille).div_ceil(1000);
            let mut below = 0;
            let found = grown.iter().find(|(_, count)| {
                below += count;
                below >= wanted
            });
            found.map(|(bucket, _)| (f64::from(**bucket) / 8.0).exp2())
        };
        Some(Percentiles { p50: at(500)?, p99: at(990)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn a_rate_lies_between_two_answers_of_one_process() {
        let mut counters = Counters::default();
        let mut rate = |second, total| counters.rate("7", at(second), total, 0);
        assert_eq!(rate(0, 100), None);
        assert_eq!(rate(2, 300), Some(100.0));
        assert_eq!(rate(3, 10), None, "another process");
        assert_eq!(rate(4, 11), Some(1.0));
    }

    /// Sixteen at once, each for two seconds.
    #[test]
    fn answers_that_come_in_bursts_have_one_rate() {
        let mut counters = Counters::default();
        let rates: Vec<_> = (0..20)
            .filter_map(|second| counters.rate("7", at(second), second.unsigned_abs() / 2 * 16, 10))
            .collect();
        assert!(rates[10..].iter().all(|it| (6.4..=9.6).contains(it)), "{rates:?}");
    }

    #[test]
    fn percentiles_are_of_what_came_lately() {
        let mut durations = Durations::default();
        let mut see = |second, buckets: &[(i32, u64)]| {
            durations.see(at(second), 10, [Buckets { buckets: buckets.into() }].iter())
        };
        assert_eq!(see(0, &[(-80, 1000)]), None);
        let found = see(1, &[(-80, 1098), (0, 2)]).expect("some came");
        assert_eq!((found.p50, found.p99), (0.000_976_562_5, 1.0));
        assert_eq!(see(30, &[(-80, 1098), (0, 2)]), None, "nothing came for long");
    }
}
