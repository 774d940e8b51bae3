//! Waiting until a consumer has processed events.

use std::collections::HashMap;
use std::time::Duration;

use inbox::access::answered_within;
use inbox::{Connection, Error};
use outbox::Table;
use outbox::waiting::{Seen, Waiting};
use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::sql::records::look_up_records;

/// A statement that has not answered by then never will.
const STATEMENT_MAX: Duration = Duration::from_secs(10);

/// What has become of an event at a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EffectState {
    /// The consumer has not begun it, or has forgotten it.
    Unknown,
    /// It was begun, and has not had its effect.
    Begun {
        /// Attempts that were started.
        attempts: u32,
        /// Why the last one failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// It had its effect.
    Processed,
    /// It is a dead letter.
    Dead {
        /// Why.
        reason: String,
    },
    /// An operator decided that it never has its effect.
    Rejected,
}

/// Answers those who wait for events of `consumer`, from its records beside the outbox `table`, until
/// no request has waited for 10 s.
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer. Those who wait are then not told anything.
///
/// # Cancel safety
///
/// Dropping the future leaves those who wait without an answer.
pub async fn answer(
    connection: &Connection,
    table: &Table,
    consumer: &str,
    waiting: &Waiting<EffectState>,
) -> Result<(), Error> {
    let sql = look_up_records::look_up(&table.quoted_schema());
    waiting.look(|ids| look_up(connection, &sql, consumer, ids)).await
}

async fn look_up(
    connection: &Connection,
    sql: &str,
    consumer: &str,
    ids: Vec<Uuid>,
) -> Result<HashMap<Uuid, Seen<EffectState>>, Error> {
    let parameters: [&(dyn ToSql + Sync); 2] = [&consumer, &ids];
    let rows = connection.client().query(sql, &parameters);
    let rows = answered_within(STATEMENT_MAX, "look for events", rows).await?;
    let mut states: HashMap<_, _> =
        ids.into_iter().map(|id| (id, Seen::Open(EffectState::Unknown))).collect();
    for row in &rows {
        let (id, status): (Uuid, &str) = (row.get(0), row.get(1));
        let error: Option<String> = row.get(3);
        let state = match status {
            "PROCESSED" => Seen::Final(EffectState::Processed),
            "REJECTED" => Seen::Final(EffectState::Rejected),
            // Its letter says why.
            "DEAD" if matches!(states.get(&id), Some(Seen::Final(EffectState::Dead { .. }))) => {
                continue;
            }
            "DEAD" => Seen::Final(EffectState::Dead { reason: error.unwrap_or_default() }),
            _ => {
                let attempts = u32::try_from(row.get::<_, i32>(2)).unwrap_or(0);
                Seen::Open(EffectState::Begun { attempts, error })
            }
        };
        states.insert(id, state);
    }
    Ok(states)
}
