//! The replication slot goes, in the ways that slots go.

use anyhow::Result;
use testbed::Postgres;

use super::{Daemons, Stage};
use crate::chaos::wait::until;

/// PostgreSQL gives up a slot that keeps more than a segment of the log.
pub(super) const LITTLE_LOG: &[(&str, &str)] = &[("max_slot_wal_keep_size", "1MB")];

/// Between its reader's end and the next one's start.
pub(in crate::chaos) const DROP_SLOT: &str = "SELECT pg_terminate_backend(active_pid, 1000), pg_drop_replication_slot(slot_name) \
     FROM pg_replication_slots WHERE slot_name = 'tailpost'";

pub(super) async fn dropped(stage: &mut Stage) -> Result<Daemons> {
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    for _ in 0..3 {
        stage.wait_committed(300).await?;
        until("the slot is dropped", async || stage.execute(DROP_SLOT).await.map(|()| true))
            .await?;
        stage.fault_is_over();
        stage.say("dropped the slot under the relay");
        stage.wait_committed(100).await?;
        let took = stage.recover().await?;
        stage.say(&format!("recovered after {took:.2?}"));
    }
    relay.wait_log("the replication slot is gone").await?;
    Ok(vec![relay])
}

pub(super) async fn invalidated(stage: &mut Stage) -> Result<Daemons> {
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    stage.wait_committed(300).await?;
    stage.nats.pause()?;
    stage.wait_committed(100).await?;
    let lost = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = 'tailpost'";
    until("the slot's log is removed", async || {
        stage.execute("SELECT pg_logical_emit_message(false, 'other', 'work')").await?;
        stage.execute("SELECT pg_switch_wal()").await?;
        stage.execute("CHECKPOINT").await?;
        Ok(stage.query::<Option<bool>>(lost).await? == Some(true))
    })
    .await?;
    stage.say("NATS hangs, and PostgreSQL removed log that the slot needs");
    stage.nats.resume()?;
    stage.fault_is_over();
    relay.wait_log("PostgreSQL gave the slot's log up").await?;
    stage.wait_committed(100).await?;
    let took = stage.recover().await?;
    stage.say(&format!("NATS goes on; recovered after {took:.2?}"));
    Ok(vec![relay])
}

pub(super) async fn failover(stage: &mut Stage) -> Result<Daemons> {
    let standby = Postgres::start_standby_of(&stage.postgres, "standby_1", true).await?;
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    stage.wait_committed(300).await?;
    stage.recover().await?;
    relay.kill().await?;
    // Their marks lag when the primary dies.
    stage.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    stage.wait_committed(200).await?;
    stage.recover().await?;
    relay.kill().await?;
    // What it published is on the standby when this is.
    stage.wait_committed(100).await?;
    stage.postgres.kill().await?;
    let promoted = standby.client("postgres").await?;
    promoted.batch_execute("SELECT pg_promote()").await?;
    let old = stage.replace_postgres(standby);
    stage.fault_is_over();
    stage.say("killed the primary, promoted the standby, which has no slot");

    stage.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let relay = stage.start_relay()?;
    relay.wait_log("the replication slot is gone").await?;
    stage.wait_committed(200).await?;
    let took = stage.recover().await?;
    stage.say(&format!("recovered after {took:.2?}"));
    drop(old);
    Ok(vec![relay])
}
