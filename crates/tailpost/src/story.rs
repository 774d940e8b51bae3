//! An event, from its row to its effects.

use std::collections::BTreeMap;

use inbox::Connection;
use operate::event_search::FoundEvent;
use operate::explain::Explanation;
use operate::explain::consumer_story::{self, ConsumerStory};
use outbox::Table;
use relay::Config;
use schemars::JsonSchema;
use serde::Serialize;
use servers::PostgresTarget;
use uuid::Uuid;

use crate::errors::Refusal;

/// An event, and what each consumer did with it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Story {
    #[serde(flatten)]
    pub(crate) published: Explanation,
    pub(crate) consumers: BTreeMap<String, ConsumerStory>,
}

/// # Errors
///
/// If the database cannot be asked, or the event is unknown.
pub(crate) async fn of(config: &Config, table: &Table, id: Uuid) -> anyhow::Result<Story> {
    let mut notes = Vec::new();
    let consumers = match consumers(&config.postgres, table, id, &mut notes).await {
        Ok(consumers) => consumers,
        Err(error) => {
            // Who has no inbox needs no tables for one.
            if !matches!(error, inbox::Error::Tables { .. }) {
                let trouble = crate::errors::chain(&error.into());
                notes.push(format!("the inbox cannot be asked: {trouble}"));
            }
            BTreeMap::new()
        }
    };
    let place = consumers.values().find_map(place);
    let mut published = operate::explain::explain(config, id, place).await?;
    published.notes.extend(notes);
    if published.is_empty() && consumers.is_empty() {
        let refusal = Refusal::not_found(format!("nobody knows event {id}"));
        let hint = "neither a row, a dead letter, a decision nor a consumer's record is left of it, \
                    or it is not committed; an event of outbox_emit_wal never has a row";
        return Err(refusal.with_hint(hint).into());
    }
    Ok(Story { published, consumers })
}

/// What each consumer did with it.
///
/// # Errors
///
/// If the database cannot be asked, or there is no inbox.
pub(crate) async fn consumers(
    postgres: &PostgresTarget,
    table: &Table,
    id: Uuid,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, ConsumerStory>, inbox::Error> {
    let session = postgres.session("tailpost explain").await;
    let session = session.map_err(|error| inbox::Error::Connect(error.into()))?;
    consumer_story::explain(&Connection::lent(session), table, id, notes).await
}

/// Says of events at which consumers they are dead letters.
///
/// # Errors
///
/// If the database cannot be asked, or there is no inbox.
pub(crate) async fn add_consumers(
    config: &Config,
    events: &mut [FoundEvent],
) -> Result<(), inbox::Error> {
    let session = config.postgres.session("tailpost events").await;
    let session = session.map_err(|error| inbox::Error::Connect(error.into()))?;
    let ids: Vec<_> = events.iter().map(|it| it.id).collect();
    let mut dead = consumer_story::dead_at(&Connection::lent(session), &config.table, &ids).await?;
    for event in events {
        event.dead_at = dead.remove(&event.id).unwrap_or_default();
    }
    Ok(())
}

/// Where a consumer met the event.
fn place(story: &ConsumerStory) -> Option<(String, u64)> {
    let letter = story.dead_letter.as_ref().map(|it| &it.place);
    let place = story.record.as_ref().map(|it| &it.place).or(letter)?;
    Some((place.stream.clone()?, u64::try_from(place.seq?).ok()?))
}
