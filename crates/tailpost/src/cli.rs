//! The command line. The help texts are the reference for it.

mod console_args;
pub(crate) mod dlq_args;
mod doctor_args;
mod event_args;
mod inbox_args;
#[cfg(feature = "lab")]
mod lab_args;
pub(crate) mod manual_args;
mod replay_args;
mod rewind_args;
mod top_args;
mod verify_args;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};

use crate::config::{LogFormat, Sources};
use crate::removed::{Gone, instead};
use crate::telemetry::Verbosity;

pub(crate) use console_args::ConsoleArgs;
pub(crate) use doctor_args::{DoctorArgs, Format};
pub(crate) use event_args::{ExplainArgs, WaitArgs};
pub(crate) use inbox_args::*;
#[cfg(feature = "lab")]
pub(crate) use lab_args::{ChaosArgs, DemoArgs};
pub(crate) use replay_args::{ReplayArgs, ReplaysCommand, ReplaysDecideArgs, SourceArg};
pub(crate) use rewind_args::RewindArgs;
pub(crate) use top_args::TopArgs;
pub(crate) use verify_args::VerifyArgs;

/// Publishes the rows of a PostgreSQL outbox table to a NATS JetStream stream: once, in commit
/// order
///
/// Settings come from tailpost.toml in the working directory (or --config), then from the
/// environment, then from flags. docker/tailpost.toml in the source shows all of them.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused or conflict, 5 a server cannot be \
reached, 6 time-out, 78 bad configuration.";

/// Flags that every command takes.
#[derive(Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Read this configuration file instead of tailpost.toml
    #[arg(long, global = true, value_name = "FILE", env = "TAILPOST_CONFIG")]
    config: Option<PathBuf>,
    /// The database with the outbox: postgres://user@host/dbname [env: DATABASE_URL]
    ///
    /// Every user of the machine can read it in the list of processes: put a password into
    /// DATABASE_URL or tailpost.toml.
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// The NATS server, or several separated by commas: nats://host:4222 [env: NATS_URL]
    ///
    /// As with --database-url, put credentials elsewhere.
    #[arg(long, global = true, value_name = "URL")]
    nats_url: Option<String>,
    /// The format of log lines
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Log more; twice for still more. TAILPOST_LOG takes filters such as tailpost_relay=debug
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Log warnings and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
}

impl Cli {
    /// Reads the command line. Ends the process with code 2 if it cannot be understood.
    pub(crate) fn read() -> Self {
        let cli = Self::parse();
        if let Err((kind, problem)) = cli.check() {
            Self::command().error(kind, problem).exit();
        }
        cli
    }

    fn check(&self) -> Result<(), dlq_args::Misuse> {
        match &self.command {
            Command::Outbox(command) => match &**command {
                dlq_args::OutboxCommand::Dlq(command) => command.check(),
            },
            Command::Inbox(args) => match &args.command {
                InboxCommand::Dlq { command } => command.check(),
                InboxCommand::Rewind(args) => args.check(),
                _ => Ok(()),
            },
            Command::Doctor(args) => args.check(),
            #[cfg(feature = "lab")]
            Command::Chaos(args) => args.check(),
            _ => Ok(()),
        }
    }

    /// What the configuration is read from.
    pub(crate) fn sources(&self) -> Sources {
        let sources = self.global.sources();
        let Command::Inbox(args) = &self.command else { return sources };
        match &args.command {
            InboxCommand::Run(args) => Sources {
                consumer: args.consumer.clone(),
                handler: args.handler.clone(),
                ..sources
            },
            InboxCommand::Ping(args) => Sources {
                consumer: Some(args.consumer.clone()),
                handler: args.handler.clone(),
                ..sources
            },
            InboxCommand::Rewind(args) => {
                Sources { consumer: Some(args.consumer.clone()), ..sources }
            }
            _ => sources,
        }
    }
}

impl Global {
    fn sources(&self) -> Sources {
        Sources {
            file: self.config.clone(),
            // A variable that is not Unicode cannot be one of ours.
            environment: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            database_url: self.database_url.clone(),
            nats_url: self.nats_url.clone(),
            log_format: self.log_format,
            ..Sources::default()
        }
    }

    /// How much is logged.
    pub(crate) fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, 1) => Verbosity::Verbose,
            (false, _) => Verbosity::Everything,
        }
    }
}

