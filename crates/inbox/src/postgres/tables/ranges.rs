//! Which times the partitions have.
//!
//! Each statement locks all partitions, and the server's lock table has room for some thousand locks
//! (`max_locks_per_transaction`). So their number is bounded: by the retention, by wider partitions
//! where records are kept for longer, and by partitions that fill a gap whole. A time before all
//! partitions makes one that has everything before.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use servers::partitions::{Partitions, midnight};

/// Longer retentions have a partition for each month.
const DAILY_MAX: Duration = Duration::from_hours(60 * 24);

/// How much time a partition has that is made for what is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Day,
    Month,
}

impl Width {
    pub(super) fn of(keep: Option<Duration>) -> Self {
        if keep.is_some_and(|keep| keep <= DAILY_MAX) { Self::Day } else { Self::Month }
    }

    /// The beginning of the day or month that `time` is in, and of the next one.
    fn around(self, time: Timestamp) -> (Option<Timestamp>, Option<Timestamp>) {
        let day = midnight(time).to_zoned(TimeZone::UTC);
        let (first, span) = match self {
            Self::Day => (Ok(day), 1.day()),
            Self::Month => (day.first_of_month(), 1.month()),
        };
        let next = first.as_ref().ok().and_then(|first| first.checked_add(span).ok());
        (first.ok().map(|it| it.timestamp()), next.map(|it| it.timestamp()))
    }
}

/// The times around `time` that no partition has: up to its neighbours, and ahead of all of them to the
/// end of its day or month.
pub(super) fn gap(
    ranges: &Partitions,
    time: Timestamp,
    width: Width,
) -> (Option<Timestamp>, Option<Timestamp>) {
    let (first, next) = width.around(time);
    if ranges.all().is_empty() {
        return (first, next);
    }
    (ranges.last_end_before(time), ranges.next_begin_after(time).or(next))
}

/// Quoted. A day is named by itself, everything else by both ends.
pub(super) fn partition_name(since: Option<Timestamp>, until: Option<Timestamp>) -> String {
    let day = |at: Timestamp| at.to_zoned(TimeZone::UTC).strftime("%Y%m%d").to_string();
    let end = until.map_or_else(|| "all".to_owned(), day);
    match since {
        None => format!("\"inbox_messages_before_{end}\""),
        Some(at) if Width::Day.around(at) == (since, until) => {
            format!("\"inbox_messages_{}\"", day(at))
        }
        Some(at) => format!("\"inbox_messages_{}_{end}\"", day(at)),
    }
}

#[cfg(test)]
mod tests {
    use servers::partitions::Partition;

    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn fill(ranges: &mut Partitions, at: Timestamp, width: Width) -> String {
        let (since, until) = gap(ranges, at, width);
        let partition = partition_name(since, until);
        let range = Partition { name: partition.clone(), since, until };
        *ranges = Partitions::new(ranges.all().iter().cloned().chain([range]));
        assert!(ranges.have(at), "{at}");
        partition
    }

    #[test]
    fn a_gap_is_filled_whole() {
        let mut ranges = Partitions::default();
        for (at, width, partition) in [
            ("2026-07-09T12:00:00Z", Width::Day, "\"inbox_messages_20260709\""),
            ("2026-07-10T00:00:00Z", Width::Day, "\"inbox_messages_20260710\""),
            ("-000044-03-15T12:00:00Z", Width::Day, "\"inbox_messages_before_20260709\""),
            ("2026-07-14T12:00:00Z", Width::Day, "\"inbox_messages_20260711_20260715\""),
            ("2026-07-20T12:00:00Z", Width::Month, "\"inbox_messages_20260715_20260801\""),
            ("2026-08-31T23:00:00Z", Width::Month, "\"inbox_messages_20260801_20260901\""),
        ] {
            assert_eq!(fill(&mut ranges, time(at), width), partition);
        }
    }

    /// What has been there for years, and whatever times anybody names.
    #[test]
    fn a_few_years_are_few_partitions() {
        for (keep, most) in [(None, 70), (Some(Duration::from_hours(30 * 24)), 40)] {
            let mut ranges = Partitions::default();
            let mut now = time("2026-01-01T12:00:00Z");
            for day in 0..5 * 365 {
                for ahead in -1..=3 {
                    let time = now + (24 * ahead).hours();
                    if !ranges.have(time) {
                        fill(&mut ranges, time, Width::of(keep));
                    }
                }
                let named = time("1066-10-14T09:00:00Z") + (24 * 37 * day).hours();
                if !ranges.have(named) && named < now {
                    fill(&mut ranges, named, Width::Day);
                }
                if let Some(keep) = keep {
                    let kept = |it: &&Partition| it.until.is_none_or(|until| until > now - keep);
                    ranges = Partitions::new(ranges.all().iter().filter(kept).cloned());
                }
                now += 24.hours();
            }
            assert!(ranges.all().len() < most, "{}", ranges.all().len());
        }
    }
}
