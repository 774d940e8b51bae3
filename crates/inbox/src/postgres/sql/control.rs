//! What operators want of a consumer.

/// As [`find_controls`], of the consumer `$1`.
pub(crate) fn find_control(schema: &str) -> String {
    format!("{} WHERE consumer = $1", find_controls(schema))
}

/// The events about which somebody decided since `$2`, or a moment ago, and the time. Each is found
/// several times: its decision may have been under way, and an attempt may have ended just then.
pub(crate) fn find_decided(schema: &str) -> String {
    format!(
        "SELECT ARRAY(SELECT message_id FROM {schema}.inbox_decisions
             WHERE decided_at > least($2::timestamptz, statement_timestamp()) - interval '5 s'
                 AND consumer = $1 AND decision IN ('mark_processed', 'try_now')),
             statement_timestamp()"
    )
}

/// Of all consumers.
#[must_use]
pub fn find_controls(schema: &str) -> String {
    format!(
        "SELECT consumer, paused_at, paused_by, reason, breaker_closings
         FROM {schema}.inbox_controls"
    )
}
