//! What is kept of rows and messages until they are compared: records of a fixed size.

use bytes::{Buf, BufMut};
use uuid::Uuid;

use super::fingerprint::Fingerprint;

/// A record that is written to a file and read again.
pub(crate) trait Spilled: Sized {
    /// Its size.
    const BYTES: usize;

    fn put(&self, into: &mut Vec<u8>);

    /// Of exactly [`BYTES`](Self::BYTES).
    fn get(from: &mut &[u8]) -> Self;
}

/// Where a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// The number of the stream among those that are read.
    pub(crate) stream: u16,
    pub(crate) sequence: u64,
}

/// What a row says of where its event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// In one of the streams, at a sequence if that is known.
    Here { stream: u16, sequence: Option<u64> },
    /// In a stream that is not read.
    Elsewhere,
    /// Nothing.
    Nowhere,
}

/// A row of the outbox, a dead letter, or a row that is owed its mark.
#[derive(Debug, Clone, Copy)]
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

const NOWHERE: u16 = u16::MAX;
const ELSEWHERE: u16 = u16::MAX - 1;

impl Spilled for RowRecord {
    const BYTES: usize = 16 + 2 + 2 + 2 + 8 + 5 * 8 + 8 + 8 + 8;

    fn put(&self, into: &mut Vec<u8>) {
        into.put_slice(self.id.as_bytes());
        into.put_u16(self.flags);
        into.put_u16(self.shard);
        let (stream, sequence) = match self.named {
            Named::Here { stream, sequence } => (stream, sequence.unwrap_or(0)),
            Named::Elsewhere => (ELSEWHERE, 0),
            Named::Nowhere => (NOWHERE, 0),
        };
        into.put_u16(stream);
        into.put_u64(sequence);
        put_print(into, self.print);
        into.put_i64(self.insertion);
        into.put_u64(self.transaction);
        into.put_i64(self.occurred_micros);
    }

    fn get(from: &mut &[u8]) -> Self {
        let id = get_id(from);
        let (flags, shard) = (from.get_u16(), from.get_u16());
        let named = match (from.get_u16(), from.get_u64()) {
            (NOWHERE, _) => Named::Nowhere,
            (ELSEWHERE, _) => Named::Elsewhere,
            (stream, 0) => Named::Here { stream, sequence: None },
            (stream, sequence) => Named::Here { stream, sequence: Some(sequence) },
        };
        let print = get_print(from);
        let insertion = from.get_i64();
        let (transaction, occurred_micros) = (from.get_u64(), from.get_i64());
        Self { id, flags, shard, named, print, insertion, transaction, occurred_micros }
    }
}

/// A message's own position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct OwnPosition {
    /// Which history it belongs to, counted from 1. Positions of different ones do not compare.
    pub(crate) history: u16,
    pub(crate) lsn: u64,
    pub(crate) ordinal: u32,
}

impl OwnPosition {
    fn put(position: Option<Self>, into: &mut Vec<u8>) {
        let Self { history, lsn, ordinal } = position.unwrap_or_default();
        into.put_u16(history);
        into.put_u64(lsn);
        into.put_u32(ordinal);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        let (history, lsn, ordinal) = (from.get_u16(), from.get_u64(), from.get_u32());
        (history > 0).then_some(Self { history, lsn, ordinal })
    }
}

/// A message of a stream.
#[derive(Debug, Clone, Copy)]
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

impl Spilled for MessageRecord {
    const BYTES: usize = 16 + 2 + 8 + 2 + 5 * 8 + 14 + 8;

    fn put(&self, into: &mut Vec<u8>) {
        into.put_slice(self.id.as_bytes());
        put_place(into, self.at);
        into.put_u16(self.flags);
        put_print(into, self.print);
        OwnPosition::put(self.position, into);
        into.put_u64(self.behind);
    }

    fn get(from: &mut &[u8]) -> Self {
        Self {
            id: get_id(from),
            at: get_place(from),
            flags: from.get_u16(),
            print: get_print(from),
            position: OwnPosition::get(from),
            behind: from.get_u64(),
        }
    }
}

/// A message's place in the order of its aggregate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderRecord {
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

impl Spilled for OrderRecord {
    const BYTES: usize = 8 + 10 + 16 + 14 + 1 + 16 + 1;

