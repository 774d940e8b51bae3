//! From commit to consumer, at a steady pace.
//!
//! Open loop: a thread of its own hands out the events at their times, whatever became of those
//! before. Measured from the intended time, a stall counts for every event that it delayed; measured
//! from just before COMMIT, the producer's own statements are left out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::consumer::pull;
use async_nats::{Message, header};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::cpu;
use crate::process::Relay;
use crate::report::{Latency, Quantiles};
use crate::stage::{Servers, Stage, event};

const EVENTS_PER_SECOND: u32 = 500;

/// Connections of the producer, taking turns: one slow commit must not hold up the next.
const PRODUCERS: u32 = 16;

const ARRIVAL_MAX: Duration = Duration::from_secs(30);

/// An event on its way.
struct Sent {
    id: Uuid,
    /// `None` for the first event of each connection, which is slow for reasons of its own.
    intended: Option<Instant>,
    committing: Instant,
}

/// Produces for `time`; the events must all arrive, and once.
pub(crate) async fn measure(servers: &Servers, time: Duration) -> Result<Latency> {
    let stage = Stage::set_up(servers, "latency").await?;
    let relay = Relay::start(&stage.environment).await?;
    let events = EVENTS_PER_SECOND * u32::try_from(time.as_secs())?;
    let consumer = tokio::spawn(consume(arrivals(&stage).await?, events + PRODUCERS));

    let mut sent = Vec::new();
    let mut clients = Vec::new();
    for n in 0..PRODUCERS {
        let mut client = servers.postgres.client(&stage.name).await?;
        let (id, committing) = commit(&mut client, n).await?;
        sent.push(Sent { id, intended: None, committing });
        clients.push(client);
    }
    let primed = Instant::now();
    while stage.messages(&stage.name).await? < u64::from(PRODUCERS) {
        ensure!(primed.elapsed() < ARRIVAL_MAX, "the relay does not publish");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let (used, started) = (cpu::of_process(relay.pid())?, Instant::now());
    for producer in try_join_all(produce(clients, events)).await? {
        sent.extend(producer?);
    }
    let used = cpu::of_process(relay.pid())?.saturating_sub(used);
    let relay_cores = used.as_secs_f64() / started.elapsed().as_secs_f64();
    let arrived = consumer.await??;
    relay.stop().await?;
    let (from_schedule, from_commit) = histograms(&sent, &arrived)?;
    Ok(Latency {
        events_per_second: EVENTS_PER_SECOND,
        events,
        relay_cores,
        from_commit: Quantiles::of(&from_commit),
        from_schedule: Quantiles::of(&from_schedule),
    })
}

async fn arrivals(stage: &Stage<'_>) -> Result<pull::Ordered> {
    let stream = stage.jetstream.get_stream(&stage.name).await?;
    let consumer = stream.create_consumer(pull::OrderedConfig::default()).await?;
    consumer.messages().await.context("consume the stream")
}

/// Notes when each event arrived, by its id.
async fn consume(mut messages: pull::Ordered, events: u32) -> Result<HashMap<Uuid, Instant>> {
    let mut arrived = HashMap::with_capacity(events as usize);
    while arrived.len() < events as usize {
        let next = timeout(ARRIVAL_MAX, messages.next()).await;
        let next = next.with_context(|| format!("lost: {} of {events} arrived", arrived.len()))?;
        let message = next.context("the consumer ended")??;
        let id = event_id(&message).context("a message without an id")?;
        ensure!(arrived.insert(id, Instant::now()).is_none(), "event {id} arrived twice");
    }
    Ok(arrived)
}

fn event_id(message: &Message) -> Option<Uuid> {
    message.headers.as_ref()?.get(header::NATS_MESSAGE_ID)?.as_str().parse().ok()
}

/// Starts the producers and the thread that paces them.
fn produce(clients: Vec<Client>, events: u32) -> Vec<JoinHandle<Result<Vec<Sent>>>> {
    let (paces, producers): (Vec<_>, Vec<_>) = clients
        .into_iter()
        .map(|client| {
            // Holds the whole schedule: the pace never waits for a producer.
            let (pace, schedule) = mpsc::channel(events as usize);
            (pace, tokio::spawn(follow(client, schedule)))
        })
        .unzip();
    std::thread::spawn(move || {
        let started = Instant::now();
        for (n, pace) in (0..events).zip(paces.iter().cycle()) {
            let intended = started + Duration::from_secs(1) * n / EVENTS_PER_SECOND;
            // The runtime's timers count in milliseconds; a sleeping thread is more exact.
            std::thread::sleep(intended.saturating_duration_since(Instant::now()));
            if pace.try_send((PRODUCERS + n, intended)).is_err() {
                return; // the producer failed and says why
            }
        }
    });
    producers
}

async fn follow(
    mut client: Client,
    mut schedule: mpsc::Receiver<(u32, Instant)>,
) -> Result<Vec<Sent>> {
    let mut sent = Vec::new();
    while let Some((n, intended)) = schedule.recv().await {
        let (id, committing) = commit(&mut client, n).await?;
        sent.push(Sent { id, intended: Some(intended), committing });
    }
    Ok(sent)
}

async fn commit(client: &mut Client, n: u32) -> Result<(Uuid, Instant)> {
    let event = event(n)?;
    let transaction = client.transaction().await?;
    outbox::enqueue(&transaction, &event).await?;
    let committing = Instant::now();
    transaction.commit().await?;
    Ok((event.id, committing))
}

/// Microseconds, since the intended time and since just before COMMIT.
fn histograms(
    sent: &[Sent],
    arrived: &HashMap<Uuid, Instant>,
) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let (mut from_schedule, mut from_commit) = (Histogram::new(3)?, Histogram::new(3)?);
    for Sent { id, intended, committing } in sent {
        let arrival = *arrived.get(id).with_context(|| format!("lost: event {id}"))?;
        let Some(intended) = *intended else { continue };
        let micros = |since: Instant| u64::try_from((arrival - since).as_micros());
        from_schedule.record(micros(intended)?)?;
        from_commit.record(micros(*committing)?)?;
    }
    Ok((from_schedule, from_commit))
}
