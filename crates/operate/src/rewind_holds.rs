//! What the rewind slot has of a replay.

use relay::{Config, Error, ReplaySelection, ReplaySource, RewindConfig};

use super::replay_plan::SourceHolds;
use crate::sql::{RewindSlot, Store};

/// What the rewind slot keeps.
pub(super) async fn wal_holds(
    config: &Config,
    store: &Store,
    selection: &ReplaySelection,
) -> Result<SourceHolds, Error> {
    let reading = store.rewind_slot(&config.slot, &RewindConfig::slot(&config.slot)).await?;
    let own = store.slot_progress(&config.slot).await?;
    // Where that ends, what a replay may bring ends.
    let slot = reading.slot.filter(|it| !it.is_lost() && own.is_some());
    let until = own.map_or(0, |it| it.confirmed.0);
    let reaches = |it: &RewindSlot| {
        selection.from_lsn.is_some_and(|from| from >= it.confirmed)
            || selection.since.zip(it.from).is_some_and(|(since, from)| since >= from)
    };
    let note = match (&slot, config.rewind.retain) {
        (None, None) => Some("off: rewind.retain keeps it".to_owned()),
        (None, Some(_)) if own.is_none() => {
            Some("the relay's own slot is not there: start a relay, which makes it".to_owned())
        }
        (None, Some(_)) => Some("the rewind slot is not there now: see `tailpost status`".into()),
        (Some(slot), _) if reaches(slot) => None,
        (Some(_), _) => Some("what committed before is not in it".into()),
    };
    let at =
        |it: &RewindSlot| it.from.map_or_else(|| it.confirmed.to_string(), |it| it.to_string());
    Ok(SourceHolds {
        source: ReplaySource::Wal.name(),
        from: slot.as_ref().map(at),
        first_sequence: None,
        from_lsn: slot.as_ref().map(|it| it.confirmed),
        bytes: slot.as_ref().map(|it| it.retained_bytes),
        events: None,
        is_exact: false,
        is_complete: slot.as_ref().is_some_and(reaches),
        note,
        places: (1, until),
    })
}

/// Refuses to read the log where it is not kept, and where it begins behind what is asked for.
pub(super) fn check_log(of_wal: &SourceHolds, selection: &ReplaySelection) -> Result<(), Error> {
    let Some(first) = of_wal.from_lsn else {
        let note = of_wal.note.as_deref().unwrap_or_default();
        return Err(Error::Conflict(format!(
            "the log is not kept for replays ({note}): set rewind.retain, and replay what commits from \
             then on"
        )));
    };
    match selection.from_lsn {
        Some(from) if from < first => Err(Error::Conflict(format!(
            "the log is kept from {first} on, and not from {from}: ask for --from-lsn {first}, or \
             for another source"
        ))),
        _ => Ok(()),
    }
}
