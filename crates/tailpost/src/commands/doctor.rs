//! `tailpost doctor`: the checks of relay and inbox, and how they are told.

pub(super) mod consumer_checks;
mod doctor_text;
mod nagios;
mod probe;

use std::collections::BTreeMap;

use anyhow::bail;
use operate::checks::{Check, Severity, summary};
use serde::Serialize;

use self::probe::Probed;
use crate::cli::{DoctorArgs, Format};
use crate::config::Settings;
use crate::output;

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    /// How many checks came out how.
    summary: BTreeMap<&'static str, usize>,
    checks: Vec<Check>,
    /// The legs of each canary event, if there were some.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Vec<Probed>>,
    /// Why there were none, although they were asked for.
    #[serde(skip)]
    not_probed: Option<anyhow::Error>,
}

pub(super) async fn run(args: &DoctorArgs, settings: &Settings) -> anyhow::Result<()> {
    let made = Box::pin(report(args, settings)).await;
    match (args.format(), made) {
        (Format::Nagios, made) => nagios::tell(made),
        (_, Err(error)) => Err(error),
        (Format::Json, Ok(report)) => {
            output::json(&report)?;
            ended(report)
        }
        (Format::Text, Ok(report)) => {
            let mut text = doctor_text::text(&report.checks, doctor_text::has_signs());
            if let Some(probed) = &report.probe {
                text += &probe::text(probed);
            }
            output::text(&text)?;
            ended(report)
        }
    }
}

/// An error if a check failed. Warnings do not fail.
fn ended(report: Report) -> anyhow::Result<()> {
    if let Some(error) = report.not_probed {
        return Err(error);
    }
    let failed = report.checks.iter().filter(|it| it.severity == Severity::Error).count();
    let lost = report.probe.iter().flatten().filter(|it| it.failure.is_some()).count();
    match (failed, lost) {
        (0, 0) => Ok(()),
        (0, _) => bail!("the canary event did not get to the end"),
        (failed, _) => bail!("{failed} of the checks failed"),
    }
}

async fn report(args: &DoctorArgs, settings: &Settings) -> anyhow::Result<Report> {
    let (config, scope) = (settings.relay_config()?, args.scope());
    let (relay, inbox) = tokio::join!(
        Box::pin(operate::doctor(&config, &scope)),
        Box::pin(consumer_checks::consumer_checks(settings, &scope))
    );
    let mut checks = relay;
    checks.extend(inbox?);
    let (mut probe, mut not_probed) = (None, None);
    if args.probe {
        match probe::run(args, settings, &config).await {
            Ok(probed) => probe = Some(probed),
            Err(error) => not_probed = Some(error),
        }
    }
    Ok(Report { summary: summary(&checks), checks, probe, not_probed })
}
