//! `tailpost outbox dlq`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use relay::dead_letters::{Aggregate, Filter};
use uuid::Uuid;

/// What there is about the outbox.
#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Find and mend events that could not be published
    ///
    /// Asks a running relay at admin.listen, with admin.token; with --direct, the database.
    #[command(subcommand)]
    Dlq(DlqCommand),
}

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// Show how many there are, why, and the newest
    List(ListArgs),
    /// Show one: why it is there, what was done to it, what became of it
    Show(ShowArgs),
    /// Publish events after all, under their own ids
    ///
    /// A relay publishes them within its scan_interval, or ten of them while it is catching up. One
    /// event, all of an aggregate in order, or all that match.
    Requeue(RequeueArgs),
    /// Take events off the list, for good: they are never published
    Discard(DiscardArgs),
}

/// How to reach them.
#[derive(Debug, Args)]
pub(crate) struct Access {
    /// Use the database, not a relay
    #[arg(long)]
    pub(crate) direct: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which are meant.
#[derive(Debug, Args, Clone)]
pub(crate) struct FilterArgs {
    /// Of this aggregate
    #[arg(long, value_name = "TYPE:ID")]
    pub(crate) aggregate: Option<Aggregate>,
    /// Of this event type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Whose reason contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Parked since then: an age such as 2h, or a time such as 2026-11-21T09:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(crate) since: Option<jiff::Timestamp>,
}

impl FilterArgs {
    pub(crate) fn filter(&self) -> Filter {
        Filter {
            aggregate: self.aggregate.clone(),
            event_type: self.event_type.clone(),
            reason: self.reason.clone(),
            since: self.since,
        }
    }

    pub(crate) fn is_only_an_aggregate(&self) -> bool {
        self.event_type.is_none() && self.reason.is_none() && self.since.is_none()
    }
}

fn since(text: &str) -> Result<jiff::Timestamp, String> {
    if let Ok(age) = crate::config::parse_duration(text) {
        return jiff::Timestamp::now().checked_sub(age).map_err(|error| error.to_string());
    }
    text.parse().map_err(|_| "expected an age such as 2h, or a time with its zone".into())
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Show at most so many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) access: Access,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The event's id
    pub(crate) id: Uuid,
    /// Show payload and headers as well
    #[arg(long)]
    pub(crate) payload: bool,
    #[command(flatten)]
    pub(crate) access: Access,
}

/// What many and one have in common.
#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// All that match, or all there are; the plan is shown first
    #[arg(long)]
    pub(crate) all_matching: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only show the plan
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// At most so many events a second
    #[arg(long, value_name = "EVENTS", requires = "all_matching",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Who does it, for the audit; you, unless told otherwise
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// What for, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<String>,
    #[command(flatten)]
    pub(crate) access: Access,
}

/// Arguments of `requeue`.
#[derive(Debug, Args)]
pub(crate) struct RequeueArgs {
    /// The event's id; or --aggregate, or --all-matching
    #[arg(required_unless_present_any = ["all_matching", "aggregate"],
          conflicts_with_all = ["all_matching", "aggregate", "event_type", "reason", "since"])]
    pub(crate) id: Option<Uuid>,
    /// Publish this JSON in place of its payload; the audit keeps the old one
    #[arg(long, value_name = "FILE", requires = "id")]
    pub(crate) payload_file: Option<PathBuf>,
    /// Wait until it is published, and say as what
    #[arg(long, value_name = "DURATION", value_parser = super::duration, requires = "id")]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Arguments of `discard`.
#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    /// The event's id; or --all-matching
    #[arg(required_unless_present = "all_matching",
          conflicts_with_all = ["all_matching", "aggregate", "event_type", "reason", "since"])]
    pub(crate) id: Option<Uuid>,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}
