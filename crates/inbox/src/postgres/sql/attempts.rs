//! Attempts that failed: written by the statement that ends the claim, and never by another.

/// The newest of an event that are kept.
const KEPT: usize = 20;

/// Characters that are kept of a reason: all that there is of an HTTP answer.
const REASON_MAX: usize = 400;

/// Further parts of a `WITH`: notes what `ended` says of attempts, and keeps the newest of each event.
/// `ended` has the event, attempt, code, took, reason and worker; what has no `took` was no attempt.
pub(super) fn note(schema: &str) -> String {
    // Those of before: the statement does not see what it inserts.
    let before = KEPT - 1;
    format!(
        "noted AS (
             INSERT INTO {schema}.inbox_attempts (consumer, message_id, event_time, attempt, code,
                 took_ms, reason, worker)
             SELECT $1, message_id, event_time, attempt, code, took,
                 left(regexp_replace(reason, '[[:cntrl:]]+', ' ', 'g'), {REASON_MAX}), worker
             FROM ended WHERE took IS NOT NULL
         ), outdated AS (
             DELETE FROM {schema}.inbox_attempts WHERE id = ANY (ARRAY(
                 SELECT older.id FROM ended, LATERAL (
                     SELECT a.id FROM {schema}.inbox_attempts AS a
                     WHERE a.consumer = $1 AND a.message_id = ended.message_id
                         AND a.event_time = ended.event_time
                     ORDER BY a.id DESC OFFSET {before}) AS older
                 WHERE ended.took IS NOT NULL))
         )"
    )
}

/// Events that one statement looks at.
const PAGE: usize = 1_000;

/// Looks at the next events before `$1` that attempts are kept of, behind the event at `$2` (at first,
/// `NULL`) with the id `$3` of the consumer `$4`. Deletes the attempts at those of which no record is
/// left, and returns the last of the events, deleted or not.
pub(crate) fn forget_page(schema: &str) -> String {
    format!(
        "WITH page AS MATERIALIZED (
             SELECT DISTINCT event_time, message_id, consumer FROM {schema}.inbox_attempts
             WHERE event_time < $1
                 AND (event_time, message_id, consumer)
                     > (coalesce($2::timestamptz, '-infinity'), $3, $4)
             ORDER BY event_time, message_id, consumer LIMIT {PAGE}
         ), gone AS (
             DELETE FROM {schema}.inbox_attempts WHERE id = ANY (ARRAY(
                 SELECT a.id FROM page JOIN {schema}.inbox_attempts AS a
                     USING (event_time, message_id, consumer)
                 WHERE NOT EXISTS (
                     SELECT FROM {schema}.inbox_messages AS m
                     WHERE m.consumer = page.consumer AND m.message_id = page.message_id
                         AND m.event_time = page.event_time)
                 FOR UPDATE OF a SKIP LOCKED))
         )
         SELECT event_time, message_id, consumer FROM page
         ORDER BY event_time DESC, message_id DESC, consumer DESC LIMIT 1"
    )
}
