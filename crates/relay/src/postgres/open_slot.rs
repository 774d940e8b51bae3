//! What a session knows of its slot.

use pgoutput::Lsn;
use pgwire_replication::IdentifySystem;

use super::walsender::{Replication, number};
use crate::error::Error;
use crate::nats::History;

/// The slot as it was when the session began.
pub(crate) struct OpenSlot {
    /// Of the cluster and the timeline in which it is read.
    pub(crate) history: History,
    /// What was committed when the slot was created: the log does not bring it.
    pub(crate) start_snapshot: String,
    /// The process that reads the slot for us: while it does, nobody else publishes from it.
    pub(crate) reader: i32,
    /// What PostgreSQL may forget already; the slot brings nothing that ended before.
    pub(crate) confirmed: Lsn,
}

impl OpenSlot {
    /// `identity` was read on the session that will stream.
    pub(super) fn new(
        session: &Replication,
        identity: &IdentifySystem,
        start_snapshot: String,
        confirmed: Lsn,
    ) -> Result<Self, Error> {
        let (system_id, timeline) = (number(&identity.system_id)?, identity.timeline);
        let history = History { system_id, timeline };
        Ok(Self { history, start_snapshot, reader: session.pid(), confirmed })
    }
}
