use super::OURS;

/// Claims: records, and the tokens they were claimed under.
const CLAIMS: &str = "unnest($2, $3, $4::uuid[]) AS i (message_id, event_time, token)";

pub(crate) fn extend_leases(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_messages AS m
         SET expires_at = clock_timestamp() + make_interval(secs => $5)
         FROM {CLAIMS} WHERE {OURS} RETURNING m.message_id"
    )
}
