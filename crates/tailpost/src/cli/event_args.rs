//! `tailpost wait` and `tailpost explain`.

use std::time::Duration;

use clap::Args;
use uuid::Uuid;

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The event to wait for
    #[arg(value_name = "EVENT_ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) id: Option<Uuid>,
    /// Wait for everything that is committed by now
    #[arg(long)]
    pub(crate) all: bool,
    /// Wait until this consumer has processed it, not only until it is published
    #[arg(long, value_name = "CONSUMER")]
    pub(crate) processed_by: Option<String>,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = super::duration)]
    pub(crate) timeout: Duration,
    /// Use the database instead of a relay or an inbox. With --all it always is
    #[arg(long)]
    pub(crate) direct: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The event to explain
    #[arg(value_name = "EVENT_ID")]
    pub(crate) id: Uuid,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
