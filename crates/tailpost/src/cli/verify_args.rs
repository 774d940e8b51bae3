//! What is compared.

use clap::Args;
use jiff::Timestamp;
use operate::VerifyOptions;
use relay::Lsn;

use super::dlq_args::since;

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Only what was stored since then: an age such as 2h, or a time such as 2026-11-21T09:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(crate) since: Option<Timestamp>,
    /// Only what was stored from this position of PostgreSQL's log on, such as 16/B374D848
    #[arg(long, value_name = "LSN", value_parser = lsn)]
    pub(crate) from_lsn: Option<Lsn>,
    /// Compare one event of N, chosen by its id
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sample: u32,
    /// Say what of the findings can be repaired: gaps are published, missing marks written
    #[arg(long)]
    pub(crate) repair: bool,
    /// Repair it, and do not only say so
    #[arg(long, requires = "repair")]
    pub(crate) execute: bool,
    /// Print one JSON object, with every finding
    #[arg(long)]
    pub(crate) json: bool,
}

impl VerifyArgs {
    pub(crate) fn options(&self) -> VerifyOptions {
        let Self { since, from_lsn, sample, .. } = *self;
        VerifyOptions { since, from_lsn, sample }
    }
}

pub(super) fn lsn(text: &str) -> Result<Lsn, String> {
    text.parse().map_err(|_| "expected a position such as 16/B374D848".into())
}
