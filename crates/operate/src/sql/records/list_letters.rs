use inbox::access::{SAME, as_json};

use crate::dead_letters::group_letters;

/// Attempts after which an event is counted as failing.
const STUBBORN_OVER: i32 = 3;

/// What a selection means. Its parameters are always $1 to $7.
pub(super) const MEANT: &str = "($1::text IS NULL OR d.consumer = $1)
    AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
    AND ($3::text[] IS NULL
         OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
             IN (SELECT * FROM unnest($3::text[], $4::text[])))
    AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
    AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
    AND ($7::timestamptz IS NULL OR d.dead_at >= $7)";

const SHOWN: &str = "d.consumer, d.message_id, d.event_time, d.subject, d.stream, d.stream_seq,
    d.attempts, d.cause, d.reason, d.dead_at, octet_length(d.payload) AS payload_bytes,
    extract(epoch FROM clock_timestamp() - d.dead_at)::float8 AS age_seconds,
    coalesce(m.status IN ('FAILED', 'PROCESSING'), FALSE) AS requeued,
    m.status IS NOT NULL AS recorded, d.headers->'Aggregate-Type'->>0 AS aggregate_type,
    d.headers->'Aggregate-Id'->>0 AS aggregate_id, d.headers->'Event-Type'->>0 AS event_type,
    coalesce(d.headers->'Tailpost-Escaped'->>0, '') AS escaped";

/// Letters `d` that are meant and undecided, with the records `m` of their events. A record may be
/// gone with its partition.
fn open(schema: &str) -> String {
    format!(
        "FROM {schema}.inbox_dead_letter d LEFT JOIN {schema}.inbox_messages m ON {SAME}
         WHERE {MEANT} AND coalesce(m.status, 'DEAD') IN ('DEAD', 'FAILED', 'PROCESSING')"
    )
}

/// Letters that are meant. Those of events that were processed are among them until a worker sweeps
/// them, every second; to look for the records of many takes long.
fn meant(schema: &str) -> String {
    format!("FROM {schema}.inbox_dead_letter d WHERE {MEANT}")
}

/// Those behind the place `$9`, `$10`, `$11`, if there is one.
pub(crate) fn list_letters(schema: &str) -> String {
    let open = open(schema);
    format!(
        "SELECT {SHOWN} {open}
             AND ($9::timestamptz IS NULL
                 OR (d.dead_at, d.message_id, d.consumer) < ($9, $10, $11))
         ORDER BY d.dead_at DESC, d.message_id DESC, d.consumer DESC LIMIT $8"
    )
}

/// As they were published.
pub(crate) fn list_originals(schema: &str) -> String {
    let open = open(schema);
    format!("SELECT {SHOWN}, d.headers, d.payload {open} ORDER BY d.dead_at, d.message_id LIMIT $8")
}

/// If they are `many`, without their records.
pub(crate) fn count_letters(schema: &str, many: bool) -> String {
    let these = if many { meant(schema) } else { open(schema) };
    format!(
        "SELECT count(*), extract(epoch FROM clock_timestamp() - min(d.dead_at))::float8 {these}"
    )
}

/// By what their reasons have in common. What is tried again has no cause at the moment.
pub(crate) fn group_letters_of(schema: &str, many: bool) -> String {
    let dead = || format!("{} AND coalesce(m.status, 'DEAD') = 'DEAD'", open(schema));
    let these = if many { meant(schema) } else { dead() };
    let aggregate = "coalesce(d.headers->'Aggregate-Type'->>0 || ':'
        || (d.headers->'Aggregate-Id'->>0), d.message_id::text)";
    as_json(&group_letters(aggregate, &these))
}

/// Types and ids of the aggregates of those that are meant, as they travel.
pub(crate) fn list_aggregates(schema: &str) -> String {
    let open = open(schema);
    format!(
        "SELECT DISTINCT d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0 {open}
         ORDER BY 1, 2"
    )
}

/// Those that are dead since `$8` at most, behind the place `$9`, `$10`, `$11`.
pub(crate) fn page_letters(schema: &str) -> String {
    let open = open(schema);
    format!(
        "SELECT d.dead_at, d.message_id, d.consumer {open} AND d.dead_at <= $8
             AND (d.dead_at, d.message_id, d.consumer) > ($9, $10, $11)
         ORDER BY d.dead_at, d.message_id, d.consumer LIMIT $12"
    )
}

/// What was decided about the events `$1`, in order.
pub(crate) fn list_decisions(schema: &str) -> String {
    as_json(&format!(
        "SELECT message_id, consumer, decided_at AS at, decision AS action, decided_by AS actor,
             reason AS why, failure AS reason, FALSE AS payload_replaced
         FROM {schema}.inbox_decisions WHERE message_id = ANY($1) ORDER BY id"
    ))
}

/// Events that fail and are tried again, of each consumer the `$1` that happened first.
pub(crate) fn list_failing(schema: &str) -> String {
    as_json(&format!(
        "SELECT consumer, message_id AS event_id, attempts, last_error, next_attempt_at
         FROM (
             SELECT *, row_number() OVER (PARTITION BY consumer ORDER BY event_time, message_id)
                 AS place
             FROM {schema}.inbox_messages
             WHERE status IN ('PROCESSING', 'FAILED') AND last_error IS NOT NULL
                 AND attempts > (status = 'PROCESSING')::int
         ) AS failing
         WHERE place <= $1 ORDER BY consumer, place"
    ))
}

/// What is unfinished, by consumer.
pub(crate) fn list_backlogs(schema: &str) -> String {
    as_json(&format!(
        "WITH begun AS (
             SELECT consumer,
                 count(*) FILTER (WHERE status = 'PROCESSING') AS processing,
                 count(*) FILTER (WHERE status = 'FAILED') AS failed,
                 count(*) FILTER (WHERE attempts > {STUBBORN_OVER}) AS stubborn,
                 extract(epoch FROM clock_timestamp() - min(event_time))::float8 AS oldest_seconds,
                 (array_agg(last_error ORDER BY claimed_at DESC NULLS LAST)
                     FILTER (WHERE status = 'FAILED'))[1] AS last_error
             FROM {schema}.inbox_messages WHERE status IN ('PROCESSING', 'FAILED') GROUP BY consumer
         ), dead AS (
             SELECT d.consumer, count(*) AS dead,
                 extract(epoch FROM clock_timestamp() - min(d.dead_at))::float8 AS oldest_dead_letter_seconds
             FROM {schema}.inbox_dead_letter d LEFT JOIN {schema}.inbox_messages m ON {SAME}
             WHERE coalesce(m.status, 'DEAD') = 'DEAD' GROUP BY d.consumer
         )
         SELECT consumer, coalesce(processing, 0) AS processing, coalesce(failed, 0) AS failed,
             coalesce(stubborn, 0) AS stubborn, coalesce(dead, 0) AS dead, oldest_seconds,
             oldest_dead_letter_seconds, last_error
         FROM begun FULL JOIN dead USING (consumer) ORDER BY consumer"
    ))
}
