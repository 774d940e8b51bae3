//! An event that goes through the whole chain, to see that it does.
//!
//! Nothing of it is removed: to `verify`, and to a relay after a crash, a row or a message that is
//! gone would look like a loss.

use std::time::Duration;

use async_nats::Client;
use futures_util::TryStreamExt;
use outbox::Event;
use outbox::waiting::Seen;
use outbox::wire::{header, subjects_overlap};
use relay::access::{Unpublished, answered, direct_get, unless_denied};
use relay::{Config, Error, EventState};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::{PgLsn, ToSql};
use uuid::Uuid;

use crate::sql::Store;

/// The aggregate type of canary events.
const KIND: &str = "tailpost.probe";

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long listing the consumers may take.
const LISTING_MAX: Duration = Duration::from_secs(10);

/// A canary event that was not sent yet.
pub struct Canary {
    config: Config,
    event: Event,
    /// The subject that it gets.
    pub subject: String,
    /// Consumers of the stream that would get it.
    pub consumers: Vec<String>,
}

/// When each leg was over, in seconds since the transaction began.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Legs {
    /// The event.
    pub id: Uuid,
    /// Its subject.
    pub subject: String,
    /// The stream.
    pub stream: String,
    /// Its sequence there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The transaction was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed: Option<f64>,
    /// The log was sent to the relay. Unknown in poll mode, and if the role may not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<f64>,
    /// The stream had the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<f64>,
    /// The row was marked, or deleted where marks are deletions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<f64>,
    /// Why it did not get further.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Makes a canary event for each shard, and says who would get it. Sends nothing.
///
/// # Errors
///
/// If a server cannot be reached or refuses, or a route drops such events.
pub async fn canaries(config: &Config) -> Result<Vec<Canary>, Error> {
    let (client, link) = config.nats.connect_watched("tailpost doctor").await?;
    let mut canaries = Vec::new();
    for config in config.each_shard() {
        let payload = serde_json::json!({ "sent_by": "tailpost doctor --probe" });
        let event = Event::new(KIND, aggregate_id(&config).await?, "canary", &payload)?;
        let subject = config.routing().subject(&event).map_err(|why| match why {
            Unpublished::Dropped => Error::Conflict(format!(
                "a route drops events of {KIND}: a canary event would not reach the broker"
            )),
            Unpublished::Unfit(why) | Unpublished::NoEvent(why) => {
                Error::Conflict(format!("no subject for {KIND}: {why}"))
            }
        })?;
        let listed = unless_denied(&link, consumers(&client, &config.stream.name, &subject));
        let listed = timeout(LISTING_MAX, listed).await;
        let late = Err(Error::Stalled("the broker does not list its consumers"));
        let consumers = listed.unwrap_or(late)?;
        canaries.push(Canary { config, event, subject, consumers });
    }
    Ok(canaries)
}

/// An aggregate of the shard.
async fn aggregate_id(config: &Config) -> Result<String, Error> {
    let Some(shard) = config.shard() else { return Ok("canary".into()) };
    let store = Store::brief(config, "tailpost doctor").await?;
    let sql = format!(
        "SELECT id FROM generate_series(1, 10000) AS n, concat('canary-', n) AS id
         WHERE {} ORDER BY n LIMIT 1",
        shard.owns(&format!("'{KIND}'"), "id")
    );
    Ok(store.query_one("choose an aggregate of the shard", &sql, &[]).await?.get(0))
}

async fn consumers(client: &Client, stream: &str, subject: &str) -> Result<Vec<String>, Error> {
    let doing = "list the consumers of the stream";
    let stream = servers::jetstream_of(client).get_stream(stream).await;
    let stream = stream.map_err(Error::jetstream(doing))?;
    let mut listed = stream.consumers();
    let mut found = Vec::new();
    while let Some(info) = listed.try_next().await.map_err(Error::jetstream(doing))? {
        let one = Some(info.config.filter_subject).filter(|it| !it.is_empty());
        let filters: Vec<String> = one.into_iter().chain(info.config.filter_subjects).collect();
        if filters.is_empty() || filters.iter().any(|it| subjects_overlap(it, subject)) {
            found.push(info.name);
        }
    }
    Ok(found)
}

impl Canary {
    /// The event's id.
    pub fn id(&self) -> Uuid {
        self.event.id
    }

