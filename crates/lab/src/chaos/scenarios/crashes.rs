//! The relay dies at a bad moment.

use anyhow::{Result, ensure};

use super::{Daemons, Lab};
use crate::chaos::wait::until;

const UNMARKED: &str = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";

pub(super) async fn between_ack_and_mark(lab: &mut Lab) -> Result<Daemons> {
    lab.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    // More than come on a machine however slow.
    lab.set("TAILPOST_RELAY__MARK_BATCH", "100000");
    for _ in 0..3 {
        let relay = lab.active_relay().await?;
        lab.wait_committed(300).await?;
        lab.recover().await?;
        relay.kill().await?;
        let unmarked: i64 = lab.query(UNMARKED).await?;
        ensure!(unmarked >= 300, "the relay was to be killed before it marked: {unmarked}");
        lab.say(&format!("killed the relay: {unmarked} rows are not marked, and most stored"));
    }
    lab.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    lab.fault_is_over();
    let relay = lab.start_relay()?;
    lab.wait_committed(300).await?;
    lab.recover().await?;
    Ok(vec![relay])
}

pub(super) async fn between_mark_and_confirm(lab: &mut Lab) -> Result<Daemons> {
    for round in 0..3 {
        let relay = lab.active_relay().await?;
        lab.wait_committed(300).await?;
        lab.recover().await?;
        relay.kill().await?;
        let confirmed = confirmed(lab).await?;
        // Marks are committed lazily: a transaction of ours takes them to the disk.
        lab.execute(&format!("CREATE TABLE after_the_marks_{round} ()")).await?;
        lab.postgres.kill().await?;
        lab.postgres.start_again().await?;
        let lost = format!(
            "SELECT (SELECT max(commit_lsn) FROM outbox_events) > confirmed_flush_lsn \
             AND confirmed_flush_lsn < '{confirmed}' \
             FROM pg_replication_slots WHERE slot_name = 'tailpost'"
        );
        ensure!(lab.query::<bool>(&lost).await?, "the crash was to take the confirmation back");
        lab.say("killed the relay and PostgreSQL: rows are marked, and no longer confirmed");
    }
    lab.fault_is_over();
    let relay = lab.start_relay()?;
    lab.wait_committed(300).await?;
    lab.recover().await?;
    Ok(vec![relay])
}

/// Up to where the slot is confirmed, once that has passed something.
async fn confirmed(lab: &Lab) -> Result<String> {
    const CONFIRMED: &str = "SELECT confirmed_flush_lsn::TEXT FROM pg_replication_slots \
                             WHERE slot_name = 'tailpost'";
    until("the slot is free", async || {
        lab.query("SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'tailpost'").await
    })
    .await?;
    lab.query(CONFIRMED).await
}