// URLs hold passwords.
impl std::fmt::Debug for Global {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Global").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create what the relay needs: tables, publication, slot, stream
    ///
    /// Can be run again at any time. It changes nothing that exists: what does not fit is reported.
    /// Where relay.mark was changed it makes the index that the table lacks, while others write.
    Setup(SetupArgs),
    /// Publish events as they are committed, until stopped
    ///
    /// Several relays may run: one is active, the others take over when it ends. The relay
    /// reconnects to both servers. It stops cleanly on SIGTERM and Ctrl-C, at once on the second.
    Relay(RelayArgs),
    /// Show position, backlog, slot, stream, and dead letters
    Status(JsonArgs),
    /// Watch a relay and an inbox: do events move, how far behind are they, what is stuck
    ///
    /// Asks them over HTTP at admin.listen and admin.inbox_listen, or at --relay-url and --inbox-url,
    /// with admin.token, for which the role viewer is enough. A consumer's lag is what is pending and
    /// in memory.
    Top(TopArgs),
    /// Serve the console: relays, inboxes, dead letters, events and replays as pages
    ///
    /// Asks them over HTTP, and has no access to database or broker. Visitors sign in with a token of
    /// admin.tokens, or come through admin.trusted_proxy.
    Console(ConsoleArgs),
    /// Check the whole set-up, and show what mends what is wrong
    ///
    /// Reads both servers, the tables, the slot, the stream and the consumers, and changes nothing.
    /// Each check has an id, what was read, and the statement or command that mends it. Exit code 0:
    /// nothing failed (warnings do not count), 1: something did. docs/doctor.md lists the checks.
    Doctor(Box<DoctorArgs>),
    /// Wait until an event is published, or processed by a consumer
    ///
    /// Asks a running relay at admin.listen, or the inbox at admin.inbox_listen, with admin.token,
    /// or with --direct the database. Exits with 0 when it is published (or processed), 4 when it
    /// never will be by itself, 6 when it is not yet, and 3 when it is unknown.
    Wait(WaitArgs),
    /// Show what became of an event: row, attempts, message, and what each consumer did
    ///
    /// Asks the database and the broker. Works also for an event whose row is gone, as long as a
    /// dead letter, a decision or a consumer's record is left.
    Explain(ExplainArgs),
    /// Compare the table with the stream, event by event, while everything goes on
    ///
    /// Lists events that the stream lacks or has twice, that are out of order, that have no row, whose
    /// payload, headers or subject are not what the row maps to, and marks that are missing or wrong.
    /// Changes nothing without --repair --execute. Exit code 0: nothing was found, 1: something was.
    Verify(VerifyArgs),
    /// Publish events once more: since a time, from a position, of an aggregate, by id
    ///
    /// Says what would be done; --execute asks the relay for it, and follows. The relay publishes
    /// them beside what is new, in the order of their commits, each once whatever happens meanwhile.
    /// They have the ids of their events: consumers that deduplicate skip what they have done.
    Replay(Box<ReplayArgs>),
    /// Show, pause, resume and cancel replays
    #[command(subcommand)]
    Replays(ReplaysCommand),
    /// Delete old rows of published events, and what else is kept for long enough
    ///
    /// A relay and an inbox do this by themselves every retention.interval. Deletes what the section
    /// retention and inbox.retention do not keep, in small batches beside everything else; never a
    /// row that is not published, nor a dead letter that nobody has decided about. Exits with 4 if
    /// another process is at it.
    Maintain(MaintainArgs),
    /// Consume events and manage dead letters
    Inbox(Box<InboxArgs>),
    /// Manage events that could not be published
    #[command(subcommand)]
    Outbox(Box<dlq_args::OutboxCommand>),
    /// List replication slots; create or drop the relay's
    #[command(subcommand)]
    Slot(SlotCommand),
    /// Print a completion script for a shell
    ///
    /// bash: `tailpost completions bash > /etc/bash_completion.d/tailpost`. Reads no configuration.
    Completions(manual_args::CompletionsArgs),
    /// Write a man page for every command to a directory
    ///
    /// Reads no configuration.
    Man(manual_args::ManArgs),
    /// Run everything on throw-away servers: a producer, a relay, a consumer, an inbox
    ///
    /// Starts PostgreSQL and NATS from the binaries on this machine, in temporary folders, and
    /// removes them at the end. Reads no configuration. Ctrl-C ends it early. Fails if an event was
    /// lost, doubled, or out of order, or did not have exactly one effect.
    #[cfg(feature = "lab")]
    Demo(DemoArgs),
    /// Inject faults under load, and check that every event arrived once and in order
    ///
    /// Starts throw-away servers as `demo` does, and relays and inboxes as processes that it kills
    /// and pauses. `all` runs every scenario, `soak` mixes faults at random. Fails if an event was
    /// lost, doubled, out of order, or never committed, or, where there is an inbox, did not have
    /// exactly one effect. It then keeps the logs and prints where they are.
    #[cfg(feature = "lab")]
    Chaos(ChaosArgs),
}

