//! `tailpost doctor`: the checks of relay and inbox, and how they are told.

mod doctor_text;
mod nagios;
mod probe;

use std::collections::BTreeMap;
use std::time::Duration;

use inbox::{Connection, Inspected};
use outbox::checks::{Check, Scope, Severity, summary};
use serde::Serialize;
use tokio::time::timeout;

use self::probe::Probed;
use crate::cli::{DoctorArgs, Format};
use crate::config::Settings;
use crate::errors::DoctorError;
use crate::output;

/// How long connecting to a server may take for the consumers' sake.
const CONNECT_MAX: Duration = Duration::from_secs(6);

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
            let mut text = doctor_text::text(&report.checks, doctor_text::Marks::of_stdout());
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
        (0, _) => Err(DoctorError::Probe.into()),
        (failed, _) => Err(DoctorError::Found { failed }.into()),
    }
}

async fn report(args: &DoctorArgs, settings: &Settings) -> anyhow::Result<Report> {
    let (config, scope) = (settings.relay_config()?, args.scope());
    let (relay, inbox) = tokio::join!(
        Box::pin(relay::doctor(&config, &scope)),
        Box::pin(consumers(settings, &scope))
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

/// The checks of the consumers, if there are some.
pub(super) async fn consumers(settings: &Settings, scope: &Scope) -> anyhow::Result<Vec<Check>> {
    let configured = settings.consumers()?;
    if configured.is_empty() || scope.before_setup {
        return Ok(Vec::new());
    }
    let (postgres, nats) = (settings.postgres_target()?, settings.nats_target()?);
    let (postgres, nats) = tokio::join!(
        timeout(CONNECT_MAX, postgres.connect("tailpost doctor")),
        timeout(CONNECT_MAX, nats.connect("tailpost doctor")),
    );
    let postgres = match postgres {
        Ok(Ok((client, task))) => {
            let bounded = "SET statement_timeout = '5s'; SET lock_timeout = '1s'";
            match timeout(CONNECT_MAX, client.batch_execute(bounded)).await {
                Ok(Ok(())) => Ok(Connection::with_guard(client, task)),
                _ => Err("PostgreSQL cannot be asked".to_owned()),
            }
        }
        _ => Err("PostgreSQL cannot be asked".to_owned()),
    };
    let nats = nats.ok().and_then(Result::ok).ok_or_else(|| "NATS cannot be asked".to_owned());
    let table = settings.table()?;
    let inspected = Inspected { postgres, nats, table: &table };
    let retention = settings.inbox_retention();
    let builders = configured.into_iter().map(|consumer| {
        let builder = super::inbox::builder(consumer);
        match retention {
            Some(keep) => builder.retention(keep),
            None => builder,
        }
    });
    Ok(inbox::doctor(inspected, builders.collect(), scope).await)
}
