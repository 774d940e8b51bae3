//! A slot that PostgreSQL is to make, which may take as long as the oldest transaction of the cluster.

use pgoutput::Lsn;
use pgwire_replication::IdentifySystem;
use tracing::{debug, info};

use super::open_slot::OpenSlot;
use super::sql::Store;
use super::start_snapshot::readable;
use super::walsender::{Replication, number, text};
use crate::config::Config;
use crate::error::Error;

/// A server that waits for others looks at nothing else, and a slot whose relay has gone
/// is in the way of the next relay. Some platforms cannot.
const END_IF_ALONE: &str = "SET client_connection_check_interval = '1s'";

const DOING: &str = "create the replication slot";

/// A slot to be made. It is announced, and locked over the connection that announced it: whoever is
/// interrupted from now on leaves one that nobody relies on.
pub(crate) struct NewSlot {
    session: Replication,
    identity: IdentifySystem,
}

impl NewSlot {
    pub(super) async fn announce(
        config: &Config,
        store: &Store,
        mut session: Replication,
        identity: IdentifySystem,
        reason: &str,
    ) -> Result<Self, Error> {
        let timeline = timeline(&identity);
        store.announce_beside_no_others(config, &identity.system_id, timeline, reason).await?;
        if let Err(error) = session.query(END_IF_ALONE, "configure the session").await {
            debug!(%error, "the server does not notice who is gone");
        }
        Ok(Self { session, identity })
    }

    /// What is known of the slot until it is made. The process that makes it is who reads it.
    pub(crate) fn awaited(&self) -> Result<OpenSlot, Error> {
        OpenSlot::new(&self.session, &self.identity, String::new(), Lsn::ZERO)
    }

    /// Makes it, and writes down what it brings. Returns it with the session that made it.
    pub(super) async fn make(
        self,
        config: &Config,
        store: &Store,
    ) -> Result<(Replication, OpenSlot), Error> {
        let Self { mut session, identity } = self;
        let slot = &config.slot;
        info!(slot, "creating the replication slot (waits for running transactions)");
        let version: u32 =
            number(&session.single("SELECT current_setting('server_version_num')").await?)?;
        session.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", DOING).await?;
        let options = match version {
            170_000.. => "(SNAPSHOT 'use', FAILOVER)",
            150_000.. => "(SNAPSHOT 'use')",
            _ => "USE_SNAPSHOT",
        };
        let sql = format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput {options}");
        let rows = session.create_slot(store.bound(), &sql).await?;
        let consistent_point = rows.first().and_then(|row| text(row.get(1)?.as_ref()));
        let start_snapshot = readable(session.single("SELECT pg_current_snapshot()").await?);
        session.query("COMMIT", DOING).await?;
        let start: Lsn = consistent_point
            .and_then(|point| point.parse().ok())
            .ok_or(Error::Stalled("the server did not say where the new slot begins"))?;
        let (system_id, timeline) = (&identity.system_id, timeline(&identity));
        store.begin_epoch(slot, system_id, timeline, &start_snapshot, start).await?;
        // Else the first scan has to wait until it can see everything.
        if !store.has_hidden(&start_snapshot).await? {
            store.note_if_no_gap(slot).await?;
        }
        info!(slot, %start, "created the replication slot");
        let open = OpenSlot::new(&session, &identity, start_snapshot, start)?;
        Ok((session, open))
    }
}

fn timeline(identity: &IdentifySystem) -> i32 {
    i32::try_from(identity.timeline).unwrap_or(i32::MAX)
}
