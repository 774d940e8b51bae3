//! Partitions of a table by time: which there are, and which times have none.

use jiff::tz::TimeZone;
use jiff::{RoundMode, Timestamp, ToSpan, Unit, ZonedRound};
use tokio_postgres::Row;

/// The partitions of the table `$1`, for [`Partition::of`]. A bound that no clock here can tell is
/// none, and one that somebody detaches is no partition any more.
pub const LOAD: &str = "
    SELECT format('%I.%I', nspname, child.relname), since, until
    FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
    JOIN pg_namespace AS n ON n.oid = child.relnamespace
    CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(child.relpartbound, child.oid),
        '^FOR VALUES FROM \\((.*)\\) TO \\((.*)\\)$')) AS b (bounds)
    CROSS JOIN LATERAL (SELECT
        CASE WHEN bounds[1] LIKE $$'%$$ THEN trim(BOTH $$'$$ FROM bounds[1])::timestamptz END,
        CASE WHEN bounds[2] LIKE $$'%$$ THEN trim(BOTH $$'$$ FROM bounds[2])::timestamptz END
    ) AS t (at_least, before)
    CROSS JOIN LATERAL (SELECT
        CASE WHEN at_least >= '4000-01-01 BC' THEN at_least END,
        CASE WHEN before < '9999-12-30' THEN before END) AS u (since, until)
    WHERE inhparent = to_regclass($1::text) AND NOT inhdetachpending";

/// A partition, and the times that it has; without bounds where it has everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// With its schema, quoted.
    pub name: String,
    /// From when on.
    pub since: Option<Timestamp>,
    /// Before when.
    pub until: Option<Timestamp>,
}

impl Partition {
    /// What a row of [`LOAD`] says.
    pub fn of(row: &Row) -> Self {
        Self { name: row.get(0), since: row.get(1), until: row.get(2) }
    }
}

/// Which times, as PostgreSQL takes them where a partition is attached.
pub fn bounds(since: Option<Timestamp>, until: Option<Timestamp>) -> String {
    let bound = |at: Option<Timestamp>, open: &str| match at {
        Some(at) => format!("'{at}'"),
        None => open.to_owned(),
    };
    format!("FOR VALUES FROM ({}) TO ({})", bound(since, "MINVALUE"), bound(until, "MAXVALUE"))
}

/// All partitions, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partitions(Vec<Partition>);

impl Partitions {
    /// These.
    pub fn new(partitions: impl IntoIterator<Item = Partition>) -> Self {
        let mut partitions: Vec<Partition> = partitions.into_iter().collect();
        partitions.sort_by_key(|it| it.since);
        Self(partitions)
    }

    /// Each of them, the oldest first.
    pub fn all(&self) -> &[Partition] {
        &self.0
    }

    /// Up to where every time from `time` on has a partition; `time` itself if it has none.
    pub fn covered_from(&self, time: Timestamp) -> Timestamp {
        let mut covered = time;
        for it in &self.0 {
            if it.since.is_none_or(|since| since <= covered) {
                covered = it.until.map_or(Timestamp::MAX, |until| until.max(covered));
            }
        }
        covered
    }

    /// Whether this time has a partition.
    pub fn have(&self, time: Timestamp) -> bool {
        self.covered_from(time) > time
    }

    /// Where the last partition ends that has nothing from `time` on.
    pub fn last_end_before(&self, time: Timestamp) -> Option<Timestamp> {
        self.0.iter().filter_map(|it| it.until).filter(|until| *until <= time).max()
    }

    /// Where the first partition begins that has nothing up to `time`.
    pub fn next_begin_after(&self, time: Timestamp) -> Option<Timestamp> {
        self.0.iter().filter_map(|it| it.since).filter(|since| *since > time).min()
    }

    /// The partitions that have nothing from `time` on.
    pub fn before(&self, time: Timestamp) -> Vec<Partition> {
        let old = self.0.iter().filter(|it| it.until.is_some_and(|until| until <= time));
        old.cloned().collect()
    }
}

/// The beginning of the day that `time` is in, in UTC.
pub fn midnight(time: Timestamp) -> Timestamp {
    let day = ZonedRound::new().smallest(Unit::Day).mode(RoundMode::Floor);
    time.to_zoned(TimeZone::UTC).round(day).map_or(time, |it| it.timestamp())
}

/// The beginning of the day after that.
pub fn next_midnight(time: Timestamp) -> Timestamp {
    midnight(time).checked_add(24.hours()).unwrap_or(time)
}
