//! What is kept of rows and messages, in temporary files, until they are compared.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::fingerprint::Fingerprint;

/// Where a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The number of the stream among those that are read.
    pub(crate) stream: u16,
    pub(crate) sequence: u64,
}

/// What a row says of where its event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Named {
    /// In one of the streams, at a sequence if that is known.
    Here { stream: u16, sequence: Option<u64> },
    /// In a stream that is not read.
    Elsewhere,
    /// Nothing.
    Nowhere,
}

/// A row of the outbox, a dead letter, or a row that is owed its mark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RowRecord {
    pub(crate) id: Uuid,
    pub(crate) flags: u16,
    /// Which shard publishes it.
    pub(crate) shard: u16,
    pub(crate) named: Named,
    pub(crate) print: Fingerprint,
    /// Its place in the order of insertion.
    pub(crate) insertion: i64,
    /// The transaction that inserted it.
    pub(crate) transaction: u64,
    /// When the event happened, in microseconds from 1970 on.
    pub(crate) occurred_micros: i64,
}

impl RowRecord {
    /// It has `published_at`.
    pub(crate) const MARKED: u16 = 1;
    /// Its mark says that a route dropped it.
    pub(crate) const DROPPED: u16 = 2;
    /// It is owed its mark.
    pub(crate) const OWED: u16 = 4;
    /// It is a dead letter, or is going to be removed for one.
    pub(crate) const DEAD: u16 = 8;
    /// It was tried in vain before.
    pub(crate) const TRIED: u16 = 16;
    /// A route would drop it as things are.
    pub(crate) const ROUTED_AWAY: u16 = 32;
    /// No message can be made of it.
    pub(crate) const UNFIT: u16 = 64;
    /// It has no time of its own.
    pub(crate) const TIMELESS: u16 = 128;
    /// Beside [`DEAD`](Self::DEAD): it is discarded.
    pub(crate) const DISCARDED: u16 = 256;
    /// The configuration of its stream does not remove its message.
    pub(crate) const KEPT: u16 = 512;
    /// The configuration may remove its message, which a consumer has not got.
    pub(crate) const UNREAD: u16 = 1024;

    pub(crate) fn of_id(id: Uuid, flags: u16) -> Self {
        Self {
            id,
            flags,
            shard: 0,
            named: Named::Nowhere,
            print: Fingerprint::default(),
            insertion: 0,
            transaction: 0,
            occurred_micros: 0,
        }
    }

    pub(crate) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A message's own position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct OwnPosition {
    /// Which history it belongs to, counted from 1. Positions of different ones do not compare.
    pub(crate) history: u16,
    pub(crate) lsn: u64,
    pub(crate) ordinal: u32,
}

/// A message of a stream.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct MessageRecord {
    pub(crate) id: Uuid,
    pub(crate) at: Place,
    pub(crate) flags: u16,
    pub(crate) print: Fingerprint,
    pub(crate) position: Option<OwnPosition>,
    /// The sequence of an earlier message with a later position, where there must be none.
    pub(crate) behind: u64,
}

impl MessageRecord {
    /// It has the headers of a relay.
    pub(crate) const OURS: u16 = 1;
    /// It says that its event never had a row.
    pub(crate) const EMITTED: u16 = 2;
    /// How far the number of a replay is shifted in the flags, and the highest one.
    const REPLAY_SHIFT: u16 = 2;
    pub(crate) const REPLAY_MAX: u16 = u16::MAX >> Self::REPLAY_SHIFT;

    pub(crate) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The flags of a copy that the replay with this number stored; they are counted from 1.
    pub(crate) fn of_replay(number: u16) -> u16 {
        number.min(Self::REPLAY_MAX) << Self::REPLAY_SHIFT
    }

    /// The number of the replay that stored it, or 0.
    pub(crate) fn replay(&self) -> u16 {
        self.flags >> Self::REPLAY_SHIFT
    }
}

/// A message's place in the order of its aggregate.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct OrderRecord {
    #[serde(with = "postcard::fixint::le")]
    pub(crate) aggregate: u64,
    pub(crate) at: Place,
    pub(crate) id: Uuid,
    pub(crate) position: Option<OwnPosition>,
    /// The row's place in the order of insertion, and its transaction; `None` if there is no row, or
    /// the order of insertion says nothing about it.
    pub(crate) inserted: Option<(i64, u64)>,
    /// It may come late: it was tried in vain before.
    pub(crate) may_be_late: bool,
}

/// A message without a row.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct OrphanRecord {
    pub(crate) at: Place,
    /// `None` if the message has the headers of a relay and no id.
    pub(crate) id: Option<Uuid>,
}
