//! What is said of messages that may never be handled.

/// Since when messages are unread that were acknowledged, and of which there is no record.
pub(super) const UNRECORDED: &str = "'-infinity'::timestamptz";

/// With those of `$2` that left the stream, as the audit keeps it.
pub(crate) fn note_unread(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.inbox_control_audit (consumer, action, actor, via, why)
         VALUES ($1, 'unread', session_user || ' (a worker)', 'inbox', $2)"
    )
}

/// Of a row with `consumer`, `unread` and `unread_since`, of so many `parts`: what happened, and what is
/// to be done. What is told later is not settled by it.
#[must_use]
pub fn in_words(schema: &str, parts: &str) -> String {
    format!(
        "'up to ' || unread || ' messages ' || CASE WHEN unread_since = {UNRECORDED} THEN
         'are acknowledged and have no record here' ELSE 'left the stream unread' END ||
         CASE WHEN {parts} > 1 THEN ' in each of ' || {parts} || ' partitions' ELSE '' END ||
         ', some of which may be of other subjects. ' || CASE WHEN unread_since = {UNRECORDED} THEN
         'The database is of an earlier state, or the durable consumer was made anew with a later '
         'start, and `' || 'tailpost inbox rewind --to-sequence 1 '
         '--consumer ' || consumer || '` has those handled that the stream has; or they were '
         'handled elsewhere' ELSE
         'No rewind brings them: `' || 'tailpost replay ' || coalesce('--since ' ||
         to_char(unread_since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), '--all') ||
         '` does' END || '. Once that is done: UPDATE {} SET unread = 0 WHERE consumer = ' ||
         quote_literal(consumer) || ' AND unread <= ' || unread",
        format!("{schema}.inbox_roles").replace('\'', "''")
    )
}
