//! What the engine is told of a replay, and what it says of one.

use std::collections::HashSet;

use uuid::Uuid;

use super::window::Outgoing;

/// Where a replay stands when a session takes it up.
#[derive(Debug, Clone)]
pub(crate) struct ReplayStart {
    pub(crate) id: Uuid,
    /// Everything up to this place is done.
    pub(crate) place: i64,
    pub(crate) published: u64,
    /// None of the others is in the stream up to here,
    pub(crate) seq: u64,
    /// and these, by the copies' own ids, are in it beyond.
    pub(crate) stored: HashSet<Uuid>,
    pub(crate) per_second: Option<u32>,
}

/// An event that is to be published again.
#[derive(Debug, Clone)]
pub(crate) struct ReplayRow {
    /// Its place in the replay.
    pub(crate) place: i64,
    pub(crate) event: Uuid,
    /// Or why it cannot be.
    pub(crate) outgoing: Result<Outgoing, String>,
}

/// What was read of a replay.
#[derive(Debug, Clone)]
pub(crate) struct ReplayPage {
    pub(crate) rows: Vec<ReplayRow>,
    /// Nothing is left out up to here.
    pub(crate) read_to: i64,
    pub(crate) is_end: bool,
    /// Why there will never be more, although it is not the end.
    pub(crate) is_gone: Option<String>,
}

/// Why a replay could not be read on now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReplayUnread {
    /// A server is away, or somebody has locked what is read: others wait for that too.
    Waits(String),
    /// It may succeed the next time.
    Failed(String),
    /// It fails until somebody changes something.
    Lasting(String),
}

/// How far a replay is. Totals, so that it may be written twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplayNote {
    pub(crate) id: Uuid,
    pub(crate) place: i64,
    pub(crate) published: u64,
    pub(crate) seq: u64,
    pub(crate) problems: Vec<Unreplayed>,
    pub(crate) is_done: bool,
    /// Why it does not get on.
    pub(crate) waits_for: Option<String>,
    /// Why somebody has to look at it: nothing more can be published.
    pub(crate) gives_up: Option<String>,
}

/// An event that could not be published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreplayed {
    pub(crate) place: i64,
    pub(crate) event: Uuid,
    pub(crate) reason: String,
}

/// What operators want of a replay, as it is when a note is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayWish {
    GoOn,
    /// It is paused or cancelled, or is another session's.
    Rest,
}
