//! What is in the table makes trouble.

use anyhow::{Result, ensure};

use super::{Daemons, Lab, Servers};
use crate::chaos::wait::until;

/// The broker takes 4 KiB; [`POISON`] is larger.
pub(in crate::chaos) const LITTLE_PAYLOADS: Servers =
    Servers { max_payload: Some(4_096), ..Servers::PLAIN };

/// One event that the broker will never take.
pub(in crate::chaos) const POISON: &str = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
     VALUES (gen_random_uuid(), 'order', 'poisoned', 'Poison', \
     jsonb_build_object('x', repeat('x', 9000)))";

const DEAD: &str = "SELECT count(*) FROM outbox_dead_letter";

/// Of one transaction.
const ROWS: u64 = 1_000_000;

/// Of a relay, however large the transaction.
const MEMORY_MIB_MAX: u64 = 64;

pub(super) async fn poison_in_backlog(lab: &mut Lab) -> Result<Daemons> {
    const POISONED: i64 = 30;
    for _ in 0..POISONED {
        lab.wait_committed(30).await?;
        lab.execute(POISON).await?;
    }
    let backlog = lab.committed();
    lab.say(&format!("a backlog of {backlog} events, and {POISONED} that no broker takes"));
    let relay = lab.start_relay()?;
    let took = lab.recover().await?;
    until("all poison is parked", async || Ok(lab.query::<i64>(DEAD).await? >= POISONED)).await?;
    let parked: i64 = lab.query(DEAD).await?;
    ensure!(parked == POISONED, "{parked} events are parked, {POISONED} were to be");
    lab.say(&format!("published and parked after {took:.2?}"));
    Ok(vec![relay])
}

pub(super) async fn million_row_transaction(lab: &mut Lab) -> Result<Daemons> {
    let relay = lab.active_relay().await?;
    // Ids in order: the index grows at its end.
    let insert = format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::UUID, \
         'order', 'o-' || n % 1000, 'OrderPlaced', '{{}}' FROM generate_series(1, {ROWS}) AS n"
    );
    lab.execute(&insert).await?;
    lab.wrote(ROWS);
    lab.say(&format!("committed a transaction of {ROWS} events"));
    let took = lab.recover().await?;
    let memory = relay.peak_memory_bytes()? >> 20;
    lab.say(&format!("published after {took:.2?}, by a relay that took {memory} MiB of memory"));
    ensure!(memory < MEMORY_MIB_MAX, "the relay took {memory} MiB of memory");
    Ok(vec![relay])
}

pub(super) async fn ddl_while_running(lab: &mut Lab) -> Result<Daemons> {
    let relay = lab.active_relay().await?;
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
        lab.execute(&format!("DROP VIEW IF EXISTS outbox_status; {change}")).await?;
        lab.say(&change);
        lab.wait_committed(60).await?;
        lab.recover().await?;
    }
    Ok(vec![relay])
}
