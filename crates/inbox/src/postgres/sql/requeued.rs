use super::{SAME, quote};

/// What an inbox at work asks about requeued letters.
pub(crate) struct Requeued {
    /// Letters that are due, or whose worker died: the first of each aggregate, then the second of
    /// each, and so on.
    pub(crate) due: String,
    /// One of them, whole.
    pub(crate) letter: String,
    /// Events without a letter that are long due, or whose worker died long ago: nobody has them.
    pub(crate) orphans: String,
    /// Letters whose events have had their effect meanwhile.
    pub(crate) sweep: String,
}

impl Requeued {
    /// `schema` is not quoted.
    pub(crate) fn new(schema: &str) -> Self {
        let schema = quote(schema);
        let messages = format!("{schema}.inbox_messages");
        let letters = format!("{schema}.inbox_dead_letter");
        Self {
            due: format!(
                "WITH due AS (
                     SELECT d.message_id, d.stream_seq, row_number() OVER (
                         PARTITION BY d.headers->'Aggregate-Type', d.headers->'Aggregate-Id'
                         ORDER BY d.stream_created_at NULLS FIRST, d.stream_seq) AS turn
                     FROM {letters} d JOIN {messages} m ON {SAME}
                     WHERE d.consumer = $1 AND d.stream = $2 AND (
                         m.status = 'FAILED'
                             AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
                         OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp())
                 )
                 SELECT message_id, stream_seq, turn FROM due
                 ORDER BY turn, stream_seq <= $4, stream_seq LIMIT $3"
            ),
            letter: format!("SELECT * FROM {letters} WHERE consumer = $1 AND message_id = $2"),
            orphans: format!(
                "SELECT m.message_id, m.event_time, m.subject, m.stream_seq FROM {messages} m
                 WHERE m.consumer = $1 AND m.stream = $2 AND m.stream_seq IS NOT NULL
                     AND (m.status = 'FAILED' AND m.next_attempt_at < clock_timestamp()
                             - make_interval(secs => $3::float8)
                         OR m.status = 'PROCESSING' AND m.expires_at < clock_timestamp()
                             - make_interval(secs => $3::float8))
                     AND (m.event_time, m.message_id) > ($4::timestamptz, $5::uuid)
                     AND NOT EXISTS (SELECT FROM {letters} d WHERE {SAME})
                 ORDER BY m.event_time, m.message_id LIMIT $6"
            ),
            sweep: format!(
                "DELETE FROM {letters} d USING {messages} m
                 WHERE d.consumer = $1 AND {SAME} AND m.status IN ('PROCESSED', 'REJECTED')"
            ),
        }
    }
}
