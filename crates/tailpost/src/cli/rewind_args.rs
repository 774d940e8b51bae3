//! `tailpost inbox rewind`.

use std::time::Duration;

use clap::Args;
use clap::error::ErrorKind;
use jiff::Timestamp;
use operate::consumers::RewindTarget;

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
    #[command(flatten)]
    pub(crate) who: WhoArgs,
    /// Do it, and do not only print the plan
    #[arg(long)]
    pub(crate) execute: bool,
    /// How long to wait for the worker to get on with it
    #[arg(long, value_name = "DURATION", value_parser = super::duration, default_value = "60s")]
    pub(crate) timeout: Duration,
    /// Withdraw the rewind that is requested and not begun
    #[arg(long, conflicts_with_all = ["since", "to_sequence", "again", "execute"])]
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

    pub(super) fn check(&self) -> Result<(), Misuse> {
        if self.again && self.execute && self.who.why.is_none() {
            let problem = "--again needs --why TEXT: effects repeat, and the audit says what for";
            return Err((ErrorKind::MissingRequiredArgument, problem.into()));
        }
        Ok(())
    }
}
