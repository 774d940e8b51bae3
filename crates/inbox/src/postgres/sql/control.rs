//! What operators want of a consumer.

/// As [`find_controls`], of the consumer `$1`, with the events about which somebody decided a moment
/// ago. Each is found several times: an attempt may have ended just then.
pub(crate) fn find_control(schema: &str) -> String {
    format!(
        "SELECT paused_at, paused_by, reason, coalesce(breaker_closings, 0) AS breaker_closings,
             ARRAY(SELECT d.message_id FROM {schema}.inbox_decisions AS d
                 WHERE d.decided_at > clock_timestamp() - interval '5 s'
                     AND d.consumer = it.consumer AND d.decision IN ('mark_processed', 'try_now')) AS at_once
         FROM (SELECT $1::text AS consumer) AS it
         LEFT JOIN {schema}.inbox_controls USING (consumer)"
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
