//! What operators want of a consumer: a row, which the worker of the consumer reads every second. It
//! holds across restarts, and for whichever worker has the consumer.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;

/// What is wanted of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Control {
    /// It is to begin no events.
    pub pause: Option<OperatorPause>,
    /// How often somebody closed its breaker.
    pub breaker_closings: i64,
}

/// That somebody paused a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OperatorPause {
    /// Since when.
    pub at: Timestamp,
    /// Who it was.
    pub by: String,
    /// Why.
    pub why: Option<String>,
}

impl Control {
    /// What a row of `inbox_controls` says.
    #[must_use]
    pub fn of(row: &Row) -> Self {
        let at: Option<Timestamp> = row.get("paused_at");
        let pause = at.map(|at| OperatorPause {
            at,
            by: row.get::<_, Option<String>>("paused_by").unwrap_or_default(),
            why: row.get("reason"),
        });
        Self { pause, breaker_closings: row.get("breaker_closings") }
    }
}