    fn put(&self, into: &mut Vec<u8>) {
        into.put_u64(self.aggregate);
        put_place(into, self.at);
        into.put_slice(self.id.as_bytes());
        OwnPosition::put(self.position, into);
        let (insertion, transaction) = self.inserted.unwrap_or_default();
        into.put_u8(self.inserted.is_some().into());
        into.put_i64(insertion);
        into.put_u64(transaction);
        into.put_u8(self.may_be_late.into());
    }

    fn get(from: &mut &[u8]) -> Self {
        let (aggregate, at, id) = (from.get_u64(), get_place(from), get_id(from));
        let position = OwnPosition::get(from);
        let is_inserted = from.get_u8() == 1;
        let inserted = (from.get_i64(), from.get_u64());
        let may_be_late = from.get_u8() == 1;
        let inserted = is_inserted.then_some(inserted);
        Self { aggregate, at, id, position, inserted, may_be_late }
    }
}

/// A message without a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrphanRecord {
    pub(crate) at: Place,
    /// `None` if the message has the headers of a relay and no id.
    pub(crate) id: Option<Uuid>,
}

impl Spilled for OrphanRecord {
    const BYTES: usize = 10 + 1 + 16;

    fn put(&self, into: &mut Vec<u8>) {
        put_place(into, self.at);
        into.put_u8(self.id.is_some().into());
        into.put_slice(self.id.unwrap_or_default().as_bytes());
    }

    fn get(from: &mut &[u8]) -> Self {
        let at = get_place(from);
        let has_id = from.get_u8() == 1;
        let id = get_id(from);
        Self { at, id: has_id.then_some(id) }
    }
}

fn put_place(into: &mut Vec<u8>, at: Place) {
    into.put_u16(at.stream);
    into.put_u64(at.sequence);
}

fn get_place(from: &mut &[u8]) -> Place {
    Place { stream: from.get_u16(), sequence: from.get_u64() }
}

fn get_id(from: &mut &[u8]) -> Uuid {
    Uuid::from_u128(from.get_u128())
}

fn put_print(into: &mut Vec<u8>, print: Fingerprint) {
    let Fingerprint { payload, headers, occurred_at, subject, aggregate } = print;
    for part in [payload, headers, occurred_at, subject, aggregate] {
        into.put_u64(part);
    }
}

fn get_print(from: &mut &[u8]) -> Fingerprint {
    Fingerprint {
        payload: from.get_u64(),
        headers: from.get_u64(),
        occurred_at: from.get_u64(),
        subject: from.get_u64(),
        aggregate: from.get_u64(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again<T: Spilled>(record: &T) -> T {
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        assert_eq!(bytes.len(), T::BYTES);
        let mut rest = &bytes[..];
        let read = T::get(&mut rest);
        assert!(rest.is_empty());
        read
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were(
            (id, flags, sequence, lsn, parts) in any::<(u128, u16, u64, u64, [u64; 5])>(),
            (insertion, transaction, named, history) in any::<(i64, u64, u8, u16)>(),
        ) {
            let id = Uuid::from_u128(id);
            let [payload, headers, occurred_at, subject, aggregate] = parts;
            let print = Fingerprint { payload, headers, occurred_at, subject, aggregate };
            let at = Place { stream: flags / 2, sequence };
            let position = (history > 0).then_some(OwnPosition { history, lsn, ordinal: 7 });
            let named = match named % 4 {
                0 => Named::Nowhere,
                1 => Named::Elsewhere,
                2 => Named::Here { stream: 3, sequence: None },
                _ => Named::Here { stream: 3, sequence: Some(sequence.max(1)) },
            };
            let occurred_micros = insertion / 3;
            let row = RowRecord {
                id, flags, shard: 2, named, print, insertion, transaction, occurred_micros,
            };
            prop_assert_eq!(format!("{row:?}"), format!("{:?}", again(&row)));
            let message = MessageRecord { id, at, flags, print, position, behind: lsn };
            prop_assert_eq!(format!("{message:?}"), format!("{:?}", again(&message)));
            let inserted = (flags % 2 == 0).then_some((insertion, transaction));
            let order =
                OrderRecord { aggregate, at, id, position, inserted, may_be_late: flags % 3 == 0 };
            prop_assert_eq!(format!("{order:?}"), format!("{:?}", again(&order)));
            let orphan = OrphanRecord { at, id: (flags % 2 == 0).then_some(id) };
            prop_assert_eq!(format!("{orphan:?}"), format!("{:?}", again(&orphan)));
        }
    }
}
