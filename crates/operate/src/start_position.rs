//! Where a slot will begin, compared with where an operator means it to.

use pgoutput::Lsn;
use relay::{Config, Error, Mode};
use tokio_postgres::types::PgLsn;

use crate::sql::Store;

const LOOKING: &str = "look at the slot";

/// Makes sure that the slot of a shard will bring every event that committed at `from` or later, and
/// none that committed before.
///
/// PostgreSQL does not say: asked for a position before what is confirmed it begins with what is
/// confirmed, and asked for one behind, it leaves out what lies between.
///
/// # Errors
///
/// [`Error::Conflict`] if the slot begins at another position; [`Error::NotSetUp`] without a slot.
pub async fn check_start(config: &Config, from: Lsn) -> Result<(), Error> {
    if config.mode == Mode::Poll {
        let problem = "relay.mode = \"poll\" reads no log: there is no position to start from";
        return Err(Error::Conflict(problem.into()));
    }
    let slot = &config.slot;
    let store = Store::brief(config, "tailpost relay").await?;
    let looked = store.slot_progress(slot).await?;
    let missing = || Error::NotSetUp { missing: format!("replication slot \"{slot}\"") };
    let progress = looked.ok_or_else(missing)?;
    if progress.is_read {
        return Err(Error::SlotBusy { slot: slot.clone() });
    }
    let confirmed = progress.confirmed;
    if from < confirmed {
        return Err(Error::Conflict(format!(
            "slot \"{slot}\" is confirmed up to {confirmed}: PostgreSQL would begin there, and not \
             at {from}. Start without --start-lsn, and publish what lies before once more: \
             `tailpost replay --from-lsn {from} --to-lsn {confirmed}`"
        )));
    }
    if from > confirmed && has_events(&store, config, from).await? {
        return Err(Error::Conflict(format!(
            "slot \"{slot}\" is confirmed up to {confirmed}, and there are events between that and \
             {from}: they would be skipped. Start without --start-lsn, which publishes them"
        )));
    }
    Ok(())
}

/// Whether the slot would bring events before `until`. Reads the log between, and leaves the slot
/// where it is. The first change tells, but for PostgreSQL 14, which also brings the begin and the end
/// of transactions without an event.
async fn has_events(store: &Store, config: &Config, until: Lsn) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (
        SELECT FROM pg_logical_slot_peek_binary_changes($1, $2,
            CASE WHEN current_setting('server_version_num')::int >= 150000 THEN 1 END,
            'proto_version', '1', 'publication_names', $3) AS change
        WHERE get_byte(data, 0) = ascii('I') AND change.lsn < $2)";
    // Quoted as the plugin parses it: a list of identifiers.
    let publication = format!("\"{}\"", config.publication.replace('"', "\"\""));
    let until = PgLsn::from(until.0);
    let row = store.query_one(LOOKING, sql, &[&config.slot, &until, &publication]).await?;
    Ok(row.get(0))
}
