//! What tells a stream that lost its end, and has grown again, from one that has not.

use uuid::Uuid;

/// The event with the highest sequence that is known. A stream that has another message there has
/// lost its end, and has grown again since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastEvent {
    pub(crate) seq: u64,
    pub(crate) id: Uuid,
}

impl LastEvent {
    /// The later one of two, of which any may be unknown.
    pub(crate) fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).max_by_key(|it| it.seq)
    }

    /// Whether the stream has an event that is not this one there; without a message there, nobody
    /// knows.
    pub(crate) fn is_replaced(&self, found: Option<Uuid>) -> bool {
        found.is_some_and(|it| it != self.id)
    }
}
