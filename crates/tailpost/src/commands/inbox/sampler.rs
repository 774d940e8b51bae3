//! Figures that only the servers know, fetched at an interval and not at each scrape.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{Info, PullConsumer};
use inbox::{Connection, Status, Summary, Upkept};
use jiff::Timestamp;
use operate::consumers::{Backlog, Consumers};
use servers::PostgresTarget;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::admin::{Durable, Sample, Samples};

/// The shortest pause.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// How long PostgreSQL may count, in all and in each statement.
const COUNT_MAX: Duration = Duration::from_secs(5);

/// How long the broker may take to tell of a durable consumer. They are all asked at once.
const ASK_MAX: Duration = Duration::from_secs(2);

/// A pause is at least so many times as long as the look before it: counting is no one's main job.
const REST_TIMES: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(60);

/// A consumer.
pub(in crate::commands) struct Sampled {
    pub(in crate::commands) name: String,
    /// The names of its durable consumers.
    pub(in crate::commands) durables: Vec<String>,
    pub(in crate::commands) stream: String,
    /// How long its handler may take.
    pub(in crate::commands) timeout: Duration,
}

/// Looks at the record and at the durable consumers.
pub(in crate::commands) struct Sampler {
    pub(in crate::commands) postgres: PostgresTarget,
    pub(in crate::commands) table: outbox::Table,
    pub(in crate::commands) nats: async_nats::Client,
    pub(in crate::commands) consumers: Vec<Sampled>,
    pub(in crate::commands) statuses: BTreeMap<String, watch::Receiver<Status>>,
    pub(in crate::commands) every: Duration,
}

impl Sampler {
    /// Runs until `stop`. Servers that do not answer leave the last figures as they are, and
    /// [`Samples::taken`] says how old those are.
    pub(in crate::commands) async fn run(
        self,
        samples: watch::Sender<Samples>,
        stop: CancellationToken,
    ) {
        let (mut consumers, mut moved) = (None, BTreeMap::new());
        loop {
            let began = Instant::now();
            let taken = tokio::select! {
                () = stop.cancelled() => return,
                taken = self.sample(&mut consumers) => taken,
            };
            match taken {
                Ok(mut taken) => {
                    self.compare(&mut taken, &mut moved);
                    samples.send_replace(taken);
                }
                Err(error) => {
                    let error = crate::errors::chain(&error);
                    debug!(error, "could not look at the inbox");
                    consumers = None;
                }
            }
            let rest = (began.elapsed() * REST_TIMES).min(REST_MAX);
            let pause = self.every.max(EVERY_MIN).max(rest);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn sample(&self, consumers: &mut Option<Consumers>) -> anyhow::Result<Samples> {
        let (backlogs, upkept) = timeout(COUNT_MAX, self.count(consumers)).await??;
        let context = servers::jetstream_of(&self.nats);
        // A broker that is away leaves the database's figures as fresh as they are.
        let asked = self.consumers.iter().map(|it| {
            let found = backlogs.iter().find(|found| found.consumer == it.name).cloned();
            let asked = it.durables.iter().map(|durable| {
                timeout(ASK_MAX, context.get_consumer_from_stream(durable, &it.stream))
            });
            let asked = futures_util::future::join_all(asked.collect::<Vec<_>>());
            async move {
                // Of some of them nobody knows how much is pending in all.
                let infos = asked.await.into_iter().map(|it| {
                    let consumer: Option<PullConsumer> = it.ok().and_then(Result::ok);
                    consumer.map(|it| durable(it.cached_info()))
                });
                let all: Option<Vec<Durable>> = infos.collect();
                let durable = all.and_then(|it| it.into_iter().reduce(Durable::and));
                let backlog = found.unwrap_or_default();
                let (unmoved, timeout) = (Duration::ZERO, it.timeout);
                (it.name.clone(), Sample { backlog, durable, unmoved, timeout })
            }
        });
        let consumers = futures_util::future::join_all(asked).await.into_iter().collect();
        Ok(Samples { taken: Some(Instant::now()), consumers, upkept })
    }

    /// Says how long nothing has moved of what is pending.
    fn compare(&self, samples: &mut Samples, moved: &mut BTreeMap<String, Place>) {
        for (name, sample) in &mut samples.consumers {
            let durable = sample.durable.filter(|it| it.pending > 0);
            let (Some(durable), Some(status)) = (durable, self.statuses.get(name)) else {
                moved.remove(name);
                continue;
            };
            let (delivered, counts, now) =
                (durable.delivered, status.borrow().counts, Instant::now());
            let place =
                moved.entry(name.clone()).or_insert(Place { delivered, counts, since: now });
            if (place.delivered, place.counts) != (delivered, counts) {
                *place = Place { delivered, counts, since: now };
            }
            sample.unmoved = now.duration_since(place.since);
        }
    }

    async fn count(
        &self,
        consumers: &mut Option<Consumers>,
    ) -> anyhow::Result<(Vec<Backlog>, Option<Upkept>)> {
        let consumers = match consumers {
            Some(consumers) => consumers,
            None => {
                let (client, task) = self.postgres.connect("tailpost inbox metrics").await?;
                // Otherwise the server would go on with a statement after the time-out.
                let limit = format!("SET statement_timeout = {}", COUNT_MAX.as_millis());
                client.batch_execute(&limit).await?;
                let connection = Connection::with_guard(client, task);
                consumers.insert(Consumers::new(connection, &self.table))
            }
        };
        Ok((consumers.backlogs().await?, consumers.upkept().await?))
    }
}

/// How far a consumer has got, and since when.
struct Place {
    delivered: u64,
    counts: Summary,
    since: Instant,
}

fn durable(info: &Info) -> Durable {
    // Before it has ever delivered anything: when it was made.
    let made = Some(info.created);
    let active = made.max(info.delivered.last_active).max(info.ack_floor.last_active);
    let active = active.and_then(|it| Timestamp::from_nanosecond(it.unix_timestamp_nanos()).ok());
    Durable {
        pending: info.num_pending,
        delivered: info.delivered.stream_sequence,
        ack_pending: info.num_ack_pending as u64,
        redelivered: info.num_redelivered as u64,
        active_at: active.unwrap_or_else(Timestamp::now),
    }
}
