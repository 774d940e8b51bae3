//! Figures that only the servers know, fetched at an interval and not at each scrape.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{Info, PullConsumer};
use inbox::{Connection, State, Status, Summary, Upkept};
use operate::consumers::{Backlog, Consumers, HeldPart, active_at, look_at_stream};
use servers::PostgresTarget;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use crate::admin::{Durable, Part, Sample, Samples};

/// The shortest pause.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// How long PostgreSQL may count, in all and in each statement.
const COUNT_MAX: Duration = Duration::from_secs(5);

/// How long the broker may take to tell of a durable consumer. They are all asked at once.
pub(super) const ASK_MAX: Duration = Duration::from_secs(2);

/// A pause is at least so many times as long as the look before it: counting is no one's main job.
const REST_TIMES: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(60);

/// A consumer.
pub(in crate::commands) struct Sampled {
    pub(in crate::commands) name: String,
    /// The names of its durable consumers.
    pub(in crate::commands) durables: Vec<String>,
    pub(in crate::commands) stream: String,
    pub(in crate::commands) subjects: Vec<String>,
    /// How soon a worker takes over from another one.
    pub(in crate::commands) lease: Duration,
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
    /// Under which subjects a relay publishes, if the settings say it.
    pub(in crate::commands) relay: Option<relay::Config>,
}

