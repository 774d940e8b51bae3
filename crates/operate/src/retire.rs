//! The end of a slot that belongs to another number of shards than there are now.
//!
//! The rows that it published must be marked before another slot's scanner looks, or they are published
//! again, in another stream. It is the same work that precedes a new slot in place of a lost one, with
//! the names that the old slot had. What it did not publish stays unmarked, and is the new scanners',
//! which publish it before anything newer.

use std::time::Duration;

use async_nats::Client;
use relay::access::{TailReader, slot, stream_check};
use relay::{Config, Error};
use tracing::info;

use crate::sql::Store;

/// How often it is looked whether transactions have ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Marks what was published from a slot that is gone, and removes its record.
///
/// Nothing is published from it meanwhile: it does not exist, and a process that would create it anew
/// waits for the lock. If it is killed, it is done again from the start. What a killed relay had sent
/// may still be on its way to the stream. A drain before prevents that: it sends the same events, so
/// that the broker refuses the late ones.
///
/// # Errors
///
/// [`Error::Unusable`] if it cannot be told any more what was published.
pub(crate) async fn retire(config: &Config, slot: &str, client: &Client) -> Result<(), Error> {
    let before = config.before(slot);
    let former = before.as_ref().unwrap_or(config);
    let store = Store::patient(former, "tailpost setup").await?;
    store.lock_slot(slot).await?;
    if store.slot_exists(slot).await? {
        return Err(Error::SlotBusy { slot: slot.to_owned() }); // made anew just now
    }
    let state = store.load_state(slot).await?;
    let system_id = slot::system_identifier(config).await?;
    if let Some(state) = state.as_ref().filter(|it| it.system_identifier != system_id) {
        // It was another cluster's. What its stream has is published, if there still is such a stream.
        let stream = &former.stream.name;
        let tail = match stream_check::find(client, stream).await? {
            Some(_) => Some(TailReader::new(client, stream).await?),
            None => None,
        };
        slot::finish_epoch(former, &store, tail.as_ref(), &system_id, state).await?;
    } else {
        await_visibility(&store).await?;
        if store.count_unmarked(1).await? > 0 {
            let Some(before) = &before else { return Err(renamed(slot)) };
            let stream = &before.stream.name;
            if stream_check::find(client, stream).await?.is_none() {
                return Err(no_stream(slot, stream));
            }
            let tail = TailReader::new(client, stream).await?;
            if let Some(state) = &state {
                slot::finish_epoch(before, &store, Some(&tail), &system_id, state).await?;
            }
        }
    }
    store.forget_slot(slot).await?;
    store.unlock_slot(slot).await
}

/// Waits until every transaction that the log may have brought is visible: while a commit waits for a
/// synchronous standby, its rows are published and cannot be marked.
async fn await_visibility(store: &Store) -> Result<(), Error> {
    let (newest, mut oldest) = store.running().await?;
    if oldest < newest {
        info!("waiting for running transactions");
    }
    while oldest < newest {
        tokio::time::sleep(LOOK_EVERY).await;
        oldest = store.running().await?.1;
    }
    Ok(())
}

fn renamed(slot: &str) -> Error {
    let shards = Config::shards_of_slot(slot);
    Error::Unusable {
        problem: format!(
            "replication slot \"{slot}\" had another configuration, and rows wait that may have been \
             published from it"
        ),
        fix: format!(
            "change relay.shards and nothing else: keep postgres.slot and stream.name as they were \
             for \"{slot}\", whose relay.shards was {shards}; or, if another slot has taken its place \
             long since, remove its record: DELETE FROM tailpost_state WHERE slot = '{slot}'"
        ),
    }
}

fn no_stream(slot: &str, stream: &str) -> Error {
    Error::Unusable {
        problem: format!(
            "rows wait that may have been published from replication slot \"{slot}\", and stream \
             \"{stream}\", which would tell, does not exist"
        ),
        fix: format!(
            "bring the stream back; or, if every unmarked row may be published again, remove the \
             slot's row from tailpost_state: DELETE FROM tailpost_state WHERE slot = '{slot}'"
        ),
    }
}
