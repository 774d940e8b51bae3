use inbox::access::SAME;

use super::list_letters::MEANT;

/// Causes that no further attempt removes.
pub(crate) const HOPELESS: [&str; 3] = ["unreadable", "forgotten", "gone"];

/// If only the letter is meant that is dead since `$10`: one that died again is another.
const AS_SEEN: &str = "($10::timestamptz IS NULL OR d.dead_at = $10)";

/// Who decides, and why, behind the selection.
const AUTHOR: [&str; 2] = ["$8", "$9"];

/// The record is due at once, with no attempt on its account; the letter stays, since it has what
/// the attempts need, until the record is processed.
pub(crate) fn requeue_letters(schema: &str) -> String {
    let hopeless = HOPELESS.map(|it| format!("'{it}'")).join(", ");
    format!(
        "WITH done AS (
             UPDATE {schema}.inbox_messages m SET status = 'FAILED', attempts = 0, finished_attempts = 0,
                 next_attempt_at = clock_timestamp(), lease_token = NULL, expires_at = NULL,
                 tried_since = NULL
             FROM {schema}.inbox_dead_letter d
             WHERE {SAME} AND {MEANT} AND {AS_SEEN} AND m.status = 'DEAD'
                 AND d.cause NOT IN ({hopeless})
             RETURNING d.*
         ), {}",
        write_down(schema, "requeue", AUTHOR)
    )
}

/// Nothing more will be tried: the letter goes. A record that is gone already needs no status.
pub(crate) fn close_letters(schema: &str, [name, status]: [&str; 2]) -> String {
    format!(
        "WITH closed AS (
             UPDATE {schema}.inbox_messages m SET status = '{status}', outcome = '{name}'
             FROM {schema}.inbox_dead_letter d
             WHERE {SAME} AND {MEANT} AND {AS_SEEN} AND m.status = 'DEAD'
             RETURNING m.consumer, m.message_id
         ), done AS (
             DELETE FROM {schema}.inbox_dead_letter d
             WHERE {MEANT} AND {AS_SEEN} AND (
                 EXISTS (SELECT FROM closed s
                         WHERE s.consumer = d.consumer AND s.message_id = d.message_id)
                 OR NOT EXISTS (SELECT FROM {schema}.inbox_messages m WHERE {SAME}))
             RETURNING d.*
         ), {}",
        write_down(schema, name, AUTHOR)
    )
}

/// Their payloads are read.
pub(crate) fn note_reading(schema: &str) -> String {
    let done = format!("WITH done AS (SELECT d.* FROM {schema}.inbox_dead_letter d WHERE {MEANT})");
    format!("{done}, {}", write_down(schema, "read", AUTHOR))
}

/// The end of each decision: `done` holds the letters that it was done to.
fn write_down(schema: &str, decision: &str, [by, why]: [&str; 2]) -> String {
    format!(
        "noted AS (
             INSERT INTO {schema}.inbox_decisions (decision, decided_by, reason, consumer, message_id,
                 event_time, subject, stream, stream_seq, attempts, cause, failure)
             SELECT '{decision}', session_user || ' (' || {by}::text || ')', {why}::text, consumer,
                 message_id, event_time, subject, stream, stream_seq, attempts, cause, reason
             FROM done
         )
         SELECT consumer, message_id FROM done"
    )
}

/// An operator records that an event has had its effect.
pub(crate) fn mark_processed(schema: &str) -> String {
    format!(
        "WITH marked AS (
             INSERT INTO {schema}.inbox_messages AS m (consumer, message_id, event_time, subject, status,
                 processed_at, outcome)
             VALUES ($1::text, $2::uuid, $3::timestamptz, '', 'PROCESSED', clock_timestamp(),
                 'marked_processed')
             ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
                 status = 'PROCESSED', processed_at = clock_timestamp(),
                 outcome = 'marked_processed', lease_token = NULL, expires_at = NULL,
                 next_attempt_at = NULL
             WHERE m.status IN ('FAILED', 'DEAD', 'REJECTED')
                 OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp()
             RETURNING m.*
         ), letter AS (
             DELETE FROM {schema}.inbox_dead_letter d USING marked
             WHERE d.consumer = $1 AND d.message_id = $2
             RETURNING d.cause, d.reason
         ), noted AS (
             INSERT INTO {schema}.inbox_decisions (decision, decided_by, reason, consumer, message_id,
                 event_time, subject, stream, stream_seq, attempts, cause, failure)
             SELECT 'mark_processed', session_user || ' (' || $4::text || ')', $5::text, $1, $2,
                 event_time, subject, stream, stream_seq, attempts, letter.cause,
                 coalesce(letter.reason, last_error)
             FROM marked LEFT JOIN letter ON TRUE
         )
         SELECT CASE
             WHEN EXISTS (SELECT FROM marked) THEN 'marked'
             WHEN EXISTS (SELECT FROM {schema}.inbox_messages WHERE consumer = $1 AND message_id = $2
                 AND event_time = $3 AND status = 'PROCESSED') THEN 'processed'
             ELSE 'leased'
         END"
    )
}

/// The event `$2` of the consumer `$1`, which waits for another attempt, is due now.
pub(crate) fn try_now(schema: &str) -> String {
    format!(
        "WITH due AS (
             UPDATE {schema}.inbox_messages SET next_attempt_at = clock_timestamp()
             WHERE consumer = $1::text AND message_id = $2::uuid AND status = 'FAILED'
             RETURNING *
         )
         INSERT INTO {schema}.inbox_decisions (decision, decided_by, reason, consumer, message_id,
             event_time, subject, stream, stream_seq, attempts, failure)
         SELECT 'try_now', session_user || ' (' || $3::text || ')', $4::text, consumer, message_id,
             event_time, subject, stream, stream_seq, attempts, last_error
         FROM due RETURNING id"
    )
}
