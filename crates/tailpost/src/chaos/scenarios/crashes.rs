//! The relay dies at a bad moment.

use anyhow::{Result, ensure};

use super::{Daemons, Stage};
use crate::chaos::wait::until;

const UNMARKED: &str = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";

pub(super) async fn between_ack_and_mark(stage: &mut Stage) -> Result<Daemons> {
    stage.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    for _ in 0..3 {
        let relay = stage.start_relay()?;
        relay.wait_active().await?;
        stage.wait_committed(300).await?;
        stage.recover().await?;
        relay.kill().await?;
        let unmarked: i64 = stage.query(UNMARKED).await?;
        ensure!(unmarked >= 300, "the relay was to be killed before it marked: {unmarked}");
        stage.say(&format!("killed the relay: {unmarked} rows are not marked, and most stored"));
    }
    stage.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    stage.fault_is_over();
    let relay = stage.start_relay()?;
    stage.wait_committed(300).await?;
    stage.recover().await?;
    Ok(vec![relay])
}

pub(super) async fn between_mark_and_confirm(stage: &mut Stage) -> Result<Daemons> {
    for round in 0..3 {
        let relay = stage.start_relay()?;
        relay.wait_active().await?;
        stage.wait_committed(300).await?;
        stage.recover().await?;
        relay.kill().await?;
        let confirmed = confirmed(stage).await?;
        // Marks are committed lazily: a transaction of ours takes them to the disk.
        stage.execute(&format!("CREATE TABLE after_the_marks_{round} ()")).await?;
        stage.postgres.kill().await?;
        stage.postgres.start_again().await?;
        let lost = format!(
            "SELECT (SELECT max(commit_lsn) FROM outbox_events) > confirmed_flush_lsn \
             AND confirmed_flush_lsn < '{confirmed}' \
             FROM pg_replication_slots WHERE slot_name = 'tailpost'"
        );
        ensure!(stage.query::<bool>(&lost).await?, "the crash was to take the confirmation back");
        stage.say("killed the relay and PostgreSQL: rows are marked, and no longer confirmed");
    }
    stage.fault_is_over();
    let relay = stage.start_relay()?;
    stage.wait_committed(300).await?;
    stage.recover().await?;
    Ok(vec![relay])
}

/// Up to where the slot is confirmed, once that has passed something.
async fn confirmed(stage: &Stage) -> Result<String> {
    const CONFIRMED: &str = "SELECT confirmed_flush_lsn::TEXT FROM pg_replication_slots \
                             WHERE slot_name = 'tailpost'";
    until("the slot is free", async || {
        stage
            .query("SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'tailpost'")
            .await
    })
    .await?;
    stage.query(CONFIRMED).await
}
