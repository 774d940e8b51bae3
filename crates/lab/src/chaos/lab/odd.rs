//! Input that nobody writes on purpose, and what it may do to the ledger.

use crate::hostile::{HostileMessage, HostileRow, RawNats};
use crate::ledger::Ledger;
use anyhow::{Context, Result};
use uuid::Uuid;

use super::Lab;

/// All that other clients publish is below this, which the stream takes.
const PREFIX: &str = "outbox.odd";

/// What was written beside the load and is not like it.
#[derive(Default)]
pub(super) struct Odd {
    /// Whether dead letters of rows are to be expected.
    rows: u64,
    /// Of rows that came with `published_at`.
    published: Vec<Uuid>,
    /// Of messages that look like events.
    events: Vec<Uuid>,
    messages: u64,
}

impl Odd {
    /// Messages of other clients in the relay's stream.
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    /// What is in the table or in the stream, and was not to be in the other.
    pub(super) fn excuse(&self, ledger: Ledger) -> Ledger {
        let events = self.events.iter().copied();
        ledger.allowing(events).without(self.published.iter().copied())
    }
}

impl Lab {
    /// Commits a row. It is to be published or parked, unless it came as published.
    pub(in crate::chaos) async fn insert_odd(&mut self, row: &HostileRow) -> Result<()> {
        self.execute(&row.insert()).await?;
        self.odd.rows += 1;
        if row.is_published {
            self.odd.published.push(row.id);
        } else {
            self.wrote(1);
        }
        Ok(())
    }

    /// Publishes a message into the relay's stream, as another client may.
    pub(in crate::chaos) async fn publish_odd(&mut self, message: &HostileMessage) -> Result<()> {
        let mut nats = RawNats::connect(&self.nats.url()).await?;
        let (subject, headers) = (message.subject(PREFIX), message.headers.as_deref());
        let stored = nats.store(&subject, headers, &message.body).await;
        if stored.with_context(|| format!("publish {}", message.about))? {
            self.odd.messages += 1;
            self.odd.events.extend(message.id);
        }
        Ok(())
    }

    /// How many of the expected dead letters there are by now.
    pub(super) async fn odd_parked(&self) -> Result<u64> {
        if self.odd.rows == 0 {
            return Ok(0);
        }
        let parked = "SELECT count(*) FROM outbox_dead_letter WHERE event_type <> 'Poison'";
        Ok(u64::try_from(self.query::<i64>(parked).await?)?)
    }
}