impl Sampler {
    /// Runs until `stop`. Servers that do not answer leave the last figures as they are, and
    /// [`Samples::taken`] says how old those are.
    pub(in crate::commands) async fn run(
        self,
        samples: watch::Sender<Samples>,
        stop: CancellationToken,
    ) {
        let (mut consumers, mut places) = (None, BTreeMap::new());
        loop {
            let began = Instant::now();
            let taken = tokio::select! {
                () = stop.cancelled() => return,
                taken = self.sample(&mut consumers, &mut places) => taken,
            };
            match taken {
                Ok(taken) => _ = samples.send_replace(taken),
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

    async fn sample(
        &self,
        consumers: &mut Option<Consumers>,
        places: &mut BTreeMap<String, Place>,
    ) -> anyhow::Result<Samples> {
        let (backlogs, held, upkept) = timeout(COUNT_MAX, self.count(consumers)).await??;
        let context = servers::jetstream_of(&self.nats);
        // A broker that is away leaves the database's figures as fresh as they are.
        let asked = self.consumers.iter().map(|it| {
            let found = backlogs.iter().find(|found| found.consumer == it.name).cloned();
            let asked = it.durables.iter().map(|durable| {
                timeout(ASK_MAX, context.get_consumer_from_stream(durable, &it.stream))
            });
            let asked = futures_util::future::join_all(asked.collect::<Vec<_>>());
            let relay = self.relay.as_ref();
            let looked = relay.map(|of| look_at_stream(of, &self.nats, &it.stream, &it.subjects));
            let held: Vec<_> = held.iter().filter(|held| held.consumer == it.name).collect();
            async move {
                // What is not seen now is at the next look.
                let looked = match looked {
                    Some(looked) => timeout(ASK_MAX, looked).await.ok().and_then(Result::ok),
                    None => None,
                };
                // Of some of them nobody knows how much is pending in all.
                let infos = asked.await.into_iter().map(|it| {
                    let consumer: Option<PullConsumer> = it.ok().and_then(Result::ok);
                    consumer.map(|it| durable(it.cached_info()))
                });
                let infos: Vec<Option<Durable>> = infos.collect();
                let all: Option<Vec<Durable>> = infos.iter().copied().collect();
                let durable = all.and_then(|it| it.into_iter().reduce(Durable::and));
                let backlog = found.unwrap_or_default();
                let Sampled { name, lease, timeout, .. } = it;
                let sample = Sample {
                    backlog,
                    durable,
                    lease: *lease,
                    timeout: *timeout,
                    ..Sample::default()
                };
                (name.clone(), sample, infos, held, looked.unwrap_or_default())
            }
        });
        let (mut consumers, now) = (BTreeMap::new(), Instant::now());
        for (name, mut sample, infos, held, looked) in futures_util::future::join_all(asked).await {
            let status = self.statuses.get(&name).map(|it| it.borrow().clone()).unwrap_or_default();
            let seen = (&status, &*infos, &*held);
            sample.parts = self.parts(&name, seen, places, now);
            sample.parts.iter_mut().for_each(|it| it.unread = it.unread.max(looked.passed_by));
            sample.warnings = looked.warnings;
            let place = places.entry(name.clone()).or_default();
            sample.undone = place.undone(&status, &sample.backlog, now);
            consumers.insert(name, sample);
        }
        Ok(Samples { taken: Some(now), consumers, upkept })
    }

    /// Says of each durable consumer for how long nothing has moved.
    fn parts(
        &self,
        name: &str,
        (status, infos, held): (&Status, &[Option<Durable>], &[&HeldPart]),
        places: &mut BTreeMap<String, Place>,
        now: Instant,
    ) -> Vec<Part> {
        let durables = self.consumers.iter().find(|it| it.name == name).map(|it| &it.durables);
        let of_whole = (status.state, status.counts);
        let part = |(index, (name, found)): (usize, (&String, &Option<Durable>))| {
            let (state, counts) = status.parts.get(index).copied().unwrap_or(of_whole);
            let place = places.entry(name.clone()).or_default();
            // A consumer that nobody has at all says so itself.
            let role = held.iter().find(|it| it.partition as usize == index);
            let is_free = infos.len() > 1
                && held.iter().any(|it| it.is_held)
                && !role.is_some_and(|it| it.is_held);
            place.free.note(is_free, (), now);
            if let Some(it) = found {
                place.unmoved.note(
                    it.pending > 0 && state == State::Active,
                    (it.delivered.0, counts),
                    now,
                );
                let moved = (it.delivered, it.ack_pending);
                place.stalled.note(it.pending + it.ack_pending > 0, moved, now);
            }
            Part {
                name: name.clone(),
                pending: found.map_or(0, |it| it.pending),
                unmoved: place.unmoved.lasts(now),
                stalled: place.stalled.lasts(now),
                free: place.free.lasts(now),
                unread: role.map_or(0, |it| it.unread),
            }
        };
        durables.into_iter().flatten().zip(infos).enumerate().map(part).collect()
    }

    async fn count(
        &self,
        consumers: &mut Option<Consumers>,
    ) -> anyhow::Result<(Vec<Backlog>, Vec<HeldPart>, Option<Upkept>)> {
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
        let (backlogs, held) = (consumers.backlogs().await?, consumers.held_parts().await?);
        Ok((backlogs, held, consumers.upkept().await?))
    }
}

/// What was seen of a consumer or a durable one, each since when.
#[derive(Default)]
struct Place {
    unmoved: Still<(u64, Summary)>,
    stalled: Still<((u64, u64), u64)>,
    free: Still<()>,
    undone: Still<Option<Uuid>>,
}

impl Place {
    /// For how long an event has waited for an attempt of which no record says why.
    fn undone(&mut self, status: &Status, backlog: &Backlog, now: Instant) -> Duration {
        let is_told = status.state != State::Active || backlog.failed > 0;
        let held_up = if is_told { &[] } else { &*status.held_up };
        let is_held_up = |id: &Uuid| held_up.iter().any(|it| it.event_id == *id);
        let event = self.undone.0.as_ref().and_then(|it| it.0).filter(is_held_up);
        let event = event.or_else(|| held_up.first().map(|it| it.event_id));
        self.undone.note(event.is_some(), event, now);
        self.undone.lasts(now)
    }
}

/// Something that has lasted since then, unchanged.
#[derive(Default)]
struct Still<T>(Option<(T, Instant)>);

impl<T: PartialEq> Still<T> {
    fn note(&mut self, lasts: bool, what: T, now: Instant) {
        let since = self.0.take().filter(|(before, _)| *before == what).map_or(now, |it| it.1);
        self.0 = lasts.then_some((what, since));
    }

    fn lasts(&self, now: Instant) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |it| now.duration_since(it.1))
    }
}

fn durable(info: &Info) -> Durable {
    Durable {
        pending: info.num_pending,
        delivered: (info.delivered.stream_sequence, info.ack_floor.stream_sequence),
        ack_pending: info.num_ack_pending as u64,
        redelivered: info.num_redelivered as u64,
        active_at: active_at(info),
    }
}
