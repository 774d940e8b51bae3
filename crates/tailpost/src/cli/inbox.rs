//! `tailpost inbox …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use uuid::Uuid;

/// Arguments of `inbox`.
#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    #[command(subcommand)]
    pub(crate) command: InboxCommand,
}

/// What to do with the inbox.
#[derive(Debug, Subcommand)]
pub(crate) enum InboxCommand {
    /// Take events from the stream and hand each to an HTTP service, until stopped
    ///
    /// Runs every consumer of the configuration ([inbox.NAME]), or the one that is named. Several
    /// processes may run the same consumer: one is active, the others take over when it goes. Stops
    /// cleanly on SIGTERM and Ctrl-C, at once on the second.
    Run(InboxRunArgs),
    /// Create what consumers need: tables, and the durable consumers of the configuration
    ///
    /// For a database without an outbox; where there is one, `tailpost setup` does this too.
    Setup(InboxSetupArgs),
    /// Look at the events that no attempt could process, and decide about them
    Dlq {
        #[command(subcommand)]
        command: InboxDlqCommand,
    },
    /// Record that an event had its effect by other means, so that no attempt follows
    ///
    /// Whoever mends by hand what an event should have done must say so here: the event would have
    /// its effect a second time otherwise.
    MarkProcessed(MarkProcessedArgs),
}

/// Arguments of `inbox run`.
#[derive(Debug, Args)]
pub(crate) struct InboxRunArgs {
    /// Run this consumer only; it need not be in the configuration
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Where its events go: http://host/path
    #[arg(long, value_name = "URL", requires = "consumer")]
    pub(crate) handler: Option<String>,
}

/// Arguments of `inbox setup`.
#[derive(Debug, Args)]
pub(crate) struct InboxSetupArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to do with dead letters of the inbox.
#[derive(Debug, Subcommand)]
pub(crate) enum InboxDlqCommand {
    /// Show dead letters, the latest first
    List(InboxDlqListArgs),
    /// Show one dead letter; its payload only if asked for
    Show(InboxDlqShowArgs),
    /// Give events another set of attempts
    ///
    /// They take the same way as before, through claim and handler, in whichever process runs the
    /// consumer. Nothing is published: other consumers do not see them again.
    Requeue(InboxDlqRequeueArgs),
    /// Refuse events for good: they count as answered, with a reason
    Reject(InboxDlqSettleArgs),
    /// Drop dead letters without an answer
    Discard(InboxDlqSettleArgs),
    /// Write dead letters with their payloads as JSON, one a line
    Export(InboxDlqExportArgs),
}

/// Arguments of `inbox dlq list`.
#[derive(Debug, Args)]
pub(crate) struct InboxDlqListArgs {
    /// Only those of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which dead letter.
#[derive(Debug, Args)]
pub(crate) struct InboxDlqShowArgs {
    /// The event's id
    pub(crate) event_id: Uuid,
    /// The consumer, if several have parked the event
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Show the payload too
    #[arg(long)]
    pub(crate) payload: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which dead letters, and whether to do it.
#[derive(Debug, Args)]
pub(crate) struct InboxDlqTarget {
    /// The events' ids
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) event_ids: Vec<Uuid>,
    /// All dead letters (of the consumer, if one is named)
    #[arg(long, visible_alias = "all-matching")]
    pub(crate) all: bool,
    /// Only those of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Do it without asking back
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) yes: bool,
    /// Only show what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `inbox dlq requeue`.
#[derive(Debug, Args)]
pub(crate) struct InboxDlqRequeueArgs {
    #[command(flatten)]
    pub(crate) target: InboxDlqTarget,
    /// Why; kept with who and when
    #[arg(long, visible_alias = "why", value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// Arguments of `inbox dlq reject` and `discard`.
#[derive(Debug, Args)]
pub(crate) struct InboxDlqSettleArgs {
    #[command(flatten)]
    pub(crate) target: InboxDlqTarget,
    /// Why; kept with who and when
    #[arg(long, visible_alias = "why", value_name = "TEXT")]
    pub(crate) reason: String,
}

/// Arguments of `inbox dlq export`.
#[derive(Debug, Args)]
pub(crate) struct InboxDlqExportArgs {
    /// Only those of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Write here instead of to standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments of `inbox mark-processed`.
#[derive(Debug, Args)]
pub(crate) struct MarkProcessedArgs {
    /// The consumer whose effect was made by hand
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// The event's id
    #[arg(long, value_name = "UUID")]
    pub(crate) event_id: Uuid,
    /// Why; kept with who and when
    #[arg(long, visible_alias = "why", value_name = "TEXT")]
    pub(crate) reason: String,
    /// When the event happened, as its Occurred-At header says; only needed if neither the inbox
    /// nor an outbox beside it has the event
    #[arg(long, value_name = "TIME")]
    pub(crate) occurred_at: Option<jiff::Timestamp>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
