//! `/api/v1/slots`: what keeps PostgreSQL's log.

use std::sync::Arc;

use operate::{SlotEntry, slots};
use relay::Config;
use schemars::JsonSchema;
use serde::Serialize;

use super::api::json;
use super::openapi::{Api, Operation};
use crate::output::Versioned;

#[derive(Serialize, JsonSchema)]
pub(crate) struct Slots {
    pub(crate) slots: Vec<SlotEntry>,
}

/// `config` has a pool.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(config: Arc<Config>) -> Api<S> {
    let list = Operation::get("/api/v1/slots", "Lists the replication slots of the cluster")
        .answers::<Versioned<Slots>>(200, "All of them, by name");
    Api::new().on(list, async move || json(&Slots { slots: slots(&config).await? }))
}
