//! Looks after the tables beside the work: makes partitions, and forgets what is old.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::Error;
use crate::config::Config;
use crate::connection::Connect;
use crate::engine::Role;
use crate::postgres::tables::{self, Keep, Maintained};
use crate::worker::work::Context;
use servers::describe;

/// After a failure the next attempt comes within this.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long opening the connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Has a connection of its own for each pass: nothing waits for it.
pub(crate) struct Upkeep {
    pub(crate) context: Arc<Context>,
    pub(crate) connect: Connect,
    pub(crate) role: watch::Receiver<Role>,
}

impl Upkeep {
    /// Runs until it is dropped, while the role is ours. That something old cannot be dropped is no
    /// reason to leave anything else.
    pub(crate) async fn run(mut self) -> Infallible {
        let Config { consumer, upkeep_interval, .. } = &*Arc::clone(&self.context.config);
        let mut may_forget = self.context.may_forget.subscribe();
        let mut fails = false;
        loop {
            // The stream forgets messages before this forgets their records.
            if may_forget.wait_for(|it| *it).await.is_err() {
                std::future::pending::<()>().await;
            }
            while !matches!(*self.role.borrow_and_update(), Role::Active { .. }) {
                if self.role.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            let pause = match self.look_after().await {
                Ok(()) => {
                    fails = false;
                    *upkeep_interval
                }
                Err(error) => {
                    let error = describe(&error);
                    if !std::mem::replace(&mut fails, true) {
                        warn!(consumer, error, "could not look after the inbox's tables");
                    }
                    (*upkeep_interval).min(AGAIN_AFTER)
                }
            };
            sleep(pause).await;
        }
    }

    /// One pass, if no consumer of this inbox made one for an interval.
    async fn look_after(&self) -> Result<(), Error> {
        let Config { consumer, schema, retention, decisions_retention, upkeep_interval, .. } =
            &*self.context.config;
        let doing = "open a connection";
        let opened = timeout(CONNECT_MAX, (self.connect)()).await;
        let opened = opened.map_err(|_| Error::Silent { doing, within: CONNECT_MAX })?;
        let connection = opened.map_err(Error::Connect)?;
        let upkept = tables::upkept(&connection, schema).await?.unwrap_or_default();
        let is_fresh = |age: f64| age < upkeep_interval.as_secs_f64() * 0.9;
        if upkept.failure.is_none() && upkept.last_success_seconds.is_some_and(is_fresh) {
            return Ok(());
        }
        let keep = Keep { records: *retention, decisions: *decisions_retention };
        match tables::look_after(&connection, schema, keep, false).await? {
            Some(Maintained { created, dropped, deleted, decisions }) => info!(
                consumer,
                created, dropped, deleted, decisions, "looked after the inbox's tables"
            ),
            None => debug!(consumer, "another worker looks after the inbox's tables"),
        }
        Ok(())
    }
}
