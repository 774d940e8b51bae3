//! How a second relay waits for the slot.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::Config;
use crate::error::Error;
use crate::postgres::Store;
use crate::reporter::Reporter;

/// How often a standby looks whether the slot is free. A relay that fell silent keeps it for 5 s:
/// `postgres/slot.rs` has PostgreSQL give up then.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Waits until nobody reads the slot, or for the next attempt if that cannot be seen.
pub(crate) async fn wait(config: &Config, stop: &CancellationToken, reporter: &mut Reporter) {
    info!(slot = config.slot, "another relay reads the slot: standing by");
    let free = async {
        let store = Store::brief(config, "tailpost standby").await?;
        let mut reader = None;
        while let Some(it) = store.slot_reader_named(&config.slot).await? {
            if reader.as_ref() != Some(&it) {
                let slot = &config.slot;
                reporter.waiting(Some(format!("for slot {slot}, which {it} reads")));
                reader = Some(it);
            }
            reporter.alive();
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok::<(), Error>(())
    };
    tokio::select! {
        watched = free => if watched.is_err() {
            tokio::time::sleep(LOOK_EVERY).await;
        },
        () = stop.cancelled() => {}
    }
}
