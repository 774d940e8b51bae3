//! The statements on requests to go back in the stream.

use super::as_json;
use super::claim::{has_role, remembered};

/// What a request says.
pub const STATE: &str = "id, stream, stream_created_at, from_seq AS from_sequence,
    until_seq AS until_sequence, again, aggregate_type, aggregate_id, event_type,
    requested_at, requested_by, begun_at, removed_to, removed,
    ended_at, outcome";

/// Who requests that a consumer goes back because its stream or its database did.
pub const FOLLOWS: &str = "tailpost inbox";

/// In each of the partitions `$9`, of which `$5` was delivered; not where another request is pending.
#[must_use]
pub fn request(schema: &str) -> String {
    as_json(&format!(
        "INSERT INTO {schema}.inbox_rewinds (consumer, stream, stream_created_at, from_seq, until_seq, again,
             aggregate_type, aggregate_id, event_type, requested_at, requested_by, reason, removed_to,
             partition)
         SELECT $1, $2, $3, $4::bigint, i.until, $6, $9, $10, $11, now(),
             session_user || ' (' || $7::text || ')', $8, $4::bigint - 1, i.partition
         FROM unnest($5::bigint[], $12::int[]) AS i (until, partition)
         ON CONFLICT (consumer, partition) WHERE ended_at IS NULL DO NOTHING
         RETURNING {STATE}"
    ))
}

/// As [`pending`], for who may carry it out.
pub(crate) fn find_mine(schema: &str) -> String {
    let rewinds = format!("{schema}.inbox_rewinds").replace('\'', "''");
    as_json(&format!("{} AND has_table_privilege('{rewinds}', 'UPDATE')", pending(schema)))
}

/// The request of the consumer `$1` that is not carried out in the partition `$2`.
#[must_use]
pub fn pending(schema: &str) -> String {
    format!(
        "SELECT {STATE} FROM {schema}.inbox_rewinds
         WHERE consumer = $1 AND partition = $2 AND ended_at IS NULL"
    )
}

/// Says where the consumer begins: at `$3`, or where a worker before would have had it begin. `$3`
/// is null if there is no consumer; if nobody ever knew its place, it begins at the first message.
/// Only for the worker that has the role.
pub(crate) fn begin(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_rewinds SET begun_at = coalesce(begun_at, clock_timestamp()),
             reset_seq = coalesce(least(reset_seq, $3::bigint), 1)
         WHERE id = $2 AND ended_at IS NULL AND {} RETURNING reset_seq",
        has_role(schema, "$4")
    )
}

pub(crate) fn end(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_rewinds SET ended_at = clock_timestamp(), outcome = $2
         WHERE id = $1 AND ended_at IS NULL RETURNING id"
    )
}

/// Removes the records of these events, if they are processed, writes that down, and how far it
/// is: `$6`, if it was `$5`. What is removed is not handled any more. Only for the worker that has the
/// role. Later records would count as forgotten and become dead letters: those that are too old are kept.
pub(crate) fn remove(schema: &str) -> String {
    format!(
        "WITH rewind AS MATERIALIZED (
             SELECT id, requested_by, reason FROM {schema}.inbox_rewinds
             WHERE id = $4 AND ended_at IS NULL AND removed_to = $5 AND {role}
             FOR UPDATE
         ), done AS (
             DELETE FROM {schema}.inbox_messages AS m
             USING unnest($2::uuid[], $3::timestamptz[]) AS i (message_id, event_time), rewind
             WHERE m.consumer = $1 AND m.message_id = i.message_id
                 AND m.event_time = i.event_time AND m.status || '' = 'PROCESSED'
                 AND m.{remembered}
             RETURNING m.*
         ), attempts AS (
             DELETE FROM {schema}.inbox_attempts AS a USING done
             WHERE a.consumer = done.consumer AND a.message_id = done.message_id
                 AND a.event_time = done.event_time
         ), noted AS (
             INSERT INTO {schema}.inbox_decisions (decision, decided_by, reason, consumer, message_id,
                 event_time, subject, stream, stream_seq, attempts)
             SELECT 'rewind', rewind.requested_by, rewind.reason, consumer, message_id,
                 event_time, subject, stream, stream_seq, attempts
             FROM done, rewind
         ), unhandled AS (
             UPDATE {schema}.inbox_roles SET handled_to = $5, handled_stored_at = NULL
             FROM rewind WHERE consumer = $1 AND token = $7::uuid AND handled_to > $5
         )
         UPDATE {schema}.inbox_rewinds AS r
         SET removed_to = $6, removed = r.removed + (SELECT count(*) FROM done)
         FROM rewind WHERE r.id = rewind.id RETURNING r.removed",
        role = has_role(schema, "$7"),
        remembered = remembered(schema)
    )
}
