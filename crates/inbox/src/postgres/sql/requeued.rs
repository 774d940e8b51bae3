//! What an inbox at work asks about requeued letters.

use super::SAME;

/// Letters that are due, or whose worker died: the first of each aggregate, then the second of each,
/// and so on.
pub(crate) fn find_due(schema: &str) -> String {
    format!(
        "WITH due AS (
             SELECT d.message_id, d.stream_seq, row_number() OVER (
                 PARTITION BY d.headers->'Aggregate-Type', d.headers->'Aggregate-Id'
                 ORDER BY d.stream_created_at NULLS FIRST, d.stream_seq) AS turn
             FROM {schema}.inbox_dead_letter d JOIN {schema}.inbox_messages m ON {SAME}
             WHERE d.consumer = $1 AND d.stream = $2 AND d.subject ~ $5 AND (
                 m.status = 'FAILED' AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
                 OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp())
         )
         SELECT message_id, stream_seq, turn FROM due
         ORDER BY turn, stream_seq <= $4, stream_seq LIMIT $3"
    )
}

/// One of them, whole.
pub(crate) fn find_letter(schema: &str) -> String {
    format!("SELECT * FROM {schema}.inbox_dead_letter WHERE consumer = $1 AND message_id = $2")
}

/// Events without a letter that are long due, or whose worker died long ago: nobody has them.
pub(crate) fn find_orphans(schema: &str) -> String {
    let long_ago = "clock_timestamp() - make_interval(secs => $3::float8)";
    format!(
        "SELECT m.message_id, m.event_time, m.subject, m.stream_seq FROM {schema}.inbox_messages m
         WHERE m.consumer = $1 AND m.stream = $2 AND m.stream_seq IS NOT NULL
             AND (m.status = 'FAILED' AND m.next_attempt_at < {long_ago}
                 OR m.status = 'PROCESSING' AND m.expires_at < {long_ago})
             AND (m.event_time, m.message_id) > ($4::timestamptz, $5::uuid)
             AND m.subject ~ $7
             AND NOT EXISTS (SELECT FROM {schema}.inbox_dead_letter d WHERE {SAME})
         ORDER BY m.event_time, m.message_id LIMIT $6"
    )
}

/// Letters whose events have had their effect meanwhile.
pub(crate) fn sweep_letters(schema: &str) -> String {
    format!(
        "DELETE FROM {schema}.inbox_dead_letter d USING {schema}.inbox_messages m
         WHERE d.consumer = $1 AND {SAME} AND m.status IN ('PROCESSED', 'REJECTED')"
    )
}
