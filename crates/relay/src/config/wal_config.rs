//! PostgreSQL's log: how much of it the slot may keep, and what is taken from it.

use servers::Error;

use super::{Config, Mode};

/// The log that the server keeps for the slot while the broker takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalConfig {
    /// From how many bytes on the relay says that it is too much; the server's own limit is
    /// `max_slot_wal_keep_size`.
    pub limit: Option<u64>,
    /// Whether events are taken that are messages in the log, without a row (`outbox_emit_wal`).
    pub messages: bool,
}

impl WalConfig {
    pub(super) fn check(self, config: &Config) -> Result<(), Error> {
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
        if config.shards.count() > 1 {
            return refused(
                "does not work with relay.shards above 1: every shard's slot would bring all of \
                 them; take relay.shards = 1",
            );
        }
        Ok(())
    }
}
