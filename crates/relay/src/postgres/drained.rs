//! Whether a slot has brought every event that nothing else has.

use super::opening::Opening;
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
pub(crate) async fn check(
    config: &Config,
    opening: &Opening,
    store: &Store,
    how: &str,
) -> Result<(), Error> {
    let slot = &config.slot;
    opening.on(store, "look at the tables", store.check_tables()).await?;
    let state = opening.on(store, "read the relay's state", store.load_state(slot)).await?;
    let exists = opening.on(store, "look at the slot", store.slot_exists(slot)).await?;
    if !exists || !state.is_some_and(|it| it.takes_messages) {
        return Ok(());
    }
    if opening.on(store, "look at the slot", store.slot_reader(slot)).await?.is_some() {
        return Err(Error::SlotBusy { slot: slot.clone() });
    }
    // Whoever is interrupted behind this has not looked: the next one does.
    let refuse = store.refuse_wal_messages(slot);
    opening.on(store, "say that no messages are taken", refuse).await?;
    let Err(reason) = undrained(config, opening, store).await else {
        let forget = store.forget_wal_messages(slot);
        return opening.on(store, "say that no messages are taken", forget).await;
    };
    let accept = store.accept_wal_messages(slot);
    opening.on(store, "say that messages are taken", accept).await?;
    Err(Error::Conflict(format!(
        "{reason}; let `tailpost relay --once` publish what there is with relay.wal_messages = \
         true, or {how}"
    )))
}

/// An error that says why events without a row may be lost with the slot.
async fn undrained(config: &Config, opening: &Opening, store: &Store) -> Result<(), String> {
    let slot = &config.slot;
    let unknown = |error: Error| {
        let why = describe(&error);
        format!("nobody knows whether slot \"{slot}\" has events of outbox_emit_wal: {why}")
    };
    let outwaited = opening.on(store, "wait for transactions", store.outwait_transactions()).await;
    if !outwaited.map_err(unknown)? {
        return Err("transactions are open that may have called outbox_emit_wal".into());
    }
    let unread = store.unread_messages(slot, &config.publication);
    let doing = "look at what the slot has not brought";
    match opening.on(store, doing, unread).await.map_err(unknown)? {
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
