//! What has become of events, by id.

use inbox::access::as_json;

/// Names the schema `$1`, whichever way a process reached it. A copy of the whole server has the same
/// system identifier, but was not started at the same time.
pub(crate) const NAME_DATABASE: &str =
    "SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), current_database(),
    $1::text)";

/// Of the consumer `$1` and the events `$2`: letters first, and behind them the records, of which one
/// that is processed comes last.
pub(crate) fn look_up(schema: &str) -> String {
    format!(
        "SELECT message_id, 'DEAD' AS status, attempts, cause || ': ' || reason AS error, 0 AS rank
         FROM {schema}.inbox_dead_letter WHERE consumer = $1 AND message_id = ANY($2)
         UNION ALL
         SELECT message_id, status, attempts, last_error, CASE status WHEN 'PROCESSED' THEN 2 ELSE 1 END
         FROM {schema}.inbox_messages WHERE consumer = $1 AND message_id = ANY($2)
         ORDER BY rank"
    )
}

/// Each consumer's record of the event `$1`. The role's table has every consumer, with a partition 0,
/// so that the primary key is used.
pub(crate) fn records(schema: &str) -> String {
    as_json(&format!(
        "SELECT m.consumer, m.status, m.attempts, m.finished_attempts, m.received_at, m.claimed_at,
             m.processed_at, m.next_attempt_at, m.lease_owner AS worker, m.outcome, m.last_error,
             json_build_object('stream', m.stream, 'seq', m.stream_seq) AS place
         FROM {schema}.inbox_roles r
         JOIN {schema}.inbox_messages m ON m.consumer = r.consumer AND m.message_id = $1
         WHERE r.partition = 0
         ORDER BY m.consumer, m.event_time"
    ))
}

/// Each consumer's letter of the event `$1`.
pub(crate) fn letters(schema: &str) -> String {
    as_json(&format!(
        "SELECT d.consumer, d.cause, d.reason, d.dead_at,
             json_build_object('stream', d.stream, 'seq', d.stream_seq) AS place
         FROM {schema}.inbox_roles r
         JOIN {schema}.inbox_dead_letter d ON d.consumer = r.consumer AND d.message_id = $1
         WHERE r.partition = 0
         ORDER BY d.consumer"
    ))
}

/// The consumers that have a letter of the events `$1`, by event.
pub(crate) fn dead_at(schema: &str) -> String {
    format!(
        "SELECT d.message_id, array_agg(d.consumer ORDER BY d.consumer)
         FROM {schema}.inbox_roles r
         JOIN {schema}.inbox_dead_letter d ON d.consumer = r.consumer AND d.message_id = ANY($1)
         WHERE r.partition = 0
         GROUP BY d.message_id"
    )
}

/// The attempts at the events `$1` that failed and are kept, by consumer, in order. By the records,
/// whose time finds them.
pub(crate) fn attempts(schema: &str) -> String {
    as_json(&format!(
        "SELECT a.message_id, a.consumer, a.failed_at, a.attempt, a.code, a.took_ms, a.reason,
             a.worker
         FROM {schema}.inbox_roles r
         JOIN {schema}.inbox_messages m ON m.consumer = r.consumer AND m.message_id = ANY($1)
         JOIN {schema}.inbox_attempts a ON a.event_time = m.event_time
             AND a.message_id = m.message_id AND a.consumer = m.consumer
         WHERE r.partition = 0
         ORDER BY a.consumer, a.id"
    ))
}

/// What the attempts of the consumer `$1` met that failed in the last 15 minutes, of the newest of all
/// consumers.
pub(crate) fn failed_answers(schema: &str) -> String {
    as_json(&format!(
        "SELECT code, count(*) AS count, max(failed_at) AS last_at,
             percentile_disc(0.5) WITHIN GROUP (ORDER BY took_ms) AS took_ms
         FROM (SELECT * FROM {schema}.inbox_attempts ORDER BY id DESC LIMIT 10000) AS newest
         WHERE consumer = $1 AND failed_at > clock_timestamp() - interval '15 min'
         GROUP BY code ORDER BY count DESC, code"
    ))
}

/// Every consumer.
pub(crate) fn consumers(schema: &str) -> String {
    format!("SELECT consumer FROM {schema}.inbox_roles WHERE partition = 0 ORDER BY consumer")
}
