//! What the comparison found.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

/// Offending ids named in a failure, of each kind.
const NAMED_MAX: usize = 5;

/// Counts of events, each with a different id.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tally {
    /// Events whose transaction was committed.
    pub committed: usize,
    /// Events whose transaction was not.
    pub rolled_back: usize,
    /// Events that the stream holds.
    pub stored: usize,
    /// Rows with `published_at`, and with the right `stream_seq` if they have one.
    pub marked: usize,
    /// Events in the dead-letter table.
    pub dead: usize,
    /// Committed events that are neither in the stream nor dead letters.
    pub lost: usize,
    /// Messages beyond the first of each event.
    pub duplicates: usize,
    /// Events stored behind a later one of their aggregate, or behind a later position in the log.
    pub out_of_order: usize,
    /// Stored events that were never committed.
    pub phantoms: usize,
    #[serde(skip)]
    findings: Findings,
}

/// The offending events, in the stream's order where they are in the stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Findings {
    pub(super) lost: Vec<Uuid>,
    pub(super) duplicates: Vec<Duplicate>,
    pub(super) out_of_order: Vec<Uuid>,
    pub(super) phantoms: Vec<Uuid>,
}

/// An event that the stream has twice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Duplicate {
    pub(super) id: Uuid,
    /// The sequences of its messages.
    pub(super) first: u64,
    pub(super) again: u64,
}

impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} and {}", self.id, self.first, self.again)
    }
}

impl Tally {
    pub(super) fn new(counts: [usize; 5], findings: Findings) -> Self {
        let [committed, rolled_back, stored, marked, dead] = counts;
        Self {
            committed,
            rolled_back,
            stored,
            marked,
            dead,
            lost: findings.lost.len(),
            duplicates: findings.duplicates.len(),
            out_of_order: findings.out_of_order.len(),
            phantoms: findings.phantoms.len(),
            findings,
        }
    }

    /// Whether every committed event is there once, in order, and nothing else is.
    pub fn is_exact(&self) -> bool {
        self.lost + self.duplicates + self.out_of_order + self.phantoms == 0
    }

    /// Whether every committed event that is not a dead letter is marked as published.
    pub fn is_marked(&self) -> bool {
        self.marked + self.dead >= self.committed
    }

    /// The first offending ids of each kind, a line each; empty if there are none.
    pub fn offenders(&self) -> String {
        let Findings { lost, duplicates, out_of_order, phantoms } = &self.findings;
        let kinds = [
            ("lost", texts(lost)),
            ("stored again", texts(duplicates)),
            ("out of order", texts(out_of_order)),
            ("never committed", texts(phantoms)),
        ];
        let line = |(kind, (named, count)): (&str, (Vec<String>, usize))| {
            let more = count - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{kind}: {}{more}\n", named.join(", "))
        };
        kinds.into_iter().filter(|(_, (named, _))| !named.is_empty()).map(line).collect()
    }

    /// Asserts [`Tally::is_exact`] for a test.
    ///
    /// # Panics
    ///
    /// Naming the first offending events.
    #[track_caller]
    pub fn assert_exact(&self) {
        assert!(self.is_exact(), "not exactly once, in order: {self}\n{}", self.offenders());
    }
}

/// The first offenders, and how many there are.
fn texts(offenders: &[impl fmt::Display]) -> (Vec<String>, usize) {
    (offenders.iter().take(NAMED_MAX).map(ToString::to_string).collect(), offenders.len())
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, rolled_back, stored, marked, dead, .. } = self;
        let Self { lost, duplicates, out_of_order, phantoms, .. } = self;
        write!(
            f,
            "committed {committed}, rolled back {rolled_back}, stored {stored}, marked {marked}, \
             dead {dead}; lost {lost}, duplicates {duplicates}, out of order {out_of_order}, \
             phantoms {phantoms}"
        )
    }
}
