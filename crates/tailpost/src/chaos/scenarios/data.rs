//! What is in the table makes trouble.

use anyhow::{Result, ensure};

use super::{Daemons, Stage};
use crate::chaos::wait::until;

/// What the broker takes, in bytes; [`POISON`] is larger.
pub(in crate::chaos) const LITTLE_PAYLOADS: u32 = 4_096;

/// One event that the broker will never take.
pub(in crate::chaos) const POISON: &str = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
     VALUES (gen_random_uuid(), 'order', 'poisoned', 'Poison', \
     jsonb_build_object('x', repeat('x', 9000)))";

const DEAD: &str = "SELECT count(*) FROM outbox_dead_letter";

/// Of one transaction.
const ROWS: u64 = 1_000_000;

/// Of a relay, however large the transaction.
const MEMORY_MIB_MAX: u64 = 64;

pub(super) async fn poison_in_backlog(stage: &mut Stage) -> Result<Daemons> {
    const POISONED: i64 = 30;
    for _ in 0..POISONED {
        stage.wait_committed(30).await?;
        stage.execute(POISON).await?;
    }
    let backlog = stage.committed();
    stage.say(&format!("a backlog of {backlog} events, and {POISONED} that no broker takes"));
    let relay = stage.start_relay()?;
    let took = stage.recover().await?;
    until("all poison is parked", async || Ok(stage.query::<i64>(DEAD).await? >= POISONED)).await?;
    let parked: i64 = stage.query(DEAD).await?;
    ensure!(parked == POISONED, "{parked} events are parked, {POISONED} were to be");
    stage.say(&format!("published and parked after {took:.2?}"));
    Ok(vec![relay])
}

pub(super) async fn million_row_transaction(stage: &mut Stage) -> Result<Daemons> {
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    // Ids in order: the index grows at its end.
    let insert = format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::UUID, \
         'order', 'o-' || n % 1000, 'OrderPlaced', '{{}}' FROM generate_series(1, {ROWS}) AS n"
    );
    stage.execute(&insert).await?;
    stage.wrote(ROWS);
    stage.say(&format!("committed a transaction of {ROWS} events"));
    let took = stage.recover().await?;
    let memory = relay.peak_memory_bytes()? >> 20;
    stage.say(&format!("published after {took:.2?}, by a relay that took {memory} MiB of memory"));
    ensure!(memory < MEMORY_MIB_MAX, "the relay took {memory} MiB of memory");
    Ok(vec![relay])
}

pub(super) async fn ddl_while_running(stage: &mut Stage) -> Result<Daemons> {
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    for change in [
        "ADD COLUMN note TEXT",
        // Writes the table anew: those rows are no new events.
        "ADD COLUMN changed_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()",
        "DROP COLUMN note",
        "RENAME COLUMN correlation_id TO correlation",
        "RENAME COLUMN correlation TO correlation_id",
        "DROP COLUMN causation_id CASCADE",
        "DROP COLUMN headers CASCADE",
        "ADD COLUMN headers JSONB, ADD COLUMN causation_id UUID",
        "ALTER COLUMN event_version TYPE BIGINT",
    ] {
        let change = format!("ALTER TABLE outbox_events {change}");
        stage.execute(&format!("DROP VIEW IF EXISTS outbox_status; {change}")).await?;
        stage.say(&change);
        stage.wait_committed(60).await?;
        stage.recover().await?;
    }
    Ok(vec![relay])
}
