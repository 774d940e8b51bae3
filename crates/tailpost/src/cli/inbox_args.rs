//! `tailpost inbox …`.

use clap::{Args, Subcommand};
use operate::dead_letters::Reason;
use uuid::Uuid;

use super::JsonArgs;
use super::dlq_args::InboxDlqCommand;
use super::rewind_args::RewindArgs;

/// Arguments of `inbox`.
#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    #[command(subcommand)]
    pub(crate) command: InboxCommand,
}

/// What to do with the inbox.
#[derive(Debug, Subcommand)]
pub(crate) enum InboxCommand {
    /// Consume events and send each to an HTTP service, until stopped
    ///
    /// Runs every consumer of the configuration ([inbox.NAME]), or the one that is named. Several
    /// processes may run the same consumer: one is active, the others take over when it ends. It
    /// stops cleanly on SIGTERM and Ctrl-C, at once on the second.
    Run(InboxRunArgs),
    /// Create what consumers need: tables, and the durable consumers of the configuration
    ///
    /// For a database without an outbox. Where there is one, `tailpost setup` does this too.
    Setup(JsonArgs),
    /// Manage events that could not be handled
    Dlq {
        #[command(subcommand)]
        command: InboxDlqCommand,
    },
    /// Send one consumer back in its stream; without --execute, print what that would do
    ///
    /// Other consumers see nothing of it. Events that were processed are skipped, unless --again is
    /// given. The worker that has the consumer carries it out: see
    /// docs/replay.md#sending-one-consumer-back.
    Rewind(RewindArgs),
    /// Send the service of a consumer a signed event of the type tailpost.ping, and print its answer
    ///
    /// The event is in no stream and has no record. Ends with 0 if the answer means that an event is
    /// handled.
    Ping(PingArgs),
    /// Record that an event had its effect by other means, so that no attempt follows
    ///
    /// Run this after making an effect by hand: otherwise the event has its effect a second time.
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

/// Arguments of `inbox ping`.
#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// The consumer whose service is called; it need not be in the configuration
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// Where its events go: http://host/path
    #[arg(long, value_name = "URL")]
    pub(crate) handler: Option<String>,
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
    /// The reason, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Reason,
    /// Who decides, for the audit [default: the user who runs this]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// When the event happened, as its Occurred-At header says; only needed if neither the inbox
    /// nor an outbox beside it has the event
    #[arg(long, value_name = "TIME")]
    pub(crate) occurred_at: Option<jiff::Timestamp>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
