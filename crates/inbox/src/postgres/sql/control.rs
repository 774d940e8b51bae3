//! What operators want of a consumer.

/// As [`find_controls`], of the consumer `$1`.
pub(crate) fn find_control(schema: &str) -> String {
    format!("{} WHERE consumer = $1", find_controls(schema))
}

/// Of all consumers.
#[must_use]
pub fn find_controls(schema: &str) -> String {
    format!(
        "SELECT consumer, paused_at, paused_by, reason, breaker_closings
         FROM {schema}.inbox_controls"
    )
}
