//! What was measured, as text and as JSON.

use std::fmt;

use serde::Serialize;

use crate::figures::Drained;
use crate::load::Shape;
use crate::measured::{Conditions, Latency, Round};

/// The short run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    conditions: Conditions,
    shape: Shape,
    #[serde(flatten)]
    drained: Drained,
    latency_ms: Latency,
}

impl Report {
    /// Of at least one round.
    pub(crate) fn new(
        conditions: Conditions,
        shape: Shape,
        rounds: &[Round],
        latency_ms: Latency,
    ) -> Self {
        Self { conditions, shape, drained: Drained::new(rounds), latency_ms }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { rows, payload_bytes, aggregates, rows_per_transaction, .. } = &self.shape;
        write!(f, "{}", self.conditions)?;
        writeln!(
            f,
            "{rows} waiting rows, {payload_bytes}-byte payload, {aggregates} aggregates, \
             {rows_per_transaction} rows a transaction\n"
        )?;
        write!(f, "{}\n{}", self.drained, self.latency_ms)
    }
}
