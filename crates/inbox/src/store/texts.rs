use super::UNFINISHED_MAX;

/// The texts of the statements on the tables of one schema.
pub(super) struct Texts {
    pub(super) record: String,
    pub(super) note: String,
    pub(super) claim: String,
    pub(super) renew: String,
    pub(super) complete: String,
    pub(super) fail: String,
    pub(super) release: String,
    pub(super) park_held: String,
    pub(super) park_crashed: String,
    pub(super) park_new: String,
    pub(super) park_forgotten: String,
    pub(super) park_anyhow: String,
}

/// The record is held by whoever has this token. The status is asked for in a way that hides it from
/// the planner: `idx_inbox_unprocessed` has an entry for each claim since the last vacuum, and the
/// planner would read them all instead of the primary key's few.
const OURS: &str = "m.consumer = $1 AND m.message_id = i.message_id AND m.event_time = i.event_time
    AND m.lease_token = i.token AND m.status || '' = 'PROCESSING'";

/// Nobody is at work on the record.
pub(super) const FREE: &str =
    "(m.status = 'FAILED' OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp())";

/// Somebody may be at work on the record, and can be fenced off.
pub(super) const UNSETTLED: &str = "m.status IN ('PROCESSING', 'FAILED')";

/// A lease has ended, by whatever end.
const ENDED: &str =
    "finished_attempts = m.finished_attempts + 1, lease_token = NULL, expires_at = NULL";

impl Texts {
    /// `free` is what may be claimed.
    pub(super) fn new(schema: &str, free: &str) -> Self {
        let table = format!("{schema}.inbox_messages");
        // Whoever looked at the tables a while ago may not know what has been forgotten since.
        let remembered = format!(
            "event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
                 FROM {schema}.inbox_retention)"
        );
        let role = |token: &str| {
            format!(
                "EXISTS (SELECT FROM {schema}.inbox_roles AS r
                     WHERE r.consumer = $1 AND r.token = {token}::uuid)"
            )
        };
        let input = "unnest($2, $3, $4::uuid[]) AS i (message_id, event_time, token)";
        Self {
            record: record_text(&table, &role("$8"), &remembered),
            note: format!(
                "UPDATE {table} AS m SET outcome = i.outcome
                 FROM unnest($2, $3, $4::text[]) AS i (message_id, event_time, outcome)
                 WHERE m.consumer = $1 AND m.message_id = i.message_id
                     AND m.event_time = i.event_time AND m.status = 'PROCESSED'"
            ),
            claim: claim_text(&table, free, &role("$10"), &remembered),
            renew: format!(
                "UPDATE {table} AS m SET expires_at = clock_timestamp() + make_interval(secs => $5)
                 FROM {input} WHERE {OURS} RETURNING m.message_id"
            ),
            complete: format!(
                "UPDATE {table} AS m SET status = 'PROCESSED', processed_at = clock_timestamp(),
                     outcome = i.outcome, {ENDED}
                 FROM unnest($2, $3, $4::uuid[], $5::text[])
                     AS i (message_id, event_time, token, outcome)
                 WHERE {OURS} RETURNING m.message_id"
            ),
            fail: format!(
                "UPDATE {table} AS m SET status = 'FAILED', last_error = i.reason,
                     next_attempt_at = clock_timestamp() + make_interval(secs => i.delay), {ENDED}
                 FROM unnest($2, $3, $4::uuid[], $5::text[], $6::float8[])
                     AS i (message_id, event_time, token, reason, delay)
                 WHERE {OURS} RETURNING m.message_id"
            ),
            release: format!(
                "UPDATE {table} AS m SET attempts = m.attempts - 1, lease_token = NULL,
                     expires_at = clock_timestamp()
                 FROM {input} WHERE {OURS}"
            ),
            park_held: park_text(schema, &dead_held(&table)),
            park_crashed: park_text(schema, &dead_crashed(&table, free)),
            park_new: park_text(schema, &dead_new(&table)),
            park_forgotten: park_text(schema, "SELECT 0 AS attempts WHERE $11::uuid IS NULL"),
            park_anyhow: park_text(schema, &dead_anyhow(&table, free)),
        }
    }
}

/// `role` says whether the worker may begin events.
fn record_text(table: &str, role: &str, remembered: &str) -> String {
    format!(
        "INSERT INTO {table} (consumer, message_id, event_time, subject, stream,
             stream_seq, status, attempts, finished_attempts, processed_at, lease_owner)
         SELECT $1, message_id, event_time, subject, $6, stream_seq, 'PROCESSED', 1, 1,
             clock_timestamp(), $7
         FROM unnest($2, $3, $4::text[], $5::bigint[])
             AS i (message_id, event_time, subject, stream_seq)
         WHERE {role} AND {remembered}
         ORDER BY message_id -- so that two workers cannot wait for each other
         ON CONFLICT (consumer, message_id, event_time) DO NOTHING
         RETURNING message_id"
    )
}

