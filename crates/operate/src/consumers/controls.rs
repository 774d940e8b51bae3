//! Pausing a consumer, letting it go on, and closing its breaker.
//!
//! What is wanted is a row, which the worker of the consumer reads every second: it holds across
//! restarts, and for whichever worker has the consumer.

use std::collections::BTreeMap;

use inbox::access::find_controls;
use inbox::{Control, Error};
use tokio_postgres::types::ToSql;

use super::Consumers;
use crate::dead_letters::{Actor, AuditEntry};
use crate::sql::records::{control_consumers, query, select};

const DOING: &str = "control a consumer";

/// What can be wanted of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlAction {
    /// Begin no events. What is at work ends, and the consumer stays with its worker.
    Pause,
    /// Go on.
    Resume,
    /// Take the handler for one that answers.
    CloseBreaker,
}

impl Consumers {
    /// What is wanted, by consumer; nothing of one without a request.
    ///
    /// # Errors
    ///
    /// If the database refuses; [`Error::Tables`] if the inbox is not set up.
    pub async fn controls(&self) -> Result<BTreeMap<String, Control>, Error> {
        let rows = query(&self.connection, DOING, &find_controls(&self.schema), &[]).await?;
        Ok(rows.iter().map(|row| (row.get("consumer"), Control::of(row))).collect())
    }

    /// Says what is wanted from now on. False if it was so already.
    ///
    /// # Errors
    ///
    /// As [`controls`](Self::controls).
    pub async fn want(
        &self,
        action: ControlAction,
        consumer: &str,
        actor: &Actor,
    ) -> Result<bool, Error> {
        let statement = match action {
            ControlAction::Pause => control_consumers::pause,
            ControlAction::Resume => control_consumers::resume,
            ControlAction::CloseBreaker => control_consumers::close_breaker,
        };
        let sql = statement(&self.schema);
        let why = actor.why();
        let parameters: [&(dyn ToSql + Sync); 4] = [&consumer, &actor.name, &actor.via, &why];
        Ok(!query(&self.connection, DOING, &sql, &parameters).await?.is_empty())
    }

    /// Who wanted what, the newest first.
    ///
    /// # Errors
    ///
    /// As [`controls`](Self::controls).
    pub async fn history(&self, consumer: &str, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        let sql = control_consumers::list_entries(&self.schema);
        select(&self.connection, DOING, &sql, &[&consumer, &i64::from(limit)]).await
    }
}
