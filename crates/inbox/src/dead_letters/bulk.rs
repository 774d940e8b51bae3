//! A decision about many dead letters.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use outbox::dead_letters::Progress;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{DeadLetters, Decision, Grounds, Parameters, Selection, bounded};
use crate::Error;

/// Dead letters that one statement decides about, at most.
const BATCH: u32 = 1_000;

impl DeadLetters {
    /// Decides about all that are meant and dead by now, the oldest first, at most `rate` a second.
    /// Tells how far it got; stops between two statements when `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list). What a decision cannot be made about is counted and skipped.
    pub async fn work_through(
        &self,
        decision: Decision,
        of: &Selection,
        rate: Option<u32>,
        grounds: &Grounds,
        progress: &watch::Sender<Progress>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let client = &self.connection.client;
        let now = client.query_one("SELECT clock_timestamp()", &[]);
        let until: Timestamp = bounded("read the server's clock", now).await?.get(0);
        let total = self.overview(of, 0).await?.total;
        progress.send_modify(|it| it.total = total);
        let batch = rate.unwrap_or(BATCH).clamp(1, BATCH);
        let pause = rate.map(|it| Duration::from_secs(1) * batch / it.max(1));
        let mut pace = tokio::time::interval(pause.unwrap_or(Duration::from_nanos(1)));
        let mut after = (Timestamp::UNIX_EPOCH, Uuid::nil(), String::new());
        loop {
            if stop.is_cancelled() {
                progress.send_modify(|it| (it.cancelled, it.ended) = (true, true));
                return Ok(());
            }
            if pause.is_some() {
                pace.tick().await;
            }
            let page = self.page(of, until, &after, batch).await?;
            let Some(last) = page.last() else { break };
            after = last.clone();
            self.decide_about(decision, of, page, grounds, progress).await?;
        }
        progress.send_modify(|it| it.ended = true);
        Ok(())
    }

    async fn page(
        &self,
        of: &Selection,
        until: Timestamp,
        (dead_at, id, consumer): &(Timestamp, Uuid, String),
        limit: u32,
    ) -> Result<Vec<(Timestamp, Uuid, String)>, Error> {
        let limit = i64::from(limit);
        let parameters = Parameters::of(of);
        let parameters = parameters.with(&[&until, dead_at, id, consumer, &limit]);
        let rows = self.connection.client.query(&self.texts.page, &parameters);
        let rows = bounded("find dead letters", rows).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    /// An event may be a dead letter of several consumers.
    async fn decide_about(
        &self,
        decision: Decision,
        of: &Selection,
        page: Vec<(Timestamp, Uuid, String)>,
        grounds: &Grounds,
        progress: &watch::Sender<Progress>,
    ) -> Result<(), Error> {
        let mut by_consumer: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
        for (_, id, consumer) in page {
            by_consumer.entry(consumer).or_default().push(id);
        }
        for (consumer, ids) in by_consumer {
            let count = ids.len();
            let these = Selection {
                consumer: Some(consumer),
                events: Some(ids),
                filter: of.filter.clone(),
            };
            let done = self.decide(decision, &these, grounds).await?.len();
            progress.send_modify(|it| {
                it.done += done as u64;
                it.skipped += count.saturating_sub(done) as u64;
                if done < count {
                    let refusal = "they are requeued, have no record any more, or cannot be \
                                   handled, whatever changes";
                    it.last_refusal = Some(refusal.into());
                }
            });
        }
        Ok(())
    }
}
