//! Requests that consumers go back, as a list.

use inbox::access::MAKE_DURABLE;
use inbox::{Connection, Error, RewindState};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Consumers;
use crate::dead_letters::Actor;
use crate::sql::records::{plan_rewinds, query, select};

/// A request that a consumer goes back, and how far its worker is with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rewind {
    /// Names the request.
    pub id: i64,
    /// The consumer.
    pub consumer: String,
    /// The stream.
    pub stream: String,
    /// Where it goes back to.
    pub from_sequence: u64,
    /// Up to there processed events are handled again.
    pub until_sequence: u64,
    /// Whether they are at all.
    pub again: bool,
    /// Only those of this aggregate.
    pub aggregate_type: Option<String>,
    /// Only those of this aggregate.
    pub aggregate_id: Option<String>,
    /// Only those of this type.
    pub event_type: Option<String>,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// By the role in the database, and who the client said it was.
    pub requested_by: String,
    /// What for.
    pub why: Option<String>,
    /// When a worker began with it.
    pub begun_at: Option<Timestamp>,
    /// Up to there the records of processed events are removed.
    pub removed_to: u64,
    /// How many were.
    pub removed: u64,
    /// When it was done, or given up.
    pub ended_at: Option<Timestamp>,
    /// `rewound`, `cancelled`, or why it was given up.
    pub outcome: Option<String>,
}

impl Consumers {
    /// The latest requests of all consumers, or of one, the newest first.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn rewinds(&self, consumer: Option<&str>, limit: u32) -> Result<Vec<Rewind>, Error> {
        let sql = plan_rewinds::list(&self.schema);
        select(&self.connection, "list rewinds", &sql, &[&consumer, &i64::from(limit)]).await
    }

    /// Withdraws the request that no worker has begun with, and says what it was.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn cancel_rewind(
        &self,
        consumer: &str,
        actor: &Actor,
    ) -> Result<Option<RewindState>, Error> {
        cancel((&self.connection, &self.schema), consumer, actor).await
    }
}

pub(super) async fn cancel(
    (connection, schema): (&Connection, &str),
    consumer: &str,
    actor: &Actor,
) -> Result<Option<RewindState>, Error> {
    const DOING: &str = "withdraw a rewind";
    query(connection, DOING, MAKE_DURABLE, &[]).await?;
    let (Actor { name, via, .. }, why) = (actor, actor.why());
    let sql = plan_rewinds::cancel(schema);
    Ok(select(connection, DOING, &sql, &[&consumer, name, via, &why]).await?.pop())
}
