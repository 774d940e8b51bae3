//! Waiting until events are published.
//!
//! A relay tells those who wait in its own process as soon as the broker has stored an event. What
//! it did not publish itself, or before, is asked of the table, for all who wait at once.

pub mod effects;

use std::convert::Infallible;
use std::time::Duration;

use outbox::waiting::{Seen, Waiting};
use relay::{Config, Error, EventState, describe};
use tokio::time::{Instant, sleep};
use tracing::warn;
use uuid::Uuid;

use crate::sql::Store;

/// Before the database is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Between two looks at whether everything is published.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Answers those who wait, from the table, for as long as the future is polled. There is a
/// connection while a request waits and for 10 s longer.
pub async fn answer(config: &Config, waiting: &Waiting<EventState>) -> Infallible {
    loop {
        waiting.begun().await;
        if let Err(error) = look(config, waiting).await {
            warn!(error = describe(&error), "cannot look for events that somebody waits for");
            sleep(PAUSE).await;
        }
    }
}

async fn look(config: &Config, waiting: &Waiting<EventState>) -> Result<(), Error> {
    let store = Store::brief(config, "tailpost wait").await?;
    waiting.look(|ids| store.look_up(ids)).await
}

/// Waits until something final is known about the event, for `patience` at most, and returns what is
/// known then. Asks the table every 50 ms, so that the answer comes up to a mark's delay after the
/// broker's.
///
/// # Errors
///
/// If PostgreSQL refuses or cannot be reached.
///
/// # Cancel safety
///
/// Dropping the future ends the waiting.
pub async fn for_event(config: &Config, id: Uuid, patience: Duration) -> Result<EventState, Error> {
    let waiting = Waiting::default();
    let seen = tokio::select! {
        seen = waiting.wait(id, patience) => seen,
        Err(error) = look(config, &waiting) => return Err(error),
    };
    let silent = Error::Stalled("the server did not say what became of the event");
    seen.ok().flatten().map(Seen::into_inner).ok_or(silent)
}

/// Waits until everything that was committed when it began is published, parked, or dropped by a
/// route, for `patience` at most. Returns how many events are not, counted up to 10,000.
///
/// With `relay.wal_messages` it is also waited until the slot is confirmed that far.
///
/// With `relay.mark = "lean"` an event counts as published when a watermark covers it.
///
/// # Errors
///
/// If PostgreSQL refuses or cannot be reached.
///
/// # Cancel safety
///
/// Dropping the future ends the waiting.
pub async fn for_everything(config: &Config, patience: Duration) -> Result<u64, Error> {
    let until = Instant::now() + patience;
    let store = Store::brief(config, "tailpost wait").await?;
    let committed = store.observe().await?.snapshot;
    let log_end = match config.wal.messages {
        true => Some(store.mark_the_end().await?),
        false => None,
    };
    loop {
        let mut unpublished = store.count_unpublished(&committed).await?;
        if let (0, Some(end)) = (unpublished, log_end) {
            // Events without a row are published when the slot is confirmed. Who knows how many.
            let is_confirmed = store.is_confirmed(&config.slot, end).await?;
            unpublished = u64::from(!is_confirmed);
        }
        if unpublished == 0 || Instant::now() >= until {
            return Ok(unpublished);
        }
        sleep(LOOK_EVERY).await;
    }
}
