//! The replication slot in an operator's hands.

use std::time::Duration;

use relay::access::drained;
use relay::{Config, Error, RewindConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;

use crate::setup::ensure_slot;
use crate::sql::Store;

/// A replication slot of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SlotEntry {
    /// Its name.
    pub name: String,
    /// Whether it is the one that is configured, or that of a shard, or the rewind slot of one.
    pub is_configured: bool,
    /// The database whose log it brings; `None` for a physical slot.
    pub database: Option<String>,
    /// Whether it has a reader now.
    pub active: bool,
    /// `reserved`, `extended`, `unreserved`, or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of log that it keeps PostgreSQL from removing.
    pub retained_bytes: u64,
}

/// A transaction that has written and is open.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OpenTransaction {
    /// Its process; `None` if it is prepared.
    pub pid: Option<i32>,
    /// What its session is called, or its identifier if it is prepared.
    pub name: String,
    /// For how long.
    pub seconds: f64,
}

/// What keeps PostgreSQL's log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Slots {
    /// All of them, by name.
    pub slots: Vec<SlotEntry>,
    /// Of the cluster, as far as the role may see it. A logical slot keeps the log from where it began.
    pub oldest_transaction: Option<OpenTransaction>,
}

/// All replication slots of the cluster: each of them holds the log.
///
/// # Errors
///
/// If PostgreSQL cannot be reached.
pub async fn slots(config: &Config) -> Result<Slots, Error> {
    let store = Store::brief(config, "tailpost slot").await?;
    let of_shard = |it: Config| [RewindConfig::slot(&it.slot), it.slot];
    let configured: Vec<_> = config.each_shard().into_iter().flat_map(of_shard).collect();
    let sql = "SELECT (SELECT coalesce(jsonb_agg(s), '[]') FROM (
                   SELECT slot_name AS name, slot_name::text = ANY ($1) AS is_configured, database,
                       active, wal_status,
                       coalesce(greatest(pg_current_wal_lsn() - restart_lsn, 0), 0)::bigint
                           AS retained_bytes
                   FROM pg_replication_slots ORDER BY slot_name) AS s) AS slots,
               (SELECT to_jsonb(t) FROM (
                   SELECT pid, coalesce(application_name, '') AS name,
                       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
                   FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start IS NOT NULL
                       AND pid <> pg_backend_pid()
                   UNION ALL
                   SELECT NULL, gid, extract(epoch FROM clock_timestamp() - prepared)::float8
                   FROM pg_prepared_xacts
                   ORDER BY seconds DESC LIMIT 1) AS t) AS oldest_transaction";
    let mut found = store.read("list the replication slots", sql, &[&configured]).await?;
    found.pop().ok_or(Error::Stalled("the server gave no answer"))
}

/// Creates the slot of a shard as `setup` does: what an earlier one brought is marked before. Says
/// whether there was none that can be used.
///
/// # Errors
///
/// If a server cannot be reached, `tailpost setup` was not run, or other shards are in the way.
pub async fn create_slot(config: &Config) -> Result<bool, Error> {
    let store = Store::patient(config, "tailpost slot").await?;
    store.check_set_up(config).await?;
    let client = config.nats.connect("tailpost slot").await?;
    let made = ensure_slot(config, &store, &client, Duration::MAX).await?;
    Ok(made == Some(true))
}

async fn drop_rewind_slot(config: &Config, store: &Store) -> Result<(), Error> {
    let (slot, rewind) = (&config.slot, RewindConfig::slot(&config.slot));
    if store.rewind_slot(slot, &rewind).await?.slot.is_some() {
        store.drop_slot(&rewind).await?;
        store.forget_rewind(slot).await?;
    }
    Ok(())
}

/// Drops the slot of a shard, so that PostgreSQL need not keep the log for it. No event is lost: the next
/// relay, or [`create_slot`], creates it anew, and what was written in between comes from the table.
///
/// Events without a row come from nowhere. So a slot that has some yet to bring is dropped with
/// `force` only.
///
/// # Errors
///
/// [`Error::SlotBusy`] while a relay reads it, [`Error::NotSetUp`] if there is none,
/// [`Error::Conflict`] if an event would be lost.
pub async fn drop_slot(config: &Config, force: bool) -> Result<(), Error> {
    let slot = &config.slot;
    let store = Store::patient(config, "tailpost slot").await?;
    store.lock_slot(slot).await?;
    if store.slot_reader(slot).await?.is_some() {
        return Err(Error::SlotBusy { slot: slot.clone() });
    }
    if !force {
        let how = "lose such events with `tailpost slot drop --force`";
        drained::check(config, &store, how).await?;
    }
    // Nothing holds what is emitted from now on.
    store.refuse_wal_messages(slot).await?;
    let dropped = store.drop_slot(slot).await;
    let dropped = dropped.map_err(|error| match error.code() {
        Some(SqlState::UNDEFINED_OBJECT) => {
            Error::NotSetUp { missing: format!("replication slot \"{slot}\"") }
        }
        Some(SqlState::OBJECT_IN_USE) => Error::SlotBusy { slot: slot.clone() },
        _ => error,
    });
    if !matches!(dropped, Err(Error::SlotBusy { .. })) {
        // Also if the other one is gone: it would keep the log without a reader.
        drop_rewind_slot(config, &store).await?;
    }
    dropped?;
    store.announce_drop(slot, "`tailpost slot drop` dropped it").await
}
