use super::attempts::note;
use super::claim::has_role;
use super::{OURS, records};
use crate::record::UNFINISHED_MAX;

/// What PostgreSQL says is no UUID where an event would be dead without its letter.
pub(crate) const NO_LETTER: &str = "no letter of ";

pub(crate) fn park_claimed(schema: &str) -> String {
    park(schema, &dead_claimed(schema), "")
}

/// The same, where the attempt failed: `$14` is the code, `$15` how long it took.
pub(crate) fn park_failed(schema: &str) -> String {
    let noted = format!(
        ", ended AS (
             SELECT ($2)[1] AS message_id, ($3)[1] AS event_time, attempts AS attempt,
                 $14::smallint AS code, $15::int AS took, $10::text AS reason, worker
             FROM dead
         ), {}",
        note(schema)
    );
    park(schema, &dead_claimed(schema), &noted)
}

fn dead_claimed(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_messages AS m
         SET status = 'DEAD', last_error = $10, finished_attempts = m.finished_attempts + 1,
             lease_token = NULL, expires_at = NULL
         FROM {claimed}
         WHERE {OURS} RETURNING m.attempts, m.lease_owner AS worker",
        claimed = records("$2, $3, ARRAY[$11]::uuid[]", "message_id, event_time, token")
    )
}

/// What is parked without a claim is parked under the token `$11` of the role: a worker that lost it
/// parks nothing.
pub(crate) fn park_crashed(schema: &str, free: &str) -> String {
    let dead = format!(
        "UPDATE {schema}.inbox_messages AS m
         SET status = 'DEAD', last_error = $10, lease_token = NULL,
             expires_at = NULL, next_attempt_at = NULL
         FROM {crashed}
         WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id
             AND m.event_time = i.event_time AND {free}
             AND m.attempts - m.finished_attempts >= {UNFINISHED_MAX}
             AND {role}
         RETURNING m.attempts",
        crashed = records("$2, $3", "message_id, event_time"),
        role = has_role(schema, "$11")
    );
    park(schema, &dead, "")
}

pub(crate) fn park_forgotten(schema: &str) -> String {
    park(schema, &format!("SELECT 0 AS attempts WHERE {}", has_role(schema, "$11")), "")
}

/// Whether there is a record or not, as long as nobody is at work on it.
pub(crate) fn park_anyhow(schema: &str, free: &str) -> String {
    let dead = format!(
        "INSERT INTO {schema}.inbox_messages AS m (consumer, message_id, event_time, subject,
             stream, stream_seq, status, last_error)
         SELECT $1, message_id, event_time, $4, $5, $6, 'DEAD', $10
         FROM unnest($2, $3) AS i (message_id, event_time)
         WHERE {role}
         ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET status = 'DEAD',
             last_error = $10, lease_token = NULL, expires_at = NULL, next_attempt_at = NULL
             WHERE {free}
         RETURNING m.attempts",
        role = has_role(schema, "$11")
    );
    park(schema, &dead, "")
}

/// `dead` changes the record, and returns `attempts` if it did; `more` goes with it. Of an event that is
/// a dead letter already the letter is this message, whole. Where a trigger keeps the letter out the
/// statement fails, and the record is not changed either.
fn park(schema: &str, dead: &str, more: &str) -> String {
    format!(
        "WITH dead AS ({dead}){more}, letter AS (
         INSERT INTO {schema}.inbox_dead_letter AS letter (consumer, message_id, event_time,
             subject, stream, stream_seq, headers, payload, attempts, cause, reason, raw_headers,
             stream_created_at)
         SELECT $1, ($2)[1], ($3)[1], $4::text, $5::text, $6::bigint, $7::text::jsonb, $8::bytea,
             dead.attempts, $9::text, $10::text, $12::bytea, $13::timestamptz
         FROM dead
         ON CONFLICT (consumer, message_id) DO UPDATE SET
             event_time = EXCLUDED.event_time, subject = EXCLUDED.subject,
             stream = EXCLUDED.stream, stream_seq = EXCLUDED.stream_seq,
             stream_created_at = EXCLUDED.stream_created_at, headers = EXCLUDED.headers,
             raw_headers = EXCLUDED.raw_headers, payload = EXCLUDED.payload,
             attempts = EXCLUDED.attempts, cause = EXCLUDED.cause, reason = EXCLUDED.reason,
             dead_at = EXCLUDED.dead_at
         RETURNING letter.message_id
         )
         SELECT message_id FROM letter
         UNION ALL
         SELECT ('{NO_LETTER}' || attempts)::uuid FROM dead WHERE NOT EXISTS (SELECT FROM letter)"
    )
}
