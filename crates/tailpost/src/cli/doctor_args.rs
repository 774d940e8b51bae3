use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use operate::checks::Scope;

use super::dlq_args::Misuse;
use crate::check_names;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Check only what has to hold before `tailpost setup`
    #[arg(long, conflicts_with = "probe")]
    pub(crate) pre: bool,
    /// Check only these: ids or categories, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Leave these out: ids or categories, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
    /// Send a canary event through the whole chain, and wait for it
    ///
    /// Commits an event of the aggregate type `tailpost.probe` to the outbox, one for each shard, and
    /// waits until the stream has it, its row is marked, and every configured consumer that gets it
    /// has processed it. Refused if a consumer of the stream would get it, unless --yes. Row and
    /// message stay, as those of any event, until retention removes them.
    #[arg(long)]
    pub(crate) probe: bool,
    /// How long to wait for the canary event
    #[arg(
        long, value_name = "DURATION", default_value = "30s", requires = "probe",
        value_parser = super::duration
    )]
    pub(crate) timeout: Duration,
    /// Send the canary event also if consumers get it
    #[arg(long, requires = "probe")]
    pub(crate) yes: bool,
    /// How to print it
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t, conflicts_with = "json")]
    output: Format,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How the checks are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON object
    Json,
    /// One line for Nagios, Icinga and others, and their exit codes: 0, 1 for warnings, 2, 3
    Nagios,
}

impl DoctorArgs {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// Which checks are meant.
    pub(crate) fn scope(&self) -> Scope {
        Scope { before_setup: self.pre, only: self.only.clone(), skip: self.skip.clone() }
    }

    pub(super) fn check(&self) -> Result<(), Misuse> {
        let known = check_names::known(self.only.iter().chain(&self.skip));
        known.map_err(|unknown| (ErrorKind::ValueValidation, unknown))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_check_has_an_id_of_its_own_and_stands_in_its_section_of_the_docs() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");
        let page = std::fs::read_to_string(page).expect("the page of the checks");
        let mut seen = BTreeSet::new();
        for (id, category) in operate::doctor_checks().into_iter() {
            assert!(seen.insert(id), "{id} stands twice");
            let (_, below) = page.split_once(&format!("\n## {}\n", category.name())).expect(id);
            let section = below.split("\n## ").next().unwrap_or_default();
            assert!(section.contains(&format!("`{id}`")), "docs/doctor.md: {id} is missing");
        }
    }
}
