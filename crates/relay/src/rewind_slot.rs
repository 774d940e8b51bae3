//! Looks after the slot that trails behind, beside a relay.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::config::{Config, Mode, RewindConfig};
use crate::describe;
use crate::error::Error;
use crate::postgres::{Store, answered};

/// How often the slot is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long a statement waits for others' locks.
const WAITS: &str = "1s";

/// Keeps the rewind slot of a shard as [`Config::rewind`] says, for as long as the future is polled. Of
/// several processes one does it. Where there is to be none, one that is left is dropped.
///
/// A failure is logged when it begins, and is no reason to end anything.
///
/// # Cancel safety
///
/// Dropping the future ends it after the statement that runs.
pub async fn keep(config: &Config) -> Infallible {
    let (mut store, mut failed) = (None, false);
    if config.mode == Mode::Poll {
        return std::future::pending().await;
    }
    loop {
        match look(config, &mut store).await {
            Ok(()) if config.rewind.retain.is_none() => break,
            Ok(()) => failed = false,
            Err(error) => {
                store = None;
                let why = describe(&error);
                match std::mem::replace(&mut failed, true) {
                    false => warn!(error = why, hint = error.hint(), "cannot keep the rewind slot"),
                    true => debug!(error = why, "cannot keep the rewind slot"),
                }
            }
        }
        sleep(LOOK_EVERY).await;
    }
    std::future::pending().await
}

async fn look(config: &Config, kept: &mut Option<Store>) -> Result<(), Error> {
    let store = match kept.take() {
        Some(store) => store,
        None => {
            let store = Store::connect(config, "tailpost rewind").await?;
            answered("configure the session", store.wait_for_locks(Some(WAITS))).await?;
            answered("look for the outbox", store.check_tables()).await?;
            store
        }
    };
    let (slot, name) = (&config.slot, RewindConfig::slot(&config.slot));
    let doing = "look at the rewind slot";
    let found = answered(doing, store.rewind_slot(slot, &name)).await?;
    match (config.rewind.retain, found) {
        (None, None) => {}
        (None, Some(_)) => {
            store.drop_slot(&name).await?;
            info!(slot = name, "dropped the rewind slot: rewind.retain is off");
        }
        (Some(_), Some(found)) if found.is_lost => {
            // It goes before anything else has to. The next look makes it anew.
            store.drop_slot(&name).await?;
            warn!(slot = name, "dropped the rewind slot: PostgreSQL has no room for its log");
        }
        (Some(retain), _) => {
            if answered(doing, store.try_lock_rewind(slot)).await? {
                if found.is_none() && answered(doing, store.slot_exists(slot)).await? {
                    store.copy_slot(slot, &name, false).await?;
                    info!(slot = name, "made the rewind slot");
                }
                store.trail(slot, &name, retain, config.rewind.max_age).await?;
            }
        }
    }
    *kept = Some(store);
    Ok(())
}
