//! Which transactions one of PostgreSQL's snapshots shows.

use std::str::FromStr;

/// A `pg_snapshot`, as PostgreSQL prints it: `xmin:xmax:xip,…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Every transaction before this had ended.
    xmin: u64,
    /// No transaction from this on had.
    xmax: u64,
    /// Those that ran, in ascending order.
    running: Vec<u64>,
}

impl Snapshot {
    /// What `pg_visible_in_snapshot` says.
    pub(crate) fn shows(&self, transaction: u64) -> bool {
        transaction < self.xmin
            || transaction < self.xmax && self.running.binary_search(&transaction).is_err()
    }
}

/// The text is no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a snapshot; it looks like 10:20:10,14,15")]
pub(crate) struct ParseSnapshotError;

impl FromStr for Snapshot {
    type Err = ParseSnapshotError;

    fn from_str(text: &str) -> Result<Self, ParseSnapshotError> {
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next()?.parse().ok();
        let (xmin, xmax) = (number(), number());
        let running = parts.next().unwrap_or_default().split(',').filter(|it| !it.is_empty());
        let running: Result<Vec<u64>, _> = running.map(str::parse).collect();
        match (xmin, xmax, running) {
            (Some(xmin), Some(xmax), Ok(mut running)) => {
                running.sort_unstable();
                Ok(Self { xmin, xmax, running })
            }
            _ => Err(ParseSnapshotError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shows_what_had_ended() {
        let snapshot: Snapshot = "10:20:10,15,12".parse().expect("a snapshot");
        let shown: Vec<u64> = (8..22).filter(|it| snapshot.shows(*it)).collect();
        assert_eq!(shown, [8, 9, 11, 13, 14, 16, 17, 18, 19]);
        let empty: Snapshot = "10:10:".parse().expect("a snapshot");
        assert!(empty.shows(9) && !empty.shows(10));
        for text in ["", "1", "a:b:", "1:2:x"] {
            assert_eq!(text.parse::<Snapshot>(), Err(ParseSnapshotError), "{text}");
        }
    }
}
