//! Compares table, dead letters, slots and streams, event by event.
//!
//! Nothing here does I/O. What is read of rows and messages is kept as records of a fixed size
//! (`spilled`), divided by a hash of the event's id, so that one part after the other fits into
//! memory. `judge` joins the parts, `aggregate_order` checks the order of each aggregate on a second
//! division, and `second_look` looks again at what looks wrong. `cut` says what has to be true
//! although nothing stands still meanwhile.

pub(crate) mod aggregate_order;
pub(crate) mod cut;
mod finding;
pub(crate) mod fingerprint;
pub(crate) mod judge;
pub(crate) mod second_look;
pub(crate) mod snapshot;
pub(crate) mod spilled;

pub(crate) use self::finding::Findings;
pub use self::finding::{Finding, Kind, KindCount, LISTED_MAX, Unjudged};
