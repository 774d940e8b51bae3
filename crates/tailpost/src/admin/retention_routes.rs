//! `/api/v1/retention`: when old rows were deleted, and the partitions that rows are in.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use operate::PartitionEntry;
use schemars::JsonSchema;
use serde::Serialize;

use super::api::json;
use super::openapi::{Api, Operation};
use crate::output::Versioned;

/// Reads that.
pub(super) type Retained = Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<Shown>> + Send + Sync>;

#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    /// When a pass came to its end last
    pub(super) last_success_at: Option<Timestamp>,
    /// Why the latest pass failed, if it did
    pub(super) failure: Option<String>,
    /// Of the outbox, or of the records of an inbox
    pub(super) partitions: Vec<PartitionEntry>,
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(retained: Retained) -> Api<S> {
    let get = Operation::get(
        "/api/v1/retention",
        "Says when old rows were deleted, and lists partitions",
    )
    .answers::<Versioned<Shown>>(200, "The last pass, and the partitions");
    Api::new().on(get, async move || json(&retained().await?))
}
