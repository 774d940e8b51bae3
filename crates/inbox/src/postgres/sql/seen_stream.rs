//! The statements on what left the stream unread.

use super::handled_up_to::SERVER;
use super::unread_words::in_words;

/// What the worker with the role of `$1` by the token `$2` has seen of the stream: up to `$3`, after `$4`
/// deliveries, with nothing that waits (`$5`), and that `$6` messages were missed. Says so in words, and
/// whether nobody was told yet. On the server `$7`.
pub(crate) fn write_seen(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_roles SET seen_to = $3, seen_given = $4,
             seen_at = CASE WHEN $5 THEN clock_timestamp() - interval '1 hour' ELSE seen_at END,
             unread = unread + $6::bigint,
             unread_since = CASE WHEN $6::bigint > 0 AND unread = 0 THEN seen_at ELSE unread_since END
         WHERE consumer = $1 AND token = $2 AND {SERVER} = $7
             AND ($6::bigint > 0 OR (seen_to, seen_given) IS DISTINCT FROM ($3, $4))
         RETURNING {}, $6::bigint > 0 AND unread = $6",
        in_words(schema, "1")
    )
}
