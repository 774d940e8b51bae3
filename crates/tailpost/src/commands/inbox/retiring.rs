//! A service that is gone for good pauses its consumer, as an operator would.

use inbox::http::HttpHandler;
use inbox::{Connection, Delivery, LeasedHandler, Verdict};
use operate::consumers::{Consumers, ControlAction};
use operate::dead_letters::Actor;
use outbox::Table;
use servers::PostgresTarget;
use tracing::warn;

/// The status of a service that wants no more events, ever.
const GONE: u16 = 410;

/// Who pauses the consumer, through what, and why.
const NAME: &str = "tailpost";
const VIA: &str = "410 Gone";
const WHY: &str = "retired";

/// Calls a service, and pauses its consumer when it answers 410.
pub(super) struct Retiring {
    pub(super) handler: HttpHandler,
    pub(super) postgres: PostgresTarget,
    pub(super) table: Table,
}

impl LeasedHandler for Retiring {
    async fn handle(&self, delivery: Delivery<'_>) -> Verdict {
        let (status, verdict) = self.handler.call(delivery).await;
        if status.is_some_and(|it| it == GONE) {
            let consumer = delivery.consumer;
            match Box::pin(self.retire(consumer)).await {
                Ok(true) => {
                    warn!(consumer, "the handler is gone (410): paused until it is resumed")
                }
                Ok(false) => {} // somebody has paused it
                Err(error) => {
                    let error = crate::errors::chain(&error);
                    warn!(consumer, error, "the handler is gone (410), and cannot be paused");
                }
            }
        }
        verdict
    }
}

impl Retiring {
    async fn retire(&self, consumer: &str) -> anyhow::Result<bool> {
        let (client, task) = self.postgres.connect("tailpost inbox retire").await?;
        let consumers = Consumers::new(Connection::with_guard(client, task), &self.table);
        let actor = Actor { name: NAME.into(), via: VIA.into(), why: WHY.parse().ok() };
        Ok(consumers.want(ControlAction::Pause, consumer, &actor).await?)
    }
}
