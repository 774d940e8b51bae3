//! Reads what each shard has of its own in the database: publication and slot.

use relay::access::not_logged::Unfit;
use relay::access::opening::SLOT_WAITS_FOR;
use relay::access::publication::{Age, Standing};
use relay::access::{Connection, not_logged, publication};
use relay::{Config, Error};

use super::facts::{Known, Publication, SlotFacts};
use super::read_server::skip;
use crate::{LostReport, inspect};

const LOOKING: &str = "look at the slot";

pub(super) async fn publication(connection: &Connection, config: &Config) -> Known<Publication> {
    let (table, name) = (&config.table, &config.publication);
    let standing = publication::standing(connection, table, name, config.shard()).await;
    let unfit = |it: Unfit| Publication::Unfit(it.reason, it.statement);
    match standing.map_err(|error| skip(&error))? {
        // What no publication brings is in the way of the one that set-up makes.
        Standing::Missing => {
            let found = not_logged::find(connection, table, name).await;
            Ok(found.map_err(|error| skip(&error))?.map_or(Publication::Missing, unfit))
        }
        Standing::Unfit(found) => Ok(unfit(found)),
        Standing::Fit => {
            // Without the tables no slot is relied on.
            let age = publication::age(connection, table, name, &config.slot).await;
            Ok(match age {
                Ok(Age::Younger) => Publication::Changed,
                Ok(Age::Known | Age::Older(_)) | Err(_) => Publication::Fit,
            })
        }
    }
}

pub(super) async fn lost(connection: &Connection, config: &Config) -> Known<Option<LostReport>> {
    inspect::lost(config, connection).await.map_err(|error| skip(&error))
}

pub(super) async fn slot(connection: &Connection, config: &Config) -> Known<Option<SlotFacts>> {
    look_at_slot(connection, config).await.map_err(|error| skip(&error))
}

async fn look_at_slot(
    connection: &Connection,
    config: &Config,
) -> Result<Option<SlotFacts>, Error> {
    // By way of JSON, since versions have different columns.
    let sql = format!(
        "SELECT plugin, database, wal_status, {SLOT_WAITS_FOR} AS waits_for,
                   to_jsonb(s)->>'invalidation_reason' AS invalidation,
                   CASE WHEN active_pid IS NOT NULL THEN jsonb_build_object(
                       'pid', active_pid, 'application', application_name) END AS reader,
                   coalesce((CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                                  ELSE pg_current_wal_lsn() END - restart_lsn)::bigint, 0)
                       AS retained_bytes,
                   temporary AS is_temporary
               FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON pid = active_pid
               WHERE slot_name = $1"
    );
    let slot: Option<SlotFacts> = connection.read(LOOKING, &sql, &[&config.slot]).await?.pop();
    let Some(slot) = slot else { return Ok(None) };
    Ok(Some(SlotFacts { is_known: is_known(connection, config).await?, ..slot }))
}

/// Whether there is a record of where the slot begins.
async fn is_known(connection: &Connection, config: &Config) -> Result<bool, Error> {
    let state = config.table.companion("tailpost_state");
    if !connection.has_relation(LOOKING, &state).await? {
        return Ok(false);
    }
    let sql = format!("SELECT EXISTS (SELECT FROM {state} WHERE slot = $1)");
    Ok(connection.query_one(LOOKING, &sql, &[&config.slot]).await?.get(0))
}
