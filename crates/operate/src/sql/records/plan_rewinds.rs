//! The statements on requests that a consumer goes back.

use inbox::access::{as_json, remembered};

/// What the requests say that one command made, one for each partition, as one.
const STATE: &str = "SELECT min(id) AS id, min(stream) AS stream,
    min(stream_created_at) AS stream_created_at, min(from_seq) AS from_sequence,
    max(until_seq) AS until_sequence, bool_or(again) AS again,
    min(aggregate_type) AS aggregate_type, min(aggregate_id) AS aggregate_id,
    min(event_type) AS event_type, min(requested_at) AS requested_at,
    min(requested_by) AS requested_by, min(begun_at) AS begun_at, min(removed_to) AS removed_to,
    sum(removed)::bigint AS removed,
    CASE WHEN bool_and(ended_at IS NOT NULL) THEN max(ended_at) END AS ended_at,
    CASE WHEN bool_and(ended_at IS NOT NULL)
        THEN coalesce(max(outcome) FILTER (WHERE outcome <> 'rewound'), 'rewound') END AS outcome";

fn state(of: &str) -> String {
    as_json(&format!("{STATE} FROM {of} HAVING count(*) > 0"))
}

/// What the consumer `$1` has to carry out in one of its `$2` partitions.
pub(crate) fn find_pending(schema: &str) -> String {
    state(&format!(
        "{schema}.inbox_rewinds WHERE consumer = $1 AND partition < $2 AND ended_at IS NULL"
    ))
}

/// What was requested together with `$1`.
pub(crate) fn find(schema: &str) -> String {
    state(&format!(
        "{schema}.inbox_rewinds WHERE (consumer, requested_at) =
             (SELECT consumer, requested_at FROM {schema}.inbox_rewinds WHERE id = $1)"
    ))
}

/// The latest `$2`, of the consumer `$1` if there is one.
pub(crate) fn list(schema: &str) -> String {
    as_json(&format!(
        "{STATE}, consumer, min(reason) AS why FROM {schema}.inbox_rewinds
         WHERE $1::text IS NULL OR consumer = $1
         GROUP BY consumer, requested_at ORDER BY requested_at DESC LIMIT $2"
    ))
}

/// Only what has not begun. `$2` withdraws it, through `$3`, for `$4`.
pub(crate) fn cancel(schema: &str) -> String {
    format!(
        "WITH cancelled AS (
             UPDATE {schema}.inbox_rewinds AS it SET ended_at = clock_timestamp(), outcome = 'cancelled'
             WHERE consumer = $1 AND ended_at IS NULL AND NOT EXISTS (
                 SELECT FROM {schema}.inbox_rewinds AS begun WHERE begun.consumer = $1
                     AND begun.requested_at = it.requested_at AND begun.begun_at IS NOT NULL)
             RETURNING *
         ), noted AS (
             INSERT INTO {schema}.inbox_control_audit (consumer, action, actor, via, why)
             SELECT DISTINCT consumer, 'cancel_rewind', $2, $3, $4 FROM cancelled
         ), it AS ({STATE} FROM cancelled HAVING count(*) > 0) SELECT to_json(it) FROM it"
    )
}

/// What the records say about events, of which some are meant: how many there are of each kind.
pub(crate) fn count_states(schema: &str) -> String {
    format!(
        "SELECT CASE
             WHEN m.status = 'PROCESSED' AND NOT i.meant THEN 'others'
             WHEN m.status = 'PROCESSED' AND i.{remembered} THEN 'processed'
             WHEN m.status = 'PROCESSED' THEN 'kept'
             WHEN m.status IN ('DEAD', 'REJECTED') THEN lower(m.status)
             WHEN m.status IS NOT NULL THEN 'unfinished'
             WHEN i.{remembered} THEN 'new'
             ELSE 'forgotten'
         END, count(*)
         FROM unnest($2::uuid[], $3::timestamptz[], $4::bool[])
             AS i (message_id, event_time, meant)
         LEFT JOIN {schema}.inbox_messages AS m ON m.consumer = $1 AND m.message_id = i.message_id
             AND m.event_time = i.event_time
         GROUP BY 1",
        remembered = remembered(schema)
    )
}
