use super::attempts::note;
use super::{OURS, records};

const ENDS: &str = "$2, $3, $4::uuid[], $5::text[], $6::text[], $7::float8[]";

/// Each claim ends as its row of the arrays says. One that is given back stays as if it had never been
/// made: the attempt does not count. A word says that it failed.
pub(crate) fn end_claims(schema: &str) -> String {
    let ends = records(ENDS, "message_id, event_time, token, status, word, delay");
    format!("{} RETURNING m.message_id", end(schema, &ends))
}

/// The same, where attempts failed: `$8` has the codes, `$9` how long each took, if it was one.
pub(crate) fn end_failed_claims(schema: &str) -> String {
    let ends = records(
        &format!("{ENDS}, $8::smallint[], $9::int[]"),
        "message_id, event_time, token, status, word, delay, code, took",
    );
    format!(
        "WITH ended AS (
         {end}
         RETURNING m.message_id, m.event_time, m.lease_owner AS worker, i.word AS reason, i.code,
             i.took, m.attempts + (i.status = 'PROCESSING')::int AS attempt
         ), {note}
         SELECT message_id FROM ended",
        end = end(schema, &ends),
        note = note(schema)
    )
}

fn end(schema: &str, ends: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_messages AS m
         SET status = i.status, lease_token = NULL,
             processed_at = CASE i.status WHEN 'PROCESSED' THEN clock_timestamp() END,
             outcome = CASE i.status WHEN 'PROCESSED' THEN i.word ELSE m.outcome END,
             last_error = CASE i.status WHEN 'FAILED' THEN i.word ELSE m.last_error END,
             next_attempt_at = CASE i.status WHEN 'FAILED'
                 THEN clock_timestamp() + make_interval(secs => i.delay) END,
             tried_since = coalesce(m.tried_since, CASE WHEN i.status <> 'PROCESSED'
                 AND i.word IS NOT NULL THEN clock_timestamp() END),
             attempts = m.attempts - (i.status = 'PROCESSING')::int,
             finished_attempts = m.finished_attempts + (i.status <> 'PROCESSING')::int,
             expires_at = CASE i.status WHEN 'PROCESSING' THEN clock_timestamp() END
         FROM {ends}
         WHERE {OURS}"
    )
}

/// Those of claims that nobody has ended or taken over.
pub(crate) fn find_unended(schema: &str) -> String {
    let claims =
        records("$2::uuid[], $3::timestamptz[], $4::uuid[]", "message_id, event_time, token");
    format!("SELECT m.message_id FROM {schema}.inbox_messages AS m, {claims} WHERE {OURS}")
}

/// What handlers had to say, beside records of this transaction.
pub(crate) fn note_outcomes(schema: &str) -> String {
    let noted = records("$2, $3, $4::text[]", "message_id, event_time, outcome");
    format!(
        "UPDATE {schema}.inbox_messages AS m
         SET outcome = i.outcome
         FROM {noted}
         WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id
             AND m.event_time = i.event_time AND m.status = 'PROCESSED'"
    )
}
