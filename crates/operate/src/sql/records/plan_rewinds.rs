//! The statements on requests that a consumer goes back.

use inbox::access::rewind_records::{STATE, pending};
use inbox::access::{as_json, remembered};

/// The request of the consumer `$1` that is not carried out.
pub(crate) fn find_pending(schema: &str) -> String {
    as_json(&pending(schema))
}

pub(crate) fn find(schema: &str) -> String {
    as_json(&format!("SELECT {STATE} FROM {schema}.inbox_rewinds WHERE id = $1"))
}

/// Only what has not begun.
pub(crate) fn cancel(schema: &str) -> String {
    as_json(&format!(
        "UPDATE {schema}.inbox_rewinds SET ended_at = clock_timestamp(), outcome = 'cancelled'
         WHERE consumer = $1 AND ended_at IS NULL AND begun_at IS NULL RETURNING {STATE}"
    ))
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
