//! Which days the partitions of an outbox have, by the time of insertion, in UTC.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{RoundMode, Timestamp, ToSpan, Unit, ZonedRound};

/// The column that says which partition has a row.
pub(crate) use relay::access::INSERTED_AT as KEY;

/// How the constraint begins that a table has while it becomes a partition; a day follows.
pub(crate) const BEFORE: &str = "tailpost_before_";

/// What PostgreSQL keeps of a name.
const NAME_BYTES_MAX: usize = 63;

/// A partition, and the times that it has; without an end where it has everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DayPartition {
    /// With its schema, quoted.
    pub(crate) name: String,
    pub(crate) since: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
}

/// All partitions, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DayPartitions(Vec<DayPartition>);

impl DayPartitions {
    pub(crate) fn new(partitions: impl IntoIterator<Item = DayPartition>) -> Self {
        let mut partitions: Vec<DayPartition> = partitions.into_iter().collect();
        partitions.sort_by_key(|it| it.since);
        Self(partitions)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Up to where every time from `now` on has a partition; `now` itself if it has none.
    pub(crate) fn covered_from(&self, now: Timestamp) -> Timestamp {
        let mut covered = now;
        for it in &self.0 {
            if it.since.is_none_or(|since| since <= covered) {
                covered = it.until.map_or(Timestamp::MAX, |until| until.max(covered));
            }
        }
        covered
    }

    /// What has no partition from the day of `now` on and for `ahead`, cut at midnight. The first ones
    /// begin a day before: the clock may step back.
    pub(crate) fn missing(&self, now: Timestamp, ahead: Duration) -> Vec<(Timestamp, Timestamp)> {
        let (mut missing, mut at) = (Vec::new(), midnight(now));
        if self.0.is_empty() {
            at = at.checked_sub(24.hours()).unwrap_or(at);
        }
        let end = now.checked_add(ahead).unwrap_or(now);
        while at < end {
            let covered = self.covered_from(at);
            if covered > at {
                at = covered;
                continue;
            }
            let next = self.0.iter().filter_map(|it| it.since).filter(|since| *since > at).min();
            let until = next.map_or(next_midnight(at), |next| next.min(next_midnight(at)));
            if until <= at {
                break; // time ends
            }
            missing.push((at, until));
            at = until;
        }
        missing
    }

    /// The partitions that have nothing from `time` on.
    pub(crate) fn before(&self, time: Timestamp) -> Vec<DayPartition> {
        let old = self.0.iter().filter(|it| it.until.is_some_and(|until| until <= time));
        old.cloned().collect()
    }
}

/// The beginning of the day that `time` is in.
pub(crate) fn midnight(time: Timestamp) -> Timestamp {
    let day = ZonedRound::new().smallest(Unit::Day).mode(RoundMode::Floor);
    time.to_zoned(TimeZone::UTC).round(day).map_or(time, |it| it.timestamp())
}

/// The beginning of the day after that.
pub(crate) fn next_midnight(time: Timestamp) -> Timestamp {
    midnight(time).checked_add(24.hours()).unwrap_or(time)
}

/// What a partition of `table` is called: a day by itself, a part of one by its beginning.
pub(crate) fn day_name(table: &str, since: Timestamp, until: Timestamp) -> String {
    let is_day = midnight(since) == since && next_midnight(since) == until;
    let format = if is_day { "_p%Y%m%d" } else { "_p%Y%m%d_%H%M%S" };
    named(table, &since.to_zoned(TimeZone::UTC).strftime(format).to_string())
}

/// What the partition is called that `table` becomes, with everything before `until`.
pub(crate) fn before_name(table: &str, until: Timestamp) -> String {
    named(table, &format!("_before_{}", digits(until)))
}

/// The day in names.
pub(crate) fn digits(day: Timestamp) -> String {
    day.to_zoned(TimeZone::UTC).strftime("%Y%m%d").to_string()
}

/// The midnight that [`digits`] names.
pub(crate) fn from_digits(digits: &str) -> Option<Timestamp> {
    let day = jiff::civil::Date::strptime("%Y%m%d", digits).ok()?;
    day.to_zoned(TimeZone::UTC).ok().map(|it| it.timestamp())
}

/// A name with an end that tells it from others, cut in front of that.
pub(crate) fn named(stem: &str, end: &str) -> String {
    let room = NAME_BYTES_MAX.saturating_sub(end.len());
    format!("{}{end}", &stem[..stem.floor_char_boundary(room)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn partition(since: Option<&str>, until: Option<&str>) -> DayPartition {
        DayPartition { name: String::new(), since: since.map(time), until: until.map(time) }
    }

    #[test]
    fn what_is_missing_is_found_between_others_and_cut_at_midnight() {
        let day = Duration::from_hours(24);
        let now = time("2026-11-23T15:00:00Z");
        let none = DayPartitions::default();
        let days = none.missing(now, day * 7);
        assert_eq!(days.len(), 9);
        assert_eq!(days[0], (time("2026-11-22T00:00:00Z"), time("2026-11-23T00:00:00Z")));
        assert_eq!(none.covered_from(now), now);
        let some = DayPartitions::new([
            partition(Some("2026-11-25T00:00:00Z"), Some("2026-11-26T06:00:00Z")),
            partition(None, Some("2026-11-24T00:00:00Z")),
        ]);
        assert_eq!(some.covered_from(now), time("2026-11-24T00:00:00Z"));
        let missing = some.missing(now, day * 3 + day / 2);
        let names: Vec<_> = missing.iter().map(|it| day_name("o", it.0, it.1)).collect();
        assert_eq!(names, ["o_p20261124", "o_p20261126_060000", "o_p20261127"]);
        let whole = DayPartitions::new([partition(None, None)]);
        assert!(whole.missing(now, day * 7).is_empty() && whole.before(now).is_empty());
        assert_eq!(some.before(time("2026-11-26T05:00:00Z")).len(), 1);
    }

    #[test]
    fn names_fit_and_tell_days_apart() {
        let long = "é".repeat(31);
        let (one, next) = (time("2026-11-23T00:00:00Z"), time("2026-11-24T00:00:00Z"));
        let name = day_name(&long, one, next);
        assert!(name.len() <= 63 && name.ends_with("_p20261123"), "{name}");
        assert_eq!(before_name("outbox_events", next), "outbox_events_before_20261124");
        assert_eq!(from_digits("20261124"), Some(next));
        assert_eq!(from_digits("x"), None);
    }
}
