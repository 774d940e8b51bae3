//! The checks of the inbox, over connections of their own.

use std::time::Duration;

use inbox::Connection;
use operate::Inspected;
use operate::checks::{Check, Scope};
use tokio::time::timeout;

use crate::commands::inbox::builder::builder;
use crate::config::Settings;

/// How long connecting to a server may take for the consumers' sake.
const CONNECT_MAX: Duration = Duration::from_secs(6);

/// The checks of the consumers, if there are some.
pub(in crate::commands) async fn consumer_checks(
    settings: &Settings,
    scope: &Scope,
) -> anyhow::Result<Vec<Check>> {
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
    let relay = settings.relay_config()?;
    let inspected = Inspected { postgres, nats, table: &table, relay: &relay };
    let retention = settings.inbox_retention();
    let builders = configured.into_iter().map(|consumer| {
        let builder = builder(&consumer);
        match retention {
            Some(keep) => builder.retention(keep),
            None => builder,
        }
    });
    Ok(operate::doctor_of_consumers(inspected, builders.collect(), scope).await)
}
