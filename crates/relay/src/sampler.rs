//! Figures that only the database knows, fetched now and then rather than at each scrape.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::debug;

use crate::config::Config;
use crate::describe;
use crate::error::Error;
use crate::postgres::Store;
use crate::postgres::sql::Backlog;

/// The pause is at least so many times as long as the look: where no index leads to what is not
/// published, the whole table is read.
const PAUSE_FACTOR: u32 = 20;

/// The shortest pause.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// What the database says, as of the latest look.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// When the servers had told it; `None` of one that nobody took.
    pub taken: Option<Instant>,
    /// Rows that are not published, of all shards; counted up to 100,000 of each.
    pub unpublished: u64,
    /// How long the oldest of them waits.
    pub oldest_unpublished: Duration,
    /// How many replays are in which state.
    pub replays: BTreeMap<String, u64>,
    /// The slot of each shard, by its number; of the only one as of 0.
    pub slots: BTreeMap<u32, SlotSample>,
    /// Why the latest looks failed, if PostgreSQL refused them.
    pub refused: Option<Refused>,
}

/// Looks that PostgreSQL refused, since the last one that it did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// When that was, or the first of them if there is none.
    pub since: Instant,
    /// How many.
    pub looks: u32,
    /// Why the last one was.
    pub why: String,
}

/// What the database says of a slot, whether a relay reads it or not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlotSample {
    /// Rows that are not published.
    pub unpublished: u64,
    /// How long the oldest of them has been the oldest, as far as it was seen.
    pub unmoved: Duration,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` if there is no slot.
    pub wal_status: Option<String>,
    /// When it was created, as far as relays know.
    pub created_at: Option<Timestamp>,
    /// When its stream was last found to lack messages that it had acknowledged.
    pub stream_lost_at: Option<Timestamp>,
    /// Those of them that no row tells of, and for which nobody has answered.
    pub stream_lost_unanswered: u64,
}

/// Looks every `every`, for as long as the future is polled. `config` is that of all shards. While
/// the database cannot be asked, or counting takes too long, the latest figures stay, and
/// [`Sample::taken`] says how old they are.
pub async fn keep(
    config: &Config,
    every: Duration,
    samples: &watch::Sender<Option<Sample>>,
) -> Infallible {
    let (mut stores, mut oldest) = (Vec::new(), BTreeMap::new());
    loop {
        let began = Instant::now();
        match look(config, &mut stores, &mut oldest).await {
            Ok(sample) => _ = samples.send_replace(Some(sample)),
            Err(error) => {
                let why = why(&error, &stores).await;
                debug!(error = why, "could not look at the backlog");
                if error.code().is_some() && !error.is_cancelled() {
                    samples.send_modify(|it| it.get_or_insert_default().is_refused(began, why));
                }
                stores.clear();
            }
        }
        sleep(every.max(EVERY_MIN).max(began.elapsed().saturating_mul(PAUSE_FACTOR))).await;
    }
}

/// The error, and who holds a lock that all have to wait for.
async fn why(error: &Error, stores: &[(Config, Store)]) -> String {
    let why = describe(error);
    let Some((_, store)) = stores.first().filter(|_| error.is_contention()) else { return why };
    match store.exclusive_holder().await {
        Ok(Some((holder, table))) => format!("{why}: {holder} has locked {table}"),
        _ => why,
    }
}

impl Sample {
    fn is_refused(&mut self, began: Instant, why: String) {
        let since = self.taken.unwrap_or(began);
        let before = self.refused.take().unwrap_or(Refused { since, looks: 0, why: String::new() });
        self.refused = Some(Refused { looks: before.looks + 1, why, ..before });
    }
}

/// The oldest row that is not published, by when it occurred, and since when it has been the oldest.
type Oldest = (Option<f64>, Instant);

/// For how long the oldest row has been the same.
fn unmoved(
    backlog: &Backlog,
    number: u32,
    oldest: &mut BTreeMap<u32, Oldest>,
    now: Instant,
) -> Duration {
    if backlog.rows == 0 {
        oldest.remove(&number);
        return Duration::ZERO;
    }
    let (at, since) = oldest.entry(number).or_insert((backlog.oldest_at, now));
    if *at != backlog.oldest_at {
        (*at, *since) = (backlog.oldest_at, now);
    }
    now.duration_since(*since)
}

/// `stores` has a connection for each shard, or none yet.
async fn look(
    config: &Config,
    stores: &mut Vec<(Config, Store)>,
    oldest: &mut BTreeMap<u32, Oldest>,
) -> Result<Sample, Error> {
    if stores.is_empty() {
        let mut opened = Vec::new();
        for shard in config.each_shard() {
            let store = Store::brief(&shard, "tailpost metrics").await?;
            store.be_brief().await?;
            opened.push((shard, store));
        }
        *stores = opened;
    }
    let mut sample = Sample::default();
    for (shard, store) in &*stores {
        let backlog = store.backlog(&shard.slot).await?;
        let unpublished = backlog.rows.unsigned_abs();
        sample.unpublished += unpublished;
        let age = backlog.oldest_seconds.unwrap_or(0.0);
        let age = Duration::try_from_secs_f64(age).unwrap_or_default();
        sample.oldest_unpublished = sample.oldest_unpublished.max(age);
        let wal_status = store.slot_health(&shard.slot).await?.wal_status;
        let (created_at, stream_lost_at, stream_lost_unanswered) =
            store.slot_times(&shard.slot, &shard.stream.name).await?;
        let number = shard.shard().map_or(0, |it| it.number);
        let unmoved = unmoved(&backlog, number, oldest, Instant::now());
        let slot = SlotSample {
            unpublished,
            unmoved,
            wal_status,
            created_at,
            stream_lost_at,
            stream_lost_unanswered,
        };
        sample.slots.insert(number, slot);
    }
    if let Some((_, store)) = stores.first() {
        sample.replays = store.count_replays_by_status().await?;
    }
    sample.taken = Some(Instant::now());
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_stays_the_oldest_is_seen_to_wait() {
        let (mut oldest, began) = (BTreeMap::new(), Instant::now());
        let mut look = |rows, at, seconds| {
            let backlog = Backlog { rows, oldest_at: Some(at), ..Backlog::default() };
            let now = began + Duration::from_secs(seconds);
            unmoved(&backlog, 0, &mut oldest, now).as_secs()
        };
        assert_eq!(
            [look(3, 7.0, 0), look(9, 7.0, 5), look(2, 8.0, 6), look(2, 8.0, 8)],
            [0, 5, 0, 2]
        );
        assert_eq!([look(0, 0.0, 9), look(2, 8.0, 11)], [0, 0], "there was none in between");
    }
}
