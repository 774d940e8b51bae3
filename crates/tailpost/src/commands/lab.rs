//! `demo` and `chaos`: what the lab does, told by the rules of this program.

mod demo_console;

use anyhow::Result;
use lab::{chaos, demo};

use crate::cli::{ChaosArgs, DemoArgs};
use crate::config::Settings;
use crate::{errors, output, shutdown};

pub(super) async fn demo(args: DemoArgs) -> Result<()> {
    let DemoArgs { duration, rate, json, .. } = args;
    let console = demo_console::serve;
    let options = demo::Options { duration, rate, quiet: json, relay_config, console };
    let summary = Box::pin(demo::run(&options, &shutdown::on_signal()?)).await?;
    output::text(&summary.json()?)?;
    summary.verdict()
}

/// Nothing that is configured for other servers is looked at.
fn relay_config(database_url: String, nats_url: String) -> Result<relay::Config> {
    Ok(settings(database_url, nats_url).relay_config()?)
}

fn settings(database_url: String, nats_url: String) -> Settings {
    let mut settings = Settings::default();
    settings.postgres.url = Some(database_url);
    settings.nats.url = nats_url;
    settings.metrics.environment = "demo".into();
    settings
}

pub(super) async fn chaos(args: ChaosArgs) -> Result<()> {
    let ChaosArgs { scenario, duration, seed, only, json, list: _ } = args;
    let Some(scenario) = scenario else { return output::text(&chaos::list()) };
    let (print, report) = (output::text, errors::report);
    let options = chaos::Options { scenario, duration, seed, only, json, print, report };
    chaos::run(&options, &shutdown::on_signal()?).await
}
