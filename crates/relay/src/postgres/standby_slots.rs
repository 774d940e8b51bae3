//! Standbys that PostgreSQL (17 and later) lets have each commit before it sends it to a logical slot.

use super::connection::Connection;
use crate::error::Error;

/// The setting that names their slots.
pub const SETTING: &str = "synchronized_standby_slots";

/// What the reader of `slot` is kept waiting by, if it is; for whoever asks `what is waited for`.
pub async fn held_back(connection: &Connection, slot: &str) -> Result<Option<String>, Error> {
    let sql = format!(
        "SELECT string_agg(format('%s (%s)', name, CASE WHEN s.slot_name IS NULL THEN 'no such slot'
                    WHEN s.active THEN 'behind' ELSE 'no standby reads it' END), ', ')
         FROM pg_replication_slots ours JOIN pg_stat_activity reader ON pid = ours.active_pid
         CROSS JOIN string_to_table(current_setting('{SETTING}', true), ',') AS listed
         CROSS JOIN trim(BOTH ' \"' FROM listed) AS name
         LEFT JOIN pg_replication_slots s ON s.slot_name = name
         WHERE ours.slot_name = $1 AND wait_event = 'WaitForStandbyConfirmation'"
    );
    let row = connection.query_one("look what the slot waits for", &sql, &[&slot]).await?;
    let standbys: Option<String> = row.get(0);
    Ok(standbys.map(|it| {
        format!(
            "until the standbys of {SETTING} have what is committed: {it}. Have them follow, or take \
             them out of the setting"
        )
    }))
}

/// Whether the reader of `slot` is at work: it reads the log from where the slot begins, or what a large
/// transaction did to other tables, and has nothing to send meanwhile.
pub(crate) async fn is_at_work(connection: &Connection, slot: &str) -> Result<bool, Error> {
    let sql = "SELECT FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
         WHERE slot_name = $1 AND coalesce(wait_event_type, 'IO') IN ('IO', 'LWLock')";
    let found = connection.query_opt("look what the slot's reader does", sql, &[&slot]).await?;
    Ok(found.is_some())
}
