use super::{OURS, records};

/// A record that somebody has locked waits for the next time. Returns what is still ours, and whether it
/// was extended.
pub(crate) fn extend_leases(schema: &str) -> String {
    let table = format!("{schema}.inbox_messages");
    let claims = records("$2, $3, $4::uuid[]", "message_id, event_time, token");
    format!(
        "WITH ours AS MATERIALIZED (
             SELECT m.message_id, m.event_time FROM {table} AS m, {claims} WHERE {OURS}
         ), free AS MATERIALIZED (
             SELECT i.consumers, m.message_id, m.event_time FROM {table} AS m, {claims}
             WHERE {OURS}
             FOR NO KEY UPDATE OF m SKIP LOCKED
         ), extended AS (
             UPDATE {table} AS m SET expires_at = clock_timestamp() + make_interval(secs => $5)
             FROM free WHERE m.consumer = ANY (free.consumers) AND m.message_id = free.message_id
                 AND m.event_time = free.event_time
             RETURNING m.message_id
         )
         SELECT message_id, message_id IN (SELECT message_id FROM extended) FROM ours"
    )
}
