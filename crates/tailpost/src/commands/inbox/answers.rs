//! Answers requests that wait for events of the consumers that run here.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::join_all;
use inbox::Connection;
use operate::waiting::effects::{EffectState, answer};
use outbox::Table;
use outbox::waiting::Waiting;
use servers::PostgresTarget;
use tracing::warn;

use crate::admin::WaitingOf;

/// Before the database is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Never ends. Each consumer with a waiting request has a connection.
pub(super) async fn give(
    postgres: &PostgresTarget,
    table: &Table,
    waiting: &WaitingOf,
) -> Infallible {
    join_all(waiting.iter().map(|(consumer, waiting)| give_of(postgres, table, consumer, waiting)))
        .await;
    // Without consumers.
    std::future::pending().await
}

async fn give_of(
    postgres: &PostgresTarget,
    table: &Table,
    consumer: &str,
    waiting: &Waiting<EffectState>,
) -> Infallible {
    loop {
        waiting.begun().await;
        let answered = async {
            let (client, task) = postgres.connect("tailpost wait").await?;
            answer(&Connection::with_guard(client, task), table, consumer, waiting).await?;
            anyhow::Ok(())
        };
        if let Err(error) = answered.await {
            let error = crate::errors::chain(&error);
            warn!(consumer, error, "cannot look for events that somebody waits for");
            tokio::time::sleep(PAUSE).await;
        }
    }
}
