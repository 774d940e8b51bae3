//! What consumers need: tables, and durable consumers.

use std::time::Duration;

use anyhow::Context;
use inbox::Error;
use operate::{SetupReport, SetupStep};

use super::builder::builder;
use crate::cli::JsonArgs;
use crate::commands::setup_report::print;
use crate::config::Settings;

/// How long the tables may take: other set-ups and locks of others are waited for.
const TABLES_DEADLINE: Duration = Duration::from_mins(10);

pub(super) async fn run(args: &JsonArgs, settings: &Settings) -> anyhow::Result<()> {
    let report = SetupReport { steps: steps(settings).await?, warnings: Vec::new() };
    print(&report, args.json)
}

/// Makes what is missing, and says what that was.
pub(in crate::commands) async fn steps(settings: &Settings) -> anyhow::Result<Vec<SetupStep>> {
    let table = &settings.postgres.table;
    let (mut client, _task) = settings.postgres_target()?.connect("tailpost setup").await?;
    let records = table.companion("inbox_messages");
    let made = async {
        let exists = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&records]).await;
        let exists: bool = exists.context("could not look for the tables of the inbox")?.get(0);
        inbox::create_tables(&mut client, table.schema()).await?;
        anyhow::Ok(exists)
    };
    let late = "PostgreSQL has not made the tables of the inbox within 10 min";
    let exists = tokio::time::timeout(TABLES_DEADLINE, made).await.context(late)??;
    let mut steps = vec![SetupStep { what: "tables of the inbox".into(), created: !exists }];

    let consumers = settings.consumers()?;
    if consumers.is_empty() {
        return Ok(steps);
    }
    let nats = settings.nats_target()?.connect("tailpost setup").await?;
    for consumer in consumers {
        let what = format!("consumer {} of stream {}", consumer.name, consumer.stream);
        let name = consumer.name.clone();
        let created: Result<bool, Error> =
            builder(&consumer).nats(nats.clone()).create_consumer().await;
        let created = created.with_context(|| format!("consumer {name}"))?;
        steps.push(SetupStep { what, created });
    }
    Ok(steps)
}
