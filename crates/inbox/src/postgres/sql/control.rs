//! What operators want of a consumer. Each change is one statement with its entry in the audit.

/// As [`find_controls`], of the consumer `$1`.
pub(crate) fn find_control(controls: &str) -> String {
    format!("{} WHERE consumer = $1", find_controls(controls))
}

pub(crate) fn find_controls(controls: &str) -> String {
    format!("SELECT consumer, paused_at, paused_by, reason, breaker_closings FROM {controls}")
}

/// The consumer `$1`, by `$2` through `$3`, because of `$4`. One that is paused stays as it is.
pub(crate) fn pause(controls: &str, audit: &str) -> String {
    let change = format!(
        "INSERT INTO {controls} AS c (consumer, paused_at, paused_by, reason)
         VALUES ($1, clock_timestamp(), $2, $4)
         ON CONFLICT (consumer) DO UPDATE SET paused_at = EXCLUDED.paused_at,
             paused_by = EXCLUDED.paused_by, reason = EXCLUDED.reason
         WHERE c.paused_at IS NULL
         RETURNING consumer"
    );
    with_entry(&change, audit, "pause")
}

pub(crate) fn resume(controls: &str, audit: &str) -> String {
    let change = format!(
        "UPDATE {controls} SET paused_at = NULL, paused_by = NULL, reason = NULL
         WHERE consumer = $1 AND paused_at IS NOT NULL
         RETURNING consumer"
    );
    with_entry(&change, audit, "resume")
}

pub(crate) fn close_breaker(controls: &str, audit: &str) -> String {
    let change = format!(
        "INSERT INTO {controls} AS c (consumer, breaker_closings) VALUES ($1, 1)
         ON CONFLICT (consumer) DO UPDATE SET breaker_closings = c.breaker_closings + 1
         RETURNING consumer"
    );
    with_entry(&change, audit, "close_breaker")
}

/// The newest first, of the consumer `$1`, at most `$2`.
pub(crate) fn list_entries(audit: &str) -> String {
    format!(
        "SELECT at, action, actor, via, why FROM {audit} WHERE consumer = $1
             ORDER BY id DESC LIMIT $2"
    )
}

fn with_entry(change: &str, audit: &str, action: &str) -> String {
    format!(
        "WITH changed AS ({change})
         INSERT INTO {audit} (consumer, action, actor, via, why)
         SELECT consumer, '{action}', session_user || ' (' || $2::text || ')', $3, $4 FROM changed"
    )
}
