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
