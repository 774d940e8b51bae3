//! `tailpost inbox rewind`.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use inbox::RewindOnly;
use jiff::Timestamp;
use operate::consumers::RewindTarget;
use operate::dead_letters::Aggregate;

use super::dlq_args::{Misuse, WhoArgs, since};

/// Arguments of `inbox rewind`.
#[derive(Debug, Args)]
pub(crate) struct RewindArgs {
    /// The consumer that goes back
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// To what was stored since then: an age such as 2h, or a time such as 2026-11-21T09:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since,
          required_unless_present_any = ["to_sequence", "cancel"])]
    pub(crate) since: Option<Timestamp>,
    /// To this sequence of the stream
    #[arg(long, value_name = "N", conflicts_with = "since",
          value_parser = clap::value_parser!(u64).range(1..=i64::MAX.unsigned_abs()))]
    pub(crate) to_sequence: Option<u64>,
    /// Handle events again that were processed: their effects repeat
    #[arg(long)]
    pub(crate) again: bool,
    /// With --again: of those, only events of this aggregate
    #[arg(long, value_name = "TYPE:ID")]
    pub(crate) aggregate: Option<Aggregate>,
    /// With --again: of those, only events of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) event_type: Option<String>,
    #[command(flatten)]
    pub(crate) who: WhoArgs,
    /// Do it, and do not only print the plan
    #[arg(long)]
    pub(crate) execute: bool,
    /// How long to wait for the worker to get on with it
    #[arg(long, value_name = "DURATION", value_parser = super::duration, default_value = "60s")]
    pub(crate) timeout: Duration,
    /// Withdraw the rewind that is requested and not begun
    #[arg(long, conflicts_with_all = ["since", "to_sequence", "again", "aggregate", "event_type",
          "execute"])]
    pub(crate) cancel: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl RewindArgs {
    /// Where to; nowhere if it is to be cancelled.
    pub(crate) fn target(&self) -> Option<RewindTarget> {
        let sequence = self.to_sequence.map(RewindTarget::Sequence);
        sequence.or_else(|| self.since.map(RewindTarget::Since))
    }

    /// Which events are handled again.
    pub(crate) fn only(&self) -> RewindOnly {
        let aggregate = self.aggregate.clone().map(|it| (it.kind, it.id));
        let (aggregate_type, aggregate_id) = aggregate.unzip();
        RewindOnly { aggregate_type, aggregate_id, event_type: self.event_type.clone() }
    }

    pub(super) fn check(&self) -> Result<(), Misuse> {
        if !self.again && !self.only().is_all() {
            let problem = "--aggregate and --type need --again: without it nothing that was \
                           processed is handled again, whatever it is of";
            return Err((ErrorKind::MissingRequiredArgument, problem.into()));
        }
        if self.again && self.execute && self.who.why.is_none() {
            let problem = "--again needs --why TEXT: effects repeat, and the audit says what for";
            return Err((ErrorKind::MissingRequiredArgument, problem.into()));
        }
        Ok(())
    }
}
