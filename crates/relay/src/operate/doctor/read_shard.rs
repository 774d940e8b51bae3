//! Reads what each shard has of its own in the database: publication and slot.

use tokio_postgres::Client;

use super::facts::{Known, Publication, Reader, SlotFacts};
use super::read_server::{answered, skip};
use crate::config::Config;
use crate::error::Error;
use crate::postgres::publication::{self, Standing};

const LOOKING: &str = "look at the slot";

pub(super) async fn publication(client: &Client, config: &Config) -> Known<Publication> {
    let (table, name) = (&config.table, &config.publication);
    let looked = async {
        match publication::standing(client, table, name, config.shard()).await? {
            Standing::Missing => Ok(Publication::Missing),
            Standing::Unfit { reason, statement } => {
                Ok(Publication::Unfit(reason.to_owned(), statement))
            }
            Standing::Fit => {
                // Without the tables there is no slot that anybody relies on.
                let younger =
                    publication::is_younger_than_the_slot(client, table, name, &config.slot).await;
                Ok(if younger.unwrap_or(false) { Publication::Changed } else { Publication::Fit })
            }
        }
    };
    answered("look at the publication", looked).await.map_err(|error| skip(&error))
}

pub(super) async fn slot(client: &Client, config: &Config) -> Known<Option<SlotFacts>> {
    let looked = async {
        // By way of JSON, since versions have different columns.
        let sql = "SELECT plugin::text, database::text, wal_status,
                       to_jsonb(s)->>'invalidation_reason', active_pid, application_name,
                       coalesce((CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                                      ELSE pg_current_wal_lsn() END - restart_lsn)::bigint, 0),
                       temporary
                   FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON pid = active_pid
                   WHERE slot_name = $1";
        let row = client.query_opt(sql, &[&config.slot]).await.map_err(Error::sql(LOOKING))?;
        let Some(row) = row else { return Ok(None) };
        let reader = |pid| Reader { pid, application: row.get(5) };
        Ok(Some(SlotFacts {
            plugin: row.get(0),
            database: row.get(1),
            is_known: is_known(client, config).await?,
            wal_status: row.get(2),
            invalidation: row.get(3),
            reader: row.get::<_, Option<i32>>(4).map(reader),
            retained_bytes: row.get(6),
            is_temporary: row.get(7),
        }))
    };
    answered(LOOKING, looked).await.map_err(|error| skip(&error))
}

/// Whether there is a record of where the slot begins.
async fn is_known(client: &Client, config: &Config) -> Result<bool, Error> {
    let state = config.table.companion("tailpost_state");
    let found = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&state]).await;
    if !found.map_err(Error::sql(LOOKING))?.get::<_, bool>(0) {
        return Ok(false);
    }
    let sql = format!("SELECT EXISTS (SELECT FROM {state} WHERE slot = $1)");
    let row = client.query_one(&sql, &[&config.slot]).await.map_err(Error::sql(LOOKING))?;
    Ok(row.get(0))
}
