//! Figures that only the servers know, fetched every now and then rather than at each scrape.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use inbox::{Connection, DeadLetters};
use relay::PostgresTarget;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::admin::{Sample, Samples};

const EVERY: Duration = Duration::from_secs(15);

/// Looks at the record and at the durable consumers.
pub(super) struct Sampler {
    pub(super) postgres: PostgresTarget,
    pub(super) table: outbox::Table,
    pub(super) nats: async_nats::Client,
    /// Names, each with its stream.
    pub(super) consumers: Vec<(String, String)>,
}

impl Sampler {
    /// Runs until `stop`. Servers that do not answer leave the last figures as they are: whoever
    /// runs a consumer says that they are away.
    pub(super) async fn run(self, samples: watch::Sender<Samples>, stop: CancellationToken) {
        let mut letters = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                taken = self.sample(&mut letters) => match taken {
                    Ok(taken) => drop(samples.send_replace(taken)),
                    Err(error) => {
                        let error = crate::exit::chain(&error);
                        debug!(error, "could not look at the inbox");
                        letters = None;
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    async fn sample(&self, letters: &mut Option<DeadLetters>) -> anyhow::Result<Samples> {
        let letters = match letters {
            Some(letters) => letters,
            None => {
                let (client, task) = self.postgres.connect("tailpost inbox metrics").await?;
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
            let pending = consumer.ok().map(|it| it.cached_info().num_pending);
            samples.insert(name.clone(), Sample { backlog: found.unwrap_or_default(), pending });
        }
        Ok(Samples { consumers: samples, upkept })
    }
}
