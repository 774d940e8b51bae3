//! PostgreSQL's log: how much of it the slot may keep, and what is taken from it.

use super::{Config, Mode};
use crate::connect_error::Error;

/// The log that the server keeps for the slot while the broker takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalConfig {
    /// How many bytes it may be; `None` leaves it to the server's `max_slot_wal_keep_size`.
    pub limit: Option<u64>,
    /// What is done when it is more.
    pub on_limit: OnWalLimit,
    /// Whether events are taken that are messages in the log, without a row (`outbox_emit_wal`).
    pub messages: bool,
}

/// What is done when the slot keeps more log than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnWalLimit {
    /// Say so, and keep it.
    #[default]
    Hold,
    /// Drop the slot; create it anew when the broker is back, and take the gap from the table.
    DropSlotAndScan,
}

impl WalConfig {
    pub(super) fn check(self, config: &Config) -> Result<(), Error> {
        if self.on_limit != OnWalLimit::Hold && self.limit.is_none() {
            return Err(Error::invalid("relay.on_wal_limit", "needs relay.wal_limit"));
        }
        if self.limit.is_some_and(|limit| limit < 1 << 20) {
            return Err(Error::invalid("relay.wal_limit", "must be at least 1MiB"));
        }
        if !self.messages {
            return Ok(());
        }
        let refused = |reason| Err(Error::invalid("relay.wal_messages", reason));
        if config.mode == Mode::Poll {
            return refused(
                "does not work with relay.mode = \"poll\", which reads the table and not the log; \
                 take \"fenced\" or \"keyed\"",
            );
        }
        if self.on_limit == OnWalLimit::DropSlotAndScan {
            return refused(
                "does not work with relay.on_wal_limit = \"drop_slot_and_scan\": no table has such \
                 events, so that they would be lost with the slot; take \"hold\"",
            );
        }
        if config.shards.count() > 1 {
            return refused(
                "does not work with relay.shards above 1: every shard's slot would bring all of \
                 them; take relay.shards = 1",
            );
        }
        Ok(())
    }
}