    /// Commits the event and follows it until its row is marked, for `patience` at most.
    ///
    /// # Errors
    ///
    /// If it could not be committed. What happens afterwards is told by the legs.
    pub async fn send(&self, patience: Duration) -> Result<Legs, Error> {
        let config = &self.config;
        let mut legs = Legs {
            id: self.event.id,
            subject: self.subject.clone(),
            stream: config.stream.name.clone(),
            ..Legs::default()
        };
        let store = Store::brief(config, "tailpost doctor").await?;
        let nats = config.nats.connect("tailpost doctor").await?;
        let began = Instant::now();
        let lsn = answered("commit the canary event", self.commit()).await?;
        legs.committed = Some(began.elapsed().as_secs_f64());
        let following = self.follow(&store, &nats, lsn, began, &mut legs);
        if timeout(patience, following).await.is_err() && legs.failure.is_none() {
            let missing = match (legs.stored, legs.sent) {
                (Some(_), _) => "its row is not marked",
                (None, Some(_)) => "the relay has the log, and the stream does not have it",
                (None, None) => "no relay published it",
            };
            legs.failure = Some(format!("{missing} within {patience:?}: see `tailpost status`"));
        }
        Ok(legs)
    }

    /// Returns a position of the log behind the commit.
    async fn commit(&self) -> Result<u64, Error> {
        let doing = "commit the canary event";
        let (mut client, _connection) = self.config.postgres.connect("tailpost doctor").await?;
        let bounded = "SET statement_timeout = '5s'; SET lock_timeout = '5s'";
        client.batch_execute(bounded).await.map_err(Error::sql(doing))?;
        let tx = client.transaction().await.map_err(Error::sql(doing))?;
        self.config.table.enqueue_all(&tx, std::slice::from_ref(&self.event)).await?;
        tx.commit().await.map_err(Error::sql(doing))?;
        let row = client.query_one("SELECT pg_current_wal_insert_lsn()", &[]).await;
        Ok(row.map_err(Error::sql(doing))?.get::<_, PgLsn>(0).into())
    }

    async fn follow(
        &self,
        store: &Store,
        nats: &Client,
        lsn: u64,
        began: Instant,
        legs: &mut Legs,
    ) {
        loop {
            let at = || Some(began.elapsed().as_secs_f64());
            if legs.sent.is_none() && self.is_sent(store, lsn).await {
                legs.sent = at();
            }
            if legs.stored.is_none()
                && let Some(seq) = self.stored(nats).await
            {
                (legs.stored, legs.seq) = (at(), Some(seq));
            }
            match self.state(store, legs.stored.is_some()).await {
                Ok(Some(EventState::Published { seq, .. })) => {
                    legs.marked = at();
                    legs.stored = legs.stored.or(legs.marked);
                    legs.seq = legs.seq.or(seq);
                    return;
                }
                Ok(Some(EventState::Dead { reason })) => {
                    legs.failure = Some(format!("it is a dead letter: {reason}"));
                    return;
                }
                Ok(_) => {}
                Err(error) => {
                    legs.failure = Some(relay::describe(&error));
                    return;
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn is_sent(&self, store: &Store, lsn: u64) -> bool {
        let sql = "SELECT coalesce(sent_lsn >= $2, false) FROM pg_stat_replication
                   JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = $1";
        let parameters: [&(dyn ToSql + Sync); 2] = [&self.config.slot, &PgLsn::from(lsn)];
        let asked = store.query_opt("look what was sent", sql, &parameters).await;
        asked.ok().flatten().is_some_and(|row| row.get(0))
    }

    /// Its sequence, if it is the last message of its subject.
    async fn stored(&self, nats: &Client) -> Option<u64> {
        let stream = &self.config.stream.name;
        let answer = direct_get::read_last(nats, stream, &self.subject).await.ok()?;
        let message = answer.message().ok()??;
        let headers = message.headers();
        let id = headers.text(header::EVENT_ID).or_else(|| headers.text(header::MSG_ID));
        (id == Some(&*self.event.id.to_string())).then_some(message.sequence)
    }

    /// `Published` also if the row is gone and the stream has the message.
    async fn state(&self, store: &Store, is_stored: bool) -> Result<Option<EventState>, Error> {
        let looked = store.look_up(vec![self.event.id]).await?;
        let state = looked.into_values().next().map(Seen::into_inner);
        Ok(match state {
            Some(EventState::Unknown) if is_stored && store.marks_by_deleting() => {
                Some(EventState::Published { stream: None, seq: None })
            }
            state => state,
        })
    }
}
