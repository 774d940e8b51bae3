//! `/api/v1/slots`: what keeps PostgreSQL's log.

use std::sync::Arc;

use operate::{Slots, slots};
use relay::Config;

use super::api::json;
use super::openapi::{Api, Operation};
use crate::output::Versioned;

/// `config` has a pool.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(config: Arc<Config>) -> Api<S> {
    let list = Operation::get("/api/v1/slots", "Lists the replication slots of the cluster")
        .answers::<Versioned<Slots>>(200, "All of them, and the oldest transaction");
    Api::new().on(list, async move || json(&slots(&config).await?))
}
