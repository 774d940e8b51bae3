//! `/api/v1/config`: the effective settings, without secrets.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::api::json;
use super::openapi::{Api, Operation};
use crate::config::{Role, Setting, Settings};
use crate::output::Versioned;

/// As they were when the process started.
pub(crate) type Shown = Arc<[Setting]>;

#[derive(Serialize, JsonSchema)]
struct Configuration<'a> {
    version: &'static str,
    settings: &'a [Setting],
}

/// What of the settings can be seen.
pub(crate) fn shown(settings: &Settings) -> Shown {
    settings.shown().into()
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(shown: Shown) -> Api<S> {
    let get = Operation::get("/api/v1/config", "Shows the effective settings, without secrets")
        .needs(Role::Admin)
        .answers::<Versioned<Configuration>>(200, "Every setting, and where it came from");
    let version = env!("CARGO_PKG_VERSION");
    Api::new().on(get, async move || json(&Configuration { version, settings: &shown }))
}
