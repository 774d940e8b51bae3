use super::{ENDED, OURS};

pub(crate) fn complete_claims(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_messages AS m
         SET status = 'PROCESSED', processed_at = clock_timestamp(), outcome = i.outcome, {ENDED}
         FROM unnest($2, $3, $4::uuid[], $5::text[])
             AS i (message_id, event_time, token, outcome)
         WHERE {OURS} RETURNING m.message_id"
    )
}

pub(crate) fn fail_claims(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_messages AS m
         SET status = 'FAILED', last_error = i.reason,
             next_attempt_at = clock_timestamp() + make_interval(secs => i.delay), {ENDED}
         FROM unnest($2, $3, $4::uuid[], $5::text[], $6::float8[])
             AS i (message_id, event_time, token, reason, delay)
         WHERE {OURS} RETURNING m.message_id"
    )
}

/// What handlers had to say, beside records of this transaction.
pub(crate) fn note_outcomes(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_messages AS m
         SET outcome = i.outcome
         FROM unnest($2, $3, $4::text[]) AS i (message_id, event_time, outcome)
         WHERE m.consumer = $1 AND m.message_id = i.message_id
             AND m.event_time = i.event_time AND m.status = 'PROCESSED'"
    )
}
