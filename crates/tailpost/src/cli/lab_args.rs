//! `demo` and `chaos`, which start servers of their own.

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use lab::chaos::SOAK;

use super::dlq_args::Misuse;
use super::duration;
use crate::removed::{Gone, instead};

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How long the producer writes
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub(crate) duration: Duration,
    /// Events a second
    #[arg(long, value_name = "EVENTS", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,
    #[arg(long = "keep", hide = true, num_args = 0..=1, default_missing_value = "",
          value_parser = instead("leave it out; docker/compose.yaml has servers that stay"))]
    _keep: Option<Gone>,
    /// Print only the final figures, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `chaos`.
#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// A name from --list, `all`, or `soak`
    #[arg(required_unless_present = "list", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(lab::chaos::names()))]
    pub(crate) scenario: Option<String>,
    /// Show the scenarios, and what each proves
    #[arg(long, exclusive = true)]
    pub(crate) list: bool,
    /// How long the soak runs [default: 1m]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Repeat a run: fixes the load and the faults of `soak`, though not how they interleave
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Let `soak` draw its faults from these generators only
    #[arg(long, value_name = "NAMES", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(lab::chaos::generators()))]
    pub(crate) only: Vec<String>,
    /// Print the ledger as one JSON object, for each scenario
    #[arg(long)]
    pub(crate) json: bool,
}

impl ChaosArgs {
    pub(super) fn check(&self) -> Result<(), Misuse> {
        if self.scenario.as_deref().is_none_or(|name| name == SOAK) {
            return Ok(());
        }
        let misuse = |text: &str| Err((ErrorKind::ArgumentConflict, text.to_owned()));
        if self.duration.is_some() {
            return misuse("--for is for `soak`: a scenario ends when its fault is over");
        }
        if !self.only.is_empty() {
            return misuse("--only is for `soak`: a scenario has its own fault");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};

    #[test]
    fn the_demo_has_defaults_and_takes_durations() {
        let demo = |args: &[&str]| {
            let all = ["tailpost", "demo"].iter().chain(args);
            match Cli::try_parse_from(all)?.command {
                Command::Demo(demo) => Ok((demo.duration.as_secs(), demo.rate)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(demo(&[]).map_err(|error: clap::Error| error.to_string()), Ok((20, 500)));
        assert_eq!(demo(&["--for", "2m", "--rate", "9"]).expect("valid"), (120, 9));
        assert!(demo(&["--for", "20"]).is_err());
        assert!(demo(&["--rate", "0"]).is_err());
    }
}
