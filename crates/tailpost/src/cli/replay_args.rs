//! `tailpost replay` and `tailpost replays`.

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use operate::dead_letters::Aggregate;
use operate::replays::{ReplaySelection, ReplaySource};
use relay::{Glob, Lsn};
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::dlq_args::{WhoArgs, since};
use crate::removed::{Gone, instead};

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Where the events are read
    #[arg(long, value_enum, default_value_t = SourceArg::Auto)]
    pub(crate) source: SourceArg,
    /// Publish them under their subjects with this and a dot in front, such as replay.july
    #[arg(long, value_name = "PREFIX")]
    pub(crate) to_subject_prefix: Option<String>,
    #[arg(long = "to-stream", value_name = "VALUE", hide = true,
          value_parser = instead("let a stream of its own source or mirror this one, with a subject \
                                  transform; --to-subject-prefix stays"))]
    _to_stream: Option<Gone>,
    /// At most this many events a second
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
    /// Do it, in the relay; without this, only say what would be done
    #[arg(long, requires = "why")]
    pub(crate) execute: bool,
    /// With --execute: do not wait for the end
    #[arg(long, requires = "execute")]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) who: WhoArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which events.
#[derive(Debug, Args)]
#[group(id = "which", required = true, multiple = true)]
pub(crate) struct WhichArgs {
    /// Those that committed at this position of PostgreSQL's log, such as 16/B374D848, or later
    #[arg(long, value_name = "LSN", value_parser = super::verify_args::lsn)]
    from_lsn: Option<Lsn>,
    /// Those that committed at this position or earlier
    #[arg(long, value_name = "LSN", value_parser = super::verify_args::lsn)]
    to_lsn: Option<Lsn>,
    /// Those published since then: an age such as 2h, or a time such as 2026-11-21T09:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Timestamp>,
    /// Those published before then: an age, or a time
    #[arg(long, value_name = "TIME", value_parser = since)]
    until: Option<Timestamp>,
    /// This one; may be given several times
    #[arg(long = "event-id", value_name = "ID")]
    events: Vec<Uuid>,
    /// Those of this aggregate
    #[arg(long, value_name = "TYPE:ID")]
    aggregate: Option<Aggregate>,
    /// Those of this type; * stands for any characters
    #[arg(long, value_name = "PATTERN")]
    event_type: Option<Glob>,
    /// Everything that was ever published
    #[arg(long, conflicts_with_all = ["from_lsn", "to_lsn", "since", "until", "events", "aggregate",
          "event_type"])]
    all: bool,
}

impl WhichArgs {
    pub(crate) fn selection(&self) -> ReplaySelection {
        ReplaySelection {
            from_lsn: self.from_lsn,
            to_lsn: self.to_lsn,
            since: self.since,
            until: self.until,
            events: self.events.clone(),
            aggregate: self.aggregate.clone().map(|it| (it.kind, it.id)),
            event_type: self.event_type.clone(),
        }
    }
}

/// Where events are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SourceArg {
    /// The stream if it surely has all of them, otherwise the table; where rows are deleted, the log
    /// if it has all
    Auto,
    /// The messages that the stream still has, as they are
    Stream,
    /// The rows, as they are now
    Table,
    /// PostgreSQL's log, as far as rewind.retain keeps it; also rows that are gone
    Wal,
}

impl SourceArg {
    pub(crate) fn source(self) -> Option<ReplaySource> {
        match self {
            Self::Auto => None,
            Self::Stream => Some(ReplaySource::Stream),
            Self::Table => Some(ReplaySource::Table),
            Self::Wal => Some(ReplaySource::Wal),
        }
    }
}

/// What to do with replays.
#[derive(Debug, Subcommand)]
pub(crate) enum ReplaysCommand {
    /// Show the newest replays
    List(ReplaysListArgs),
    /// Show one replay, and what it could not publish; with --follow until it ends
    Show(ReplaysShowArgs),
    /// Publish nothing more of a replay for now
    Pause(ReplaysDecideArgs),
    /// Go on with a replay where it was paused
    Resume(ReplaysDecideArgs),
    /// End a replay: what is published stays in the stream
    Cancel(ReplaysDecideArgs),
}

/// Arguments of `replays list`.
#[derive(Debug, Args)]
pub(crate) struct ReplaysListArgs {
    /// Show at most this many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `replays show`.
#[derive(Debug, Args)]
pub(crate) struct ReplaysShowArgs {
    /// The replay
    pub(crate) id: Uuid,
    /// Wait until it ends
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `replays pause`, `resume` and `cancel`.
#[derive(Debug, Args)]
pub(crate) struct ReplaysDecideArgs {
    /// The replay
    pub(crate) id: Uuid,
    #[command(flatten)]
    pub(crate) who: WhoArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
