//! The replication slot goes, in the ways that slots go.

use crate::postgres::Postgres;
use anyhow::Result;

use super::{Daemons, Lab, Servers};
use crate::chaos::wait::until;

/// PostgreSQL gives up a slot that keeps more than a segment of the log.
pub(super) const LITTLE_LOG: Servers =
    Servers { postgres: &[("max_slot_wal_keep_size", "1MB")], ..Servers::PLAIN };

/// Between its reader's end and the next one's start.
pub(in crate::chaos) const DROP_SLOT: &str = "SELECT pg_terminate_backend(active_pid, 1000), pg_drop_replication_slot(slot_name) \
     FROM pg_replication_slots WHERE slot_name = 'tailpost'";

pub(super) async fn invalidated(lab: &mut Lab) -> Result<Daemons> {
    let relay = lab.active_relay().await?;
    lab.wait_committed(300).await?;
    lab.nats.pause()?;
    lab.wait_committed(100).await?;
    let lost = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = 'tailpost'";
    until("the slot's log is removed", async || {
        lab.execute("SELECT pg_logical_emit_message(false, 'other', 'work')").await?;
        lab.execute("SELECT pg_switch_wal()").await?;
        lab.execute("CHECKPOINT").await?;
        Ok(lab.query::<Option<bool>>(lost).await? == Some(true))
    })
    .await?;
    lab.say("NATS hangs, and PostgreSQL removed log that the slot needs");
    lab.nats.resume()?;
    lab.fault_is_over();
    relay.wait_log("PostgreSQL gave the slot's log up").await?;
    lab.wait_committed(100).await?;
    lab.recovers("NATS goes on; recovered").await?;
    Ok(vec![relay])
}

pub(super) async fn failover(lab: &mut Lab) -> Result<Daemons> {
    let standby = Postgres::start_standby_of(&lab.postgres, "standby_1", true).await?;
    let relay = lab.active_relay().await?;
    lab.wait_committed(300).await?;
    lab.recover().await?;
    relay.kill().await?;
    // Their marks lag when the primary dies.
    lab.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = lab.active_relay().await?;
    lab.wait_committed(200).await?;
    lab.recover().await?;
    relay.kill().await?;
    // What it published is on the standby when this is.
    lab.wait_committed(100).await?;
    lab.postgres.kill().await?;
    let promoted = standby.client("postgres").await?;
    promoted.batch_execute("SELECT pg_promote()").await?;
    let old = lab.replace_postgres(standby);
    lab.fault_is_over();
    lab.say("killed the primary, promoted the standby, which has no slot");

    lab.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let relay = lab.start_relay()?;
    relay.wait_log("the replication slot is gone").await?;
    lab.wait_committed(200).await?;
    lab.recovers("recovered").await?;
    drop(old);
    Ok(vec![relay])
}