fn claim_text(table: &str, free: &str, role: &str, remembered: &str) -> String {
    format!(
        "WITH input AS (
             SELECT * FROM unnest($2, $3, $4::text[], $5::bigint[])
                 WITH ORDINALITY AS i (message_id, event_time, subject, stream_seq, place)
         ), claimed AS (
             INSERT INTO {table} AS m (consumer, message_id, event_time, subject, stream,
                 stream_seq, status, attempts, lease_owner, lease_token, claimed_at, expires_at)
             SELECT $1, message_id, event_time, subject, $6, stream_seq, 'PROCESSING', 1,
                 $7, $8::uuid, clock_timestamp(), clock_timestamp() + make_interval(secs => $9)
             FROM input
             WHERE {role} AND ({remembered} OR EXISTS (SELECT FROM {table} AS r WHERE r.consumer = $1
                 AND r.message_id = input.message_id AND r.event_time = input.event_time))
             ORDER BY message_id
             ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
                 status = 'PROCESSING', attempts = m.attempts + 1,
                 lease_owner = EXCLUDED.lease_owner, lease_token = EXCLUDED.lease_token,
                 claimed_at = EXCLUDED.claimed_at, expires_at = EXCLUDED.expires_at,
                 next_attempt_at = NULL
             WHERE {free}
                 AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
                 AND m.attempts - m.finished_attempts < {UNFINISHED_MAX}
             RETURNING m.message_id, m.attempts, m.finished_attempts
         )
         SELECT
             CASE
                 WHEN claimed.message_id IS NOT NULL THEN 'claimed'
                 WHEN m.status IN ('PROCESSED', 'DEAD', 'REJECTED') THEN 'settled'
                 WHEN NOT {free} THEN 'leased'
                 WHEN m.attempts - m.finished_attempts >= {UNFINISHED_MAX} THEN 'crashed'
                 WHEN m.next_attempt_at > clock_timestamp() THEN 'early'
                 WHEN m.message_id IS NULL AND NOT input.{remembered} THEN 'forgotten'
                 ELSE 'contended'
             END,
             coalesce(claimed.attempts, m.attempts, 0),
             coalesce(claimed.attempts - claimed.finished_attempts,
                 m.attempts - m.finished_attempts, 0),
             coalesce(extract(epoch FROM CASE m.status WHEN 'PROCESSING' THEN m.expires_at
                 ELSE m.next_attempt_at END - clock_timestamp()), 0)::float8
         FROM input
         LEFT JOIN claimed USING (message_id)
         LEFT JOIN {table} AS m ON m.consumer = $1 AND m.message_id = input.message_id
             AND m.event_time = input.event_time
         ORDER BY place"
    )
}

fn dead_held(table: &str) -> String {
    format!(
        "UPDATE {table} AS m SET status = 'DEAD', last_error = $10, {ENDED}
         FROM unnest($2, $3, ARRAY[$11]::uuid[]) AS i (message_id, event_time, token)
         WHERE {OURS} RETURNING m.attempts"
    )
}

fn dead_crashed(table: &str, free: &str) -> String {
    format!(
        "UPDATE {table} AS m SET status = 'DEAD', last_error = $10, lease_token = NULL,
             expires_at = NULL
         FROM unnest($2, $3) AS i (message_id, event_time)
         WHERE m.consumer = $1 AND m.message_id = i.message_id
             AND m.event_time = i.event_time AND {free}
             AND m.attempts - m.finished_attempts >= {UNFINISHED_MAX}
             AND $11::uuid IS NULL
         RETURNING m.attempts"
    )
}

fn dead_new(table: &str) -> String {
    format!(
        "INSERT INTO {table} AS m (consumer, message_id, event_time, subject, stream,
             stream_seq, status, last_error)
         SELECT $1, message_id, event_time, $4, $5, $6, 'DEAD', $10
         FROM unnest($2, $3) AS i (message_id, event_time)
         WHERE $11::uuid IS NULL
         ON CONFLICT (consumer, message_id, event_time) DO NOTHING
         RETURNING m.attempts"
    )
}

/// Whether there is a record or not, as long as nobody is at work on it.
fn dead_anyhow(table: &str, free: &str) -> String {
    format!(
        "INSERT INTO {table} AS m (consumer, message_id, event_time, subject, stream,
             stream_seq, status, last_error)
         SELECT $1, message_id, event_time, $4, $5, $6, 'DEAD', $10
         FROM unnest($2, $3) AS i (message_id, event_time)
         WHERE $11::uuid IS NULL
         ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
             status = 'DEAD', last_error = $10, lease_token = NULL, expires_at = NULL,
             next_attempt_at = NULL
         WHERE {free}
         RETURNING m.attempts"
    )
}

/// `dead` changes the record, and returns `attempts` if it did. Of an event that is a dead letter
/// already the letter is this message, whole.
fn park_text(schema: &str, dead: &str) -> String {
    format!(
        "WITH dead AS ({dead})
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
             attempts = EXCLUDED.attempts, cause = EXCLUDED.cause, reason = EXCLUDED.reason, dead_at = EXCLUDED.dead_at
         RETURNING letter.message_id"
    )
}
