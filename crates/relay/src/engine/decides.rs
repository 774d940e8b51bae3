//! What a session asks of its engine, whichever source it reads.

use std::time::Duration;

use pgoutput::Lsn;

use super::marking::MarkCounts;
use super::messages::{Input, Part};
use super::publish::Publishing;

/// An engine: it is told what happened and what time it is, and says what is to be done.
///
/// Every `now` is measured from the session's start.
pub(crate) trait Decides {
    /// What is to be done, besides sending.
    type Effect;

    /// Takes in what the log or the broker said.
    fn apply(&mut self, now: Duration, input: Input);

    /// Decides what follows from everything that was taken in.
    fn turn(&mut self, now: Duration);

    fn next_effect(&mut self) -> Option<Self::Effect>;

    /// Whether the log may bring more. While it is false its connection is not read.
    fn wants_log(&self) -> bool;

    /// When [`turn`](Self::turn) is due although nothing has happened, if that is known.
    fn wakes_at(&self, now: Duration) -> Option<Duration>;

    /// Called in each turn, right before the first message is sent. If the process was held up, by
    /// the machine or by a signal, others may publish in its stead by now: nothing is sent before
    /// the stream was read.
    fn before_sending(&mut self, now: Duration);

    /// Whether a message, or a batch's end, may be sent.
    fn has_send(&mut self) -> bool;

    /// The end of a batch, if that is what is sent next.
    fn next_end(&mut self) -> Option<Part>;

    /// Takes nothing new in any more.
    fn stop(&mut self, now: Duration, why: &'static str);

    fn is_draining(&self) -> bool;

    /// Whether a session that is to end may.
    fn is_drained(&self, now: Duration) -> bool;

    fn figures(&self) -> Figures<'_>;
}

/// What operators see of an engine.
pub(crate) struct Figures<'a> {
    pub(crate) publishing: &'a Publishing,
    pub(crate) marks: MarkCounts,
    /// What PostgreSQL was told to forget.
    pub(crate) confirmed: Lsn,
    /// Rows marked by this session's scans.
    pub(crate) scanned: u64,
    /// The first scan has not found everything that the log does not bring.
    pub(crate) has_gap: bool,
}
