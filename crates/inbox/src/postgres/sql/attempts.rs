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

/// Of which no record is left, and which are of events before `$1`.
pub(crate) fn of_no_record(schema: &str) -> String {
    format!(
        "i.event_time < $1 AND NOT EXISTS (
             SELECT FROM {schema}.inbox_messages AS m
             WHERE m.consumer = i.consumer AND m.message_id = i.message_id
                 AND m.event_time = i.event_time)"
    )
}
