//! The statements on the inbox's tables: one file a verb, one function a statement. A schema's name
//! is quoted.

pub(crate) mod attempts;
pub(crate) mod claim;
pub(crate) mod complete;
pub(crate) mod control;
pub(crate) mod handled_up_to;
pub(crate) mod hold_role;
pub(crate) mod park;
pub(crate) mod renew;
pub(crate) mod requeued;
pub mod rewind_records;
pub(crate) mod seen_stream;
#[cfg(test)]
mod tests;
pub(crate) mod unread_words;

pub use self::control::find_controls;

/// The record is held by whoever has this token. The status is asked for in a way that hides it from
/// the planner: `idx_inbox_unprocessed` has an entry for each claim since the last vacuum, and the
/// planner would read them all instead of the primary key's few.
const OURS: &str =
    "m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
    AND m.lease_token = i.token AND m.status || '' = 'PROCESSING'";

/// Records of the consumer to look up, each by its primary key. A plan is kept for as long as the
/// statistics of the table, and those of a young one say that all records of the consumer are read as
/// fast as one. So the planner may not know that the consumer is the same in each row (`OFFSET 0`),
/// nor see an order in which all of the index could be read (`ANY`).
fn records(arrays: &str, columns: &str) -> String {
    format!(
        "(SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest({arrays})
             AS i ({columns}) OFFSET 0) AS i"
    )
}

/// Nobody is at work on the record.
pub(crate) const FREE: &str =
    "(m.status = 'FAILED' OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp())";

/// Somebody may be at work on the record, and can be fenced off.
pub(crate) const UNRESOLVED: &str = "m.status IN ('PROCESSING', 'FAILED')";

/// The record `m` is of the letter `d`.
pub const SAME: &str = "m.consumer = d.consumer AND m.message_id = d.message_id
    AND m.event_time = d.event_time";

/// Each row of `sql` as one JSON object, for a struct whose fields are called as its columns.
#[must_use]
pub fn as_json(sql: &str) -> String {
    format!("WITH it AS ({sql}) SELECT to_json(it) FROM it")
}
