//! Where what is recorded in its place ends: what took the place of lost messages is behind that.

use std::ops::RangeInclusive;

/// Looks for the end by halves, in windows, so that few of them are looked up of any stream.
#[derive(Debug)]
pub(crate) struct Halving {
    low: u64,
    high: u64,
    width: u64,
    /// The first one behind what is recorded.
    pub(crate) behind: Option<u64>,
}

impl Halving {
    pub(crate) fn new(range: RangeInclusive<u64>, width: u64) -> Self {
        let (low, high) = (*range.start(), range.end() + 1);
        Self { low, high, width, behind: None }
    }

    /// What is to be looked up next.
    pub(crate) fn next(&self) -> Option<(u64, u64)> {
        let middle = self.low + self.high.checked_sub(self.low)? / 2;
        (middle < self.high).then(|| (middle, (middle + self.width).min(self.high) - 1))
    }

    /// The last one of a window that is recorded in its place.
    pub(crate) fn found(&mut self, (first, last): (u64, u64), recorded: Option<u64>) {
        match recorded {
            Some(seq) => (self.behind, self.low) = (Some(seq + 1), last + 1),
            None => self.high = first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end that is found, and how many windows were looked up.
    fn search(len: u64, recorded: u64) -> (Option<u64>, u32) {
        let (mut halving, mut windows) = (Halving::new(1..=len, 500), 0);
        while let Some((first, last)) = halving.next() {
            assert!(first <= last && last < first + 500);
            halving.found((first, last), (first <= recorded).then_some(last.min(recorded)));
            windows += 1;
        }
        (halving.behind, windows)
    }

    #[test]
    fn the_end_of_what_is_recorded_is_found_in_few_windows() {
        for len in [0_u64, 1, 2, 499, 500, 501, 10_000, 1_234_567, 1 << 40] {
            for recorded in [0, 1, 2, len / 3, len / 2, len.saturating_sub(1), len] {
                let (behind, windows) = search(len, recorded.min(len));
                let expected = Some(recorded.min(len)).filter(|it| *it > 0).map(|it| it + 1);
                assert_eq!(behind, expected, "of {len}, {recorded} are recorded");
                assert!(windows <= 42, "{windows} windows of {len}");
            }
        }
    }
}
