use crate::record::UNFINISHED_MAX;

/// Written as processed at once, for a transaction that their effects are in too.
pub(crate) fn record_new_events(schema: &str) -> String {
    let (role, remembered) = (has_role(schema, "$8"), remembered(schema));
    format!(
        "INSERT INTO {schema}.inbox_messages (consumer, message_id, event_time, subject, stream,
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

/// `free` is what may be claimed.
pub(crate) fn claim_events(schema: &str, free: &str) -> String {
    let (role, remembered) = (has_role(schema, "$10"), remembered(schema));
    let table = format!("{schema}.inbox_messages");
    format!(
        "WITH input AS (
             SELECT * FROM unnest($2, $3, $4::text[], $5::bigint[])
                 AS i (message_id, event_time, subject, stream_seq)
         ), claimed AS (
             INSERT INTO {table} AS m (consumer, message_id, event_time, subject, stream,
                 stream_seq, status, attempts, lease_owner, lease_token, claimed_at, expires_at)
             SELECT $1, message_id, event_time, subject, $6, stream_seq, 'PROCESSING', 1,
                 $7, $8::uuid, clock_timestamp(), clock_timestamp() + make_interval(secs => $9)
             FROM input
             WHERE {role} AND ({remembered} OR EXISTS (SELECT FROM {table} AS r
                 WHERE r.consumer = $1 AND r.message_id = input.message_id
                     AND r.event_time = input.event_time OFFSET 0))
             ORDER BY message_id
             ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
                 status = 'PROCESSING', attempts = m.attempts + 1,
                 lease_owner = EXCLUDED.lease_owner, lease_token = EXCLUDED.lease_token,
                 claimed_at = EXCLUDED.claimed_at, expires_at = EXCLUDED.expires_at,
                 next_attempt_at = NULL
             WHERE {free}
                 AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
                 AND m.attempts - m.finished_attempts < {UNFINISHED_MAX}
             RETURNING m.message_id, m.attempts, m.finished_attempts,
                 clock_timestamp() - m.tried_since AS age
         )
         SELECT message_id, 'claimed', attempts, attempts - finished_attempts, 0::float8,
             extract(epoch FROM age)::float8
         FROM claimed
         UNION ALL
         SELECT
             input.message_id,
             CASE
                 WHEN m.status IN ('PROCESSED', 'DEAD', 'REJECTED') THEN 'resolved'
                 WHEN NOT {free} THEN 'leased'
                 WHEN NOT {role} THEN 'contended'
                 WHEN m.attempts - m.finished_attempts >= {UNFINISHED_MAX} THEN 'crashed'
                 WHEN m.next_attempt_at > clock_timestamp() THEN 'early'
                 WHEN m.message_id IS NULL AND NOT input.{remembered} THEN 'forgotten'
                 ELSE 'contended'
             END,
             coalesce(m.attempts, 0),
             coalesce(m.attempts - m.finished_attempts, 0),
             coalesce(extract(epoch FROM CASE m.status WHEN 'PROCESSING' THEN m.expires_at
                 ELSE m.next_attempt_at END - clock_timestamp()), 0)::float8,
             NULL
         FROM input
         LEFT JOIN LATERAL (
             SELECT * FROM {table} AS r
             WHERE r.consumer = $1 AND r.message_id = input.message_id
                 AND r.event_time = input.event_time
             OFFSET 0
         ) AS m ON TRUE
         WHERE input.message_id NOT IN (SELECT message_id FROM claimed)"
    )
}

/// Whoever looked at the tables a while ago may not know what has been forgotten since.
#[must_use]
pub fn remembered(schema: &str) -> String {
    format!(
        "event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
             FROM {schema}.inbox_retention)"
    )
}

/// Whether the worker may begin events of the partition that it took under this token. Each taking
/// makes a token of its own, in the partition's row alone, and overwrites the one before: so no other
/// partition of the worker has it, and when another worker has taken this one nobody has.
pub(super) fn has_role(schema: &str, token: &str) -> String {
    format!(
        "EXISTS (SELECT FROM {schema}.inbox_roles AS r
             WHERE r.consumer = $1 AND r.token = {token}::uuid)"
    )
}
