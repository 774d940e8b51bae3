//! What to do from the check to the new version, by the version that PostgreSQL has now.

use relay::{Config, Mode};
use serde::Serialize;

/// The first version whose slots `pg_upgrade` takes along.
const TAKES_SLOTS: u32 = 17;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpgradeStep {
    /// What, and why.
    pub what: String,
    /// The command, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

fn step(what: &str, run: Option<&str>) -> UpgradeStep {
    UpgradeStep { what: what.to_owned(), run: run.map(str::to_owned) }
}

/// What to do on a server of the major version `from`.
pub(super) fn steps(config: &Config, from: u32) -> Vec<UpgradeStep> {
    let polls = config.mode == Mode::Poll;
    let mut steps = vec![step("stop every relay, with SIGTERM", None)];
    if !polls {
        let why = if from < TAKES_SLOTS {
            "drop the slot: pg_upgrade leaves logical slots of versions before 17 behind"
        } else {
            "drop the slot: pg_upgrade refuses while anything is left in its log, and in the new \
             cluster, which has another system identifier, it would be made anew all the same"
        };
        steps.push(step(why, Some("tailpost slot drop")));
    }
    let log = if polls { "" } else { "set wal_level = logical in the new postgresql.conf, " };
    let upgrade = format!(
        "stop PostgreSQL, make the new cluster (initdb; with --no-data-checksums if the old one has \
         none), upgrade, {log}start it; OLD and NEW are the versions' folders"
    );
    steps.push(step(
        &upgrade,
        Some(
            "pg_upgrade --old-bindir OLD/bin --new-bindir NEW/bin --old-datadir OLD/data \
             --new-datadir NEW/data",
        ),
    ));
    steps.push(step(
        "collect statistics, which pg_upgrade to versions before 18 does not keep",
        Some("vacuumdb --all --analyze-in-stages"),
    ));
    let what = if polls { "check what is there" } else { "make the slot" };
    steps.push(step(what, Some("tailpost setup")));
    steps.push(step("publish what was committed meanwhile, and go on", Some("tailpost relay")));
    steps.push(step("compare the table with the stream", Some("tailpost verify")));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let postgres = "postgres://ada@localhost/shop".parse().expect("valid");
        Config::new(postgres, "nats://localhost".parse().expect("valid"))
    }

    fn commands(config: &Config, from: u32) -> Vec<String> {
        steps(config, from).into_iter().filter_map(|it| it.run).collect()
    }

    #[test]
    fn the_slot_goes_before_any_upgrade_and_is_made_after_it() {
        let config = config();
        for from in [14, 16, 17, 18] {
            let commands = commands(&config, from);
            assert_eq!(commands[0], "tailpost slot drop", "{from}");
            assert!(commands[1].starts_with("pg_upgrade "), "{from}");
            assert_eq!(commands[3..], ["tailpost setup", "tailpost relay", "tailpost verify"]);
        }
        assert_ne!(steps(&config, 16)[1], steps(&config, 17)[1], "the reasons differ");
    }

    #[test]
    fn without_a_slot_none_is_dropped() {
        let config = Config { mode: Mode::Poll, ..config() };
        assert!(!commands(&config, 16).contains(&"tailpost slot drop".to_owned()));
    }
}
