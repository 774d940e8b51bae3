//! Figures that only the servers know, fetched every now and then rather than at each scrape.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::jetstream::consumer::{Info, PullConsumer};
use inbox::{Connection, DeadLetters};
use jiff::Timestamp;
use relay::PostgresTarget;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::admin::{Durable, Sample, Samples};

/// The shortest pause.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// How long a look may take, and each of its statements.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// A pause is at least so many times as long as the look before it: counting is no one's main job.
const REST_TIMES: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(60);

/// Looks at the record and at the durable consumers.
pub(super) struct Sampler {
    pub(super) postgres: PostgresTarget,
    pub(super) table: outbox::Table,
    pub(super) nats: async_nats::Client,
    /// Names, each with its stream.
    pub(super) consumers: Vec<(String, String)>,
    pub(super) every: Duration,
}

impl Sampler {
    /// Runs until `stop`. Servers that do not answer leave the last figures as they are, and
    /// [`Samples::taken`] says how old those are.
    pub(super) async fn run(self, samples: watch::Sender<Samples>, stop: CancellationToken) {
        let mut letters = None;
        loop {
            let began = Instant::now();
            let taken = tokio::select! {
                () = stop.cancelled() => return,
                taken = timeout(LOOK_MAX, self.sample(&mut letters)) => taken,
            };
            match taken.map_err(anyhow::Error::from).flatten() {
                Ok(taken) => drop(samples.send_replace(taken)),
                Err(error) => {
                    let error = crate::exit::chain(&error);
                    debug!(error, "could not look at the inbox");
                    letters = None;
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

    async fn sample(&self, letters: &mut Option<DeadLetters>) -> anyhow::Result<Samples> {
        let letters = match letters {
            Some(letters) => letters,
            None => {
                let (client, task) = self.postgres.connect("tailpost inbox metrics").await?;
                // The server would go on with what nobody waits for any more.
                let limit = format!("SET statement_timeout = {}", LOOK_MAX.as_millis());
                client.batch_execute(&limit).await?;
                let connection = Connection::with_guard(client, task);
                letters.insert(DeadLetters::new(connection, &self.table))
            }
        };
        let backlogs = letters.backlogs().await?;
        let context = jetstream::new(self.nats.clone());
        let upkept = letters.upkept().await?;
        let mut samples = BTreeMap::new();
        for (name, stream) in &self.consumers {
            let found = backlogs.iter().find(|it| it.consumer == *name).cloned();
            let consumer: Result<PullConsumer, _> =
                context.get_consumer_from_stream(name, stream).await;
            let durable = consumer.ok().map(|it| durable(it.cached_info()));
            samples.insert(name.clone(), Sample { backlog: found.unwrap_or_default(), durable });
        }
        Ok(Samples { taken: Some(Instant::now()), consumers: samples, upkept })
    }
}

fn durable(info: &Info) -> Durable {
    // Before it has ever delivered anything: when it was made.
    let made = Some(info.created);
    let active = made.max(info.delivered.last_active).max(info.ack_floor.last_active);
    let active = active.and_then(|it| Timestamp::from_nanosecond(it.unix_timestamp_nanos()).ok());
    Durable {
        pending: info.num_pending,
        ack_pending: info.num_ack_pending as u64,
        redelivered: info.num_redelivered as u64,
        active_at: active.unwrap_or_else(Timestamp::now),
    }
}
