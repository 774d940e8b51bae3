//! The statements on up to where everything is handled.

use super::claim::remembered;
use super::unread_words::{UNRECORDED, in_words};

/// When the server was started, in microseconds since 1970: tells one that may lack what another one
/// committed from that one.
pub(crate) const SERVER: &str =
    "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

/// The row is of the stream `$2` that was created at `$3`.
const THIS_STREAM: &str =
    "handled_stream = $2 AND handled_created IS NOT DISTINCT FROM $3::timestamptz";

/// Up to where, of the stream `$2` that was created at `$3` and the partition `$4`, and on which server. No row if nobody
/// ever had the consumer; null if nobody has written it down of this stream. And what of the stream was
/// seen, and was not; and when the message there was stored.
pub(crate) fn find_handled(schema: &str) -> String {
    format!(
        "SELECT CASE WHEN {THIS_STREAM} THEN handled_to END, {SERVER},
             CASE WHEN {THIS_STREAM} THEN seen_to END, seen_given, unread,
             CASE WHEN {THIS_STREAM} THEN handled_stored_at END
         FROM {schema}.inbox_roles WHERE consumer = $1 AND partition = $4"
    )
}

/// Only for the worker that has the role by the token `$5`, which no other partition has, on the server
/// `$6`. The message there was stored at `$7`. Up to `$8` of those up to there have no record, and were
/// acknowledged before anybody wrote that down. Says so in words.
pub(crate) fn write_handled(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_roles
         SET handled_stream = $2, handled_created = $3, handled_to = $4, handled_stored_at = $7,
             seen_to = CASE WHEN {THIS_STREAM} THEN seen_to END, unread = unread + $8::bigint,
             unread_since = CASE WHEN $8::bigint > 0 THEN {UNRECORDED} ELSE unread_since END
         WHERE consumer = $1 AND token = $5 AND {SERVER} = $6 RETURNING {}",
        in_words(schema, "1")
    )
}

/// The first of these events, by their sequences, that has no end: neither in its record, nor as a
/// dead letter, which may be due once more.
pub(crate) fn first_unhandled(schema: &str) -> String {
    format!(
        "SELECT min(i.seq)
         FROM unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) AS i (message_id, event_time, seq)
         WHERE i.{remembered}
             AND NOT EXISTS (SELECT FROM {schema}.inbox_messages AS m
                 WHERE m.consumer = $1 AND m.message_id = i.message_id
                     AND m.event_time = i.event_time
                     AND m.status || '' IN ('PROCESSED', 'DEAD', 'REJECTED'))
             AND NOT EXISTS (SELECT FROM {schema}.inbox_dead_letter AS d
                 WHERE d.consumer = $1 AND d.message_id = i.message_id)",
        remembered = remembered(schema)
    )
}

/// The last of these events whose record names the sequence `$4` that it is stored at.
pub(crate) fn last_in_place(schema: &str) -> String {
    format!(
        "SELECT max(m.stream_seq)
         FROM unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) AS i (message_id, event_time, seq)
         JOIN {schema}.inbox_messages AS m ON m.consumer = $1 AND m.message_id = i.message_id
             AND m.event_time = i.event_time AND m.stream_seq = i.seq"
    )
}
