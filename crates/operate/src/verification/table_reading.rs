//! Rows, from the table to files.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use relay::Error;
use relay::access::{Rows, Unpublished};
use ring::digest;
use uuid::Uuid;

use super::Run;
use super::removals::Removals;
use crate::spill_files::{Division, Parts};
use crate::sql::{ComparedRow, ReadRange};
use crate::verify_rules::fingerprint::Fingerprint;
use crate::verify_rules::spilled::{Named, RowRecord};

/// The progress is told after so many.
const TOLD_EVERY: u64 = 1_000;

/// The streams that are read, by name.
pub(super) struct Names {
    numbers: HashMap<String, u16>,
    names: Vec<String>,
}

impl Names {
    pub(super) fn new(names: Vec<String>) -> Self {
        let numbers = names.iter().cloned().zip(0..).collect();
        Self { numbers, names }
    }

    /// What a mark says.
    pub(super) fn named(&self, stream: Option<&str>, sequence: Option<i64>) -> Named {
        let Some(stream) = stream else { return Named::Nowhere };
        match self.numbers.get(stream) {
            Some(number) => {
                let sequence = sequence.map(i64::cast_unsigned).filter(|it| *it > 0);
                Named::Here { stream: *number, sequence }
            }
            None => Named::Elsewhere,
        }
    }

    pub(super) fn name(&self, stream: u16) -> Option<String> {
        self.names.get(usize::from(stream)).cloned()
    }
}

/// Spreads ids evenly, of whatever kind they are.
pub(super) fn key_of(id: Uuid) -> u64 {
    let (high, low) = id.as_u64_pair();
    let mixed = (high ^ low.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 32
}

/// Whether an event is compared. PostgreSQL computes the same.
pub(super) fn is_sampled(id: Uuid, sample: u32) -> bool {
    if sample <= 1 {
        return true;
    }
    let hash = digest::digest(&digest::SHA256, id.as_bytes());
    let first = hash.as_ref().first_chunk().copied().unwrap_or_default();
    u32::from_be_bytes(first).is_multiple_of(sample)
}

impl Run<'_> {
    /// Reads the rows and what lies beside them, in the snapshot.
    pub(super) async fn table_records(
        &self,
        names: &Names,
        range: &ReadRange,
        parts: usize,
    ) -> Result<Parts<RowRecord>, Error> {
        let mut division = Division::new(&self.folder, "rows", parts)?;
        // Each shard has subjects of its own.
        let table = || self.config.table.clone();
        let mapping: Vec<Rows> =
            self.shards.iter().map(|it| Rows::new(table(), it.routing())).collect();
        let removals: Vec<_> = self.streams.iter().map(|it| it.removals.as_ref()).collect();
        let mut rows = self.snapshot.compared_rows(range).await?;
        let mut read = 0_u64;
        while let Some(row) = rows.next().await? {
            read += 1;
            if read.is_multiple_of(TOLD_EVERY) {
                self.progress.send_modify(|it| it.read += TOLD_EVERY);
            }
            let record = record(&row, &mapping, names, &removals)?;
            division.write(key_of(record.id), &record)?;
        }
        drop(rows);
        let beside = self.snapshot.beside().await?;
        let mut beside = std::pin::pin!(beside);
        while let Some(beside) = beside.try_next().await? {
            if is_sampled(beside.id, range.sample) {
                let named = names.named(beside.named.0.as_deref(), beside.named.1);
                let flags = match (beside.is_dead, named) {
                    (true, _) if beside.is_discarded => RowRecord::DEAD | RowRecord::DISCARDED,
                    (true, _) => RowRecord::DEAD,
                    (false, Named::Nowhere) => RowRecord::OWED | RowRecord::DROPPED,
                    (false, _) => RowRecord::OWED,
                };
                let record = RowRecord { named, ..RowRecord::of_id(beside.id, flags) };
                division.write(key_of(record.id), &record)?;
            }
        }
        division.finish()
    }
}

fn record(
    row: &ComparedRow,
    mapping: &[Rows],
    names: &Names,
    removals: &[Option<&Removals>],
) -> Result<RowRecord, Error> {
    let shard = row.shard()?;
    let mapping = mapping.get(usize::from(shard)).or(mapping.first());
    let mapping = mapping.ok_or(Error::Stalled("there is no shard"))?;
    let outgoing = mapping.scanned(row.scanned())?;
    let event = &outgoing.event;
    let (stream, sequence) = row.named()?;
    let mut flags = 0;
    let mut set = |flag, is_set| flags |= if is_set { flag } else { 0 };
    let subject = match &outgoing.subject {
        Ok(subject) => Some(subject.as_str()),
        Err(Unpublished::Dropped) => {
            set(RowRecord::ROUTED_AWAY, true);
            None
        }
        Err(Unpublished::Unfit(_) | Unpublished::NoEvent(_)) => {
            set(RowRecord::UNFIT, true);
            None
        }
    };
    let print = Fingerprint::of_event(event, subject);
    set(RowRecord::UNFIT, print.is_err());
    let is_marked = row.is_marked()?;
    set(RowRecord::MARKED, is_marked);
    set(RowRecord::DROPPED, is_marked && row.is_dropped()?);
    set(RowRecord::TRIED, row.attempts()? > 0);
    set(RowRecord::TIMELESS, row.is_timeless()?);
    let named = if is_marked { names.named(stream.as_deref(), sequence) } else { Named::Nowhere };
    let (of, sequence) = match named {
        Named::Here { stream, sequence } => (stream, sequence),
        Named::Elsewhere | Named::Nowhere => (shard, None),
    };
    let removals = removals.get(usize::from(of)).copied().flatten();
    let at_micros = row.published_micros()?;
    flags |= removals.map_or(0, |it| it.flags(sequence, subject.unwrap_or_default(), at_micros));
    Ok(RowRecord {
        id: event.id,
        flags,
        shard,
        named,
        print: print.unwrap_or_default(),
        insertion: row.insertion()?,
        transaction: row.transaction()?,
        occurred_micros: event.occurred_at.as_microsecond(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_kind_are_spread() {
        // Random, by time, and by time with a fixed end.
        let kinds: [fn(u128) -> Uuid; 3] = [
            |_| Uuid::new_v4(),
            |n| Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | n << 64),
            |n| Uuid::from_u128(n << 96 | 0x11ee_8000_0242_ac12_0002),
        ];
        for kind in kinds {
            let mut counts = [0_u32; 128];
            for n in 0..12_800 {
                counts[usize::try_from(key_of(kind(n)) % 128).expect("small")] += 1;
            }
            let (least, most) = (counts.iter().min(), counts.iter().max());
            assert!(least > Some(&40) && most < Some(&200), "{least:?} {most:?}");
        }
    }

    #[test]
    fn a_mark_names_a_stream_that_is_read_or_another() {
        let names = Names::new(vec!["A".into(), "B".into()]);
        let here = |sequence| Named::Here { stream: 1, sequence };
        assert_eq!(names.named(Some("B"), Some(7)), here(Some(7)));
        assert_eq!(names.named(Some("B"), None), here(None));
        assert_eq!(names.named(Some("C"), Some(7)), Named::Elsewhere);
        assert_eq!(names.named(None, None), Named::Nowhere);
        assert_eq!(names.name(1).as_deref(), Some("B"));
    }
}
