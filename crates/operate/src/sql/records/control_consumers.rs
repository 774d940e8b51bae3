//! What operators want of a consumer. Each change is one statement with its entry in the audit.

use inbox::access::as_json;

/// The consumer `$1`, by `$2` through `$3`, because of `$4`. One that is paused stays as it is.
pub(crate) fn pause(schema: &str) -> String {
    let change = format!(
        "INSERT INTO {schema}.inbox_controls AS c (consumer, paused_at, paused_by, reason)
         VALUES ($1, clock_timestamp(), $2, $4)
         ON CONFLICT (consumer) DO UPDATE SET paused_at = EXCLUDED.paused_at,
             paused_by = EXCLUDED.paused_by, reason = EXCLUDED.reason
         WHERE c.paused_at IS NULL
         RETURNING consumer"
    );
    with_entry(schema, &change, "pause")
}

pub(crate) fn resume(schema: &str) -> String {
    let change = format!(
        "UPDATE {schema}.inbox_controls SET paused_at = NULL, paused_by = NULL, reason = NULL
         WHERE consumer = $1 AND paused_at IS NOT NULL
         RETURNING consumer"
    );
    with_entry(schema, &change, "resume")
}

pub(crate) fn close_breaker(schema: &str) -> String {
    let change = format!(
        "INSERT INTO {schema}.inbox_controls AS c (consumer, breaker_closings) VALUES ($1, 1)
         ON CONFLICT (consumer) DO UPDATE SET breaker_closings = c.breaker_closings + 1
         RETURNING consumer"
    );
    with_entry(schema, &change, "close_breaker")
}

/// The newest first, of the consumer `$1`, at most `$2`.
pub(crate) fn list_entries(schema: &str) -> String {
    as_json(&format!(
        "SELECT at, action, actor, via, why, FALSE AS payload_replaced
         FROM {schema}.inbox_control_audit WHERE consumer = $1 ORDER BY id DESC LIMIT $2"
    ))
}

fn with_entry(schema: &str, change: &str, action: &str) -> String {
    format!(
        "WITH changed AS ({change})
         INSERT INTO {schema}.inbox_control_audit (consumer, action, actor, via, why)
         SELECT consumer, '{action}', session_user || ' (' || $2::text || ')', $3, $4 FROM changed
         RETURNING id"
    )
}
