//! What may go wrong in a world.

use crate::engine::Mode;

/// When somebody else writes to the stream.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Foreign {
    Never,
    /// Only while nothing of the relay's is on its way or about to be.
    BetweenMessages,
    Always,
    /// Under the ids of events that the stream does not have, except into a batch.
    UnderIds,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) struct Faults {
    pub(super) mode: Mode,
    pub(super) foreign: Foreign,
    /// Some events are refused for good, and some are dropped by a route.
    pub(super) poison: bool,
    /// The stream takes some events only now and then.
    pub(super) picky: bool,
    /// Those that the broker refuses for good are refused as if another stream might take them.
    pub(super) unwelcome: bool,
    /// Nodes claim rows of the table, side by side. There is no log.
    pub(super) claims: bool,
    /// Later events of a parked one's aggregate wait, until it is mended.
    pub(super) blocking: bool,
    /// Parked events are mended now and then.
    pub(super) mends: bool,
    /// A row's mark is that it is gone.
    pub(super) deletes: bool,
    /// The broker remembers ids until the relay is away for long. Fenced mode must not need it,
    /// except where the broker rejects a message for good while old connections still deliver.
    pub(super) dedup: bool,
    /// The stream stops taking batches now and then, and takes them again.
    pub(super) fickle: bool,
    /// The slot is lost now and then, and made anew.
    pub(super) slot_loss: bool,
    /// Somebody advances the slot, or makes another one, or the server forgets how far it was.
    pub(super) meddled: bool,
    /// PostgreSQL makes a slot wait for older transactions, also the first one.
    pub(super) waits: bool,
    /// The stream loses messages while no relay runs.
    pub(super) purges: bool,
    /// The stream comes back without its end now and then.
    pub(super) goes_back: bool,
    /// Statements fail.
    pub(super) failing: bool,
    /// Commits are visible some time after the log has them.
    pub(super) hidden: bool,
    /// Somebody locks rows now and then.
    pub(super) locks: bool,
    /// Rows come that never pass the log.
    pub(super) unlogged: bool,
    /// Some events have no row.
    pub(super) emitted: bool,
    /// Somebody asks for replays.
    pub(super) replays: bool,
    /// Others answer what they hear, too.
    pub(super) strangers: bool,
    /// An index leads to rows by their transactions.
    pub(super) is_indexed: bool,
    /// The watermark is the only mark.
    pub(super) by_watermark: bool,
    /// Marks for which there is room.
    pub(super) marks_waiting_max: usize,
}
