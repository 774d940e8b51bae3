//! Whether a slot has brought every event that nothing else has.

use super::sql::{Store, Unread};
use crate::config::Config;
use crate::describe;
use crate::error::Error;

/// Makes sure that no event without a row is lost when the slot goes, or brings them in vain. From
/// then on none is accepted. `how` is how they would be lost.
///
/// # Errors
///
/// [`Error::SlotBusy`] while a relay reads the slot, [`Error::Conflict`] if an event would be lost.
pub async fn check(config: &Config, store: &Store, how: &str) -> Result<(), Error> {
    let slot = &config.slot;
    store.check_tables().await?;
    let state = store.load_state(slot).await?;
    let exists = store.slot_exists(slot).await?;
    if !exists || !state.is_some_and(|it| it.takes_messages) {
        return Ok(());
    }
    if store.slot_reader(slot).await?.is_some() {
        return Err(Error::SlotBusy { slot: slot.clone() });
    }
    // Whoever is interrupted behind this has not looked: the next one does.
    store.refuse_wal_messages(slot).await?;
    let Err(reason) = undrained(config, store).await else {
        return store.forget_wal_messages(slot).await;
    };
    store.accept_wal_messages(slot).await?;
    Err(Error::Conflict(format!(
        "{reason}; let `tailpost relay --once` publish what there is with relay.wal_messages = \
         true, or {how}"
    )))
}

/// An error that says why events without a row may be lost with the slot.
async fn undrained(config: &Config, store: &Store) -> Result<(), String> {
    let slot = &config.slot;
    let unknown = |error: Error| {
        let why = describe(&error);
        format!("nobody knows whether slot \"{slot}\" has events of outbox_emit_wal: {why}")
    };
    if !store.outwait_transactions().await.map_err(unknown)? {
        return Err("transactions are open that may have called outbox_emit_wal".into());
    }
    let unread = store.unread_messages(slot, &config.publication).await;
    match unread.map_err(unknown)? {
        Unread::Nothing => Ok(()),
        Unread::Something => Err(format!(
            "slot \"{slot}\" has events of outbox_emit_wal that are not published, and no table \
             has them"
        )),
        Unread::Unknown => Err(format!(
            "slot \"{slot}\" has many changes that are not published, and events of \
             outbox_emit_wal, which no table has, may be among them"
        )),
    }
}