impl Command {
    /// Whether it runs until it is stopped.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self, Self::Relay(_) | Self::Inbox(_) | Self::Console(_)) && !self.only_shows()
    }

    /// Whether it shows or decides something, so that connecting to a server is no news.
    pub(crate) fn only_shows(&self) -> bool {
        use Command as C;
        match self {
            C::Inbox(args) => !matches!(args.command, InboxCommand::Run(_)),
            C::Status(_) | C::Top(_) | C::Doctor(_) | C::Wait(_) | C::Explain(_) => true,
            C::Verify(_) | C::Replay(_) | C::Replays(_) | C::Outbox(_) => true,
            _ => false,
        }
    }
}

/// Arguments of `setup`.
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// Print the SQL and the stream's configuration, and change nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Give the outbox partitions by day, which retention drops as a whole
    ///
    /// A table that exists becomes the first partition while producers write and relays run.
    /// docs/retention.md says what that costs, and what it changes for producers. Run again, it
    /// goes on where it was interrupted.
    #[arg(long)]
    pub(crate) partitioned: bool,
    #[arg(long = "layout", value_name = "VALUE", hide = true,
          value_parser = instead("leave it out; the table is made for relay.mark"))]
    _layout: Option<Gone>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `relay`.
#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Publish and mark what is committed, then exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Start only if the slot brings exactly what committed at this position of the log or later
    ///
    /// A slot that was confirmed further would begin there, and one that was not would bring what is
    /// before: PostgreSQL says neither. Refused also where events would be skipped.
    #[arg(long, value_name = "LSN", value_parser = verify_args::lsn)]
    pub(crate) start_lsn: Option<relay::Lsn>,
    /// Run only this one of relay.shards, counted from 0
    #[arg(long, value_name = "NUMBER")]
    pub(crate) shard: Option<u32>,
}

/// Arguments of commands that only show something.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `maintain`.
#[derive(Debug, Args)]
pub(crate) struct MaintainArgs {
    /// Count what would be deleted, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to do with slots.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotCommand {
    /// Show every slot of the server, and how much log it keeps
    List(JsonArgs),
    /// Create the relay's slot if there is no usable one; rows that it misses come from the table
    Create,
    /// Drop the relay's slot, so that the server need not keep the log; no event is lost
    ///
    /// Refused while a relay reads the slot. The next relay creates it anew, and publishes from the
    /// table what was written in between: do not delete unpublished rows. Refused also while the slot
    /// has events of `outbox_emit_wal`, which are in no table.
    Drop(SlotDropArgs),
    /// Check, and wait, that PostgreSQL can be upgraded to another major version; say what to do
    ///
    /// Waits until what is committed by now is published, marked and confirmed, and looks for what an
    /// upgrade would interrupt. Changes nothing; producers and relays may go on. Exit code 0: ready,
    /// 4: something is open, 6: it still was when the time was over.
    PrepareUpgrade(PrepareUpgradeArgs),
}

/// Arguments of `slot prepare-upgrade`.
#[derive(Debug, Args)]
pub(crate) struct PrepareUpgradeArgs {
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `slot drop`.
#[derive(Debug, Args)]
pub(crate) struct SlotDropArgs {
    /// Lose events of `outbox_emit_wal` that are not published
    #[arg(long)]
    pub(crate) force: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    crate::config::parse_duration(text).map_err(|wanted| format!("expected {wanted}"))
}

#[cfg(test)]
mod tests;
