//! Which days the partitions of an outbox have, by the time of insertion, in UTC.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use servers::partitions::{Partitions, midnight, next_midnight};

/// The column that says which partition has a row.
pub(crate) use relay::access::INSERTED_AT as KEY;

/// How the constraint begins that a table has while it becomes a partition; a day follows.
pub(crate) const BEFORE: &str = "tailpost_before_";

/// What PostgreSQL keeps of a name.
const NAME_BYTES_MAX: usize = 63;

/// What has no partition from the day of `now` on and for `ahead`, cut at midnight. The first ones begin
/// a day before: the clock may step back.
pub(crate) fn missing(
    partitions: &Partitions,
    now: Timestamp,
    ahead: Duration,
) -> Vec<(Timestamp, Timestamp)> {
    let (mut missing, mut at) = (Vec::new(), midnight(now));
    if partitions.all().is_empty() {
        at = at.checked_sub(24.hours()).unwrap_or(at);
    }
    let end = now.checked_add(ahead).unwrap_or(now);
    while at < end {
        let covered = partitions.covered_from(at);
        if covered > at {
            at = covered;
            continue;
        }
        let next = partitions.next_begin_after(at);
        let until = next.map_or(next_midnight(at), |next| next.min(next_midnight(at)));
        if until <= at {
            break; // time ends
        }
        missing.push((at, until));
        at = until;
    }
    missing
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
    use servers::partitions::Partition;

    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn partition(since: Option<&str>, until: Option<&str>) -> Partition {
        Partition { name: String::new(), since: since.map(time), until: until.map(time) }
    }

    #[test]
    fn what_is_missing_is_found_between_others_and_cut_at_midnight() {
        let day = Duration::from_hours(24);
        let now = time("2026-11-23T15:00:00Z");
        let none = Partitions::default();
        let days = missing(&none, now, day * 7);
        assert_eq!(days.len(), 9);
        assert_eq!(days[0], (time("2026-11-22T00:00:00Z"), time("2026-11-23T00:00:00Z")));
        assert_eq!(none.covered_from(now), now);
        let some = Partitions::new([
            partition(Some("2026-11-25T00:00:00Z"), Some("2026-11-26T06:00:00Z")),
            partition(None, Some("2026-11-24T00:00:00Z")),
        ]);
        assert_eq!(some.covered_from(now), time("2026-11-24T00:00:00Z"));
        let gaps = missing(&some, now, day * 3 + day / 2);
        let names: Vec<_> = gaps.iter().map(|it| day_name("o", it.0, it.1)).collect();
        assert_eq!(names, ["o_p20261124", "o_p20261126_060000", "o_p20261127"]);
        let whole = Partitions::new([partition(None, None)]);
        assert!(missing(&whole, now, day * 7).is_empty() && whole.before(now).is_empty());
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
