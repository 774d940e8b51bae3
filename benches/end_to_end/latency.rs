//! From commit to acknowledgement and to consumer, at a steady pace.
//!
//! Open loop: a thread of its own hands out the events at their times, whatever became of those
//! before. Measured from the intended time, a stall counts for every event that it delayed; measured
//! from just before COMMIT, the producer's own statements are left out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::acks::Acks;
use crate::arrivals::{self, ARRIVAL_MAX, Arrival};
use crate::bare::Bare;
use crate::bench_env::BenchEnv;
use crate::cpu;
use crate::drain;
use crate::load::{Shape, load};
use crate::measured::{Latency, Quantiles};
use crate::pace::{Due, Pace};
use crate::process::{self, Relay};
use crate::servers::Servers;
use crate::turns::{self, InTurns};
use crate::variant::ROW;

/// Connections of the producer, taking turns: one slow commit must not hold up the next.
const PRODUCERS: u32 = 16;

/// What is done meanwhile with rows that were published before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    None,
    /// They are published again, as fast as the relay does that.
    Replay,
    /// They are deleted.
    Retention,
}

/// A transaction on its way.
struct Sent {
    ids: Vec<Uuid>,
    /// `None` for the first of each connection, which is slow for reasons of its own.
    intended: Option<Instant>,
    committing: Instant,
    committed: Instant,
}

/// The events must all arrive, and once.
pub(crate) async fn measure(servers: &Servers, pace: Pace) -> Result<Latency> {
    Ok(measure_beside(servers, pace, 0, Work::None).await?.latency)
}

/// Latency beside other work.
pub(crate) struct Beside {
    pub(crate) latency: Latency,
    /// With a replay, which is paused every other turn.
    pub(crate) turns: Option<InTurns>,
    /// Rows worked on.
    pub(crate) per_second: f64,
}

/// The same with `rows` that were published before, beside work on them that has to outlast it.
pub(crate) async fn measure_beside(
    servers: &Servers,
    pace: Pace,
    rows: u32,
    work: Work,
) -> Result<Beside> {
    let env = set_up(servers, rows, work).await?;
    let old = env.messages(&env.name).await?;
    let relay = Relay::start(&env.variables)?;
    let (stop, stopped) = oneshot::channel();
    let acks = Acks::listen(&servers.broker.client().await?, stopped).await?;
    let consumer = arrivals::consumer_of_new(&env.jetstream, &env.name).await?;
    let arrived = arrivals::collect(consumer, pace.events() + PRODUCERS);
    let (clients, mut sent) = prime(&env, pace, old).await?;
    match work {
        Work::None => {}
        Work::Replay => replay(&env).await.context("replay")?,
        Work::Retention => wait_for_retention(&env, rows).await?,
    }
    let before = worked(&env, rows, work).await?;
    let meter = servers.meter()?;
    let used = cpu::of_process(relay.pid())?;
    let schedules = clients.into_iter().zip(pace.start(PRODUCERS));
    let producers = schedules.map(|(client, schedule)| tokio::spawn(produce(client, schedule)));
    let produced = try_join_all(producers);
    let turns = async {
        let lasting = Duration::from_secs(u64::from(pace.seconds));
        match work {
            Work::Replay => turns::take(&env, lasting).await.map(Some),
            Work::None | Work::Retention => Ok(None),
        }
    };
    let (produced, turns) = tokio::join!(produced, turns);
    for producer in produced? {
        sent.extend(producer?);
    }
    let arrived = arrived.await??;
    let used = cpu::of_process(relay.pid())?.saturating_sub(used).as_secs_f64();
    let cost = meter.cost(meter.started.elapsed().as_secs_f64(), pace.events())?;
    let relay_peak_resident_bytes = cpu::peak_resident_bytes(relay.pid())?;
    let after = worked(&env, rows, work).await?;
    let worked = after - before;
    let is_under_way = worked > 0 && after < i64::from(rows);
    ensure!(
        is_under_way || work == Work::None,
        "{work:?} was at {before}, then at {after} of {rows}"
    );
    let per_second = worked as f64 / cost.seconds;
    relay.stop().await?;
    ensure!(stop.send(()).is_ok(), "nobody listened to the acknowledgements");
    let bare = bare(&env, pace).await.context("publish without a relay")?;
    env.tear_down(&[]).await?;

    let acks = acks.await?;
    let times = times(&sent, &arrived, &acks)?;
    let turns = match turns? {
        Some(turns) => Some(InTurns::of(&turns, &acked(&sent, &arrived, &acks)?)?),
        None => None,
    };
    let latency = Latency {
        relay_cores: used / cost.seconds,
        relay_us_per_event: used * 1e6 / f64::from(pace.events()),
        relay_peak_resident_bytes,
        cost,
        committed: times.committed.quantiles(),
        acked: times.acked.quantiles(),
        consumed: times.consumed.quantiles(),
        commit_to_ack: times.commit_to_ack.quantiles(),
        commit_to_consumer: times.commit_to_consumer.quantiles(),
        acks_missed: times.acks_missed,
        bare,
        pace,
    };
    Ok(Beside { latency, turns, per_second })
}

/// The producers' connections, and the first transaction of each, which is slow for reasons of its
/// own. All of these are in the stream, behind the `old` messages.
async fn prime(env: &BenchEnv<'_>, pace: Pace, old: u64) -> Result<(Vec<Client>, Vec<Sent>)> {
    let (mut sent, mut clients) = (Vec::new(), Vec::new());
    for lane in 0..PRODUCERS {
        let mut client = env.servers.postgres.client(&env.name).await?;
        let n = pace.events() + lane;
        let due = Due { events: n..n + 1, at: Instant::now() };
        sent.push(Sent { intended: None, ..commit(&mut client, due).await? });
        clients.push(client);
    }
    let primed = Instant::now();
    while env.messages(&env.name).await? < old + u64::from(PRODUCERS) {
        ensure!(primed.elapsed() < ARRIVAL_MAX, "the relay does not publish");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok((clients, sent))
}

async fn set_up(servers: &Servers, rows: u32, work: Work) -> Result<BenchEnv<'_>> {
    let mut env = BenchEnv::set_up(servers, "latency").await?;
    if rows > 0 {
        load(&env, Shape { rows, ..Shape::DEFAULT }).await?;
        drain::relay(&env, rows, ROW).await?;
    }
    if work == Work::Retention {
        env.forget_at_once().await?;
    }
    Ok(env)
}

/// Asks for a replay of everything, and waits until it stores copies.
async fn replay(env: &BenchEnv<'_>) -> Result<()> {
    let args = ["replay", "--all", "--source", "table", "--execute", "--why", "bench", "--detach"];
    process::run(&env.variables, &args, ARRIVAL_MAX).await?;
    turns::wait_for_copies(env, 0).await
}

/// The first pass may begin before the slot's watermark allows it to delete anything.
async fn wait_for_retention(env: &BenchEnv<'_>, rows: u32) -> Result<()> {
    let asked = Instant::now();
    while worked(env, rows, Work::Retention).await? == 0 {
        ensure!(asked.elapsed() < ARRIVAL_MAX, "the relay deletes nothing");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// How many copies are stored, or how many of the first rows are gone.
async fn worked(env: &BenchEnv<'_>, rows: u32, work: Work) -> Result<i64> {
    let sql = match work {
        Work::None => return Ok(0),
        Work::Replay => return turns::copies(env).await,
        Work::Retention => "SELECT $1::bigint - count(*) FROM outbox_events WHERE seq <= $1",
    };
    let row = env.client.query_one(sql, &[&i64::from(rows)]).await.context("look at the work")?;
    Ok(row.get(0))
}

async fn produce(mut client: Client, mut schedule: mpsc::Receiver<Due>) -> Result<Vec<Sent>> {
    let mut sent = Vec::new();
    while let Some(due) = schedule.recv().await {
        sent.push(commit(&mut client, due).await?);
    }
    Ok(sent)
}

async fn commit(client: &mut Client, due: Due) -> Result<Sent> {
    let events: Result<Vec<_>, _> = due.events.map(|n| Shape::DEFAULT.event(n)).collect();
    let events = events?;
    let transaction = client.transaction().await?;
    outbox::enqueue_all(&transaction, &events).await?;
    let committing = Instant::now();
    transaction.commit().await?;
    let ids = events.iter().map(|it| it.id).collect();
    Ok(Sent { ids, intended: Some(due.at), committing, committed: Instant::now() })
}

/// The same schedule without a database and a relay: from the intended time to the consumer.
async fn bare(env: &BenchEnv<'_>, pace: Pace) -> Result<Quantiles> {
    let mut bare = Bare::new(env, pace.events(), Shape::DEFAULT.payload_bytes).await?;
    let consumer = arrivals::consumer(&env.jetstream, &bare.stream).await?;
    let arrived = arrivals::collect(consumer, pace.events());
    let mut times = Times::new()?;
    let mut schedules = pace.start(1);
    let sent = bare.follow(&mut schedules[0]).await?;
    let arrived = arrived.await??;
    for (id, intended) in sent {
        times.record(find(&arrived, id)?.at, intended)?;
    }
    bare.remove(env).await?;
    Ok(times.quantiles())
}

/// Microseconds.
struct Times(Histogram<u64>);

impl Times {
    fn new() -> Result<Self> {
        Ok(Self(Histogram::new(3)?))
    }

    fn record(&mut self, at: Instant, since: Instant) -> Result<()> {
        Ok(self.0.record(u64::try_from((at - since).as_micros())?)?)
    }

    fn quantiles(&self) -> Quantiles {
        Quantiles::of(&self.0)
    }
}

/// Since the intended time, unless the name says since when.
struct AllTimes {
    committed: Times,
    acked: Times,
    consumed: Times,
    commit_to_ack: Times,
    commit_to_consumer: Times,
    acks_missed: u32,
}

/// When each event's COMMIT began, and when its acknowledgement was overheard.
fn acked(
    sent: &[Sent],
    arrived: &HashMap<Uuid, Arrival>,
    acks: &Acks,
) -> Result<Vec<(Instant, Instant)>> {
    let mut acked = Vec::new();
    for (it, id) in sent.iter().flat_map(|it| it.ids.iter().map(move |id| (it, id))) {
        if let Some(at) = acks.at(find(arrived, *id)?.seq) {
            acked.push((it.committing, at));
        }
    }
    Ok(acked)
}

fn times(sent: &[Sent], arrived: &HashMap<Uuid, Arrival>, acks: &Acks) -> Result<AllTimes> {
    let mut times = AllTimes {
        committed: Times::new()?,
        acked: Times::new()?,
        consumed: Times::new()?,
        commit_to_ack: Times::new()?,
        commit_to_consumer: Times::new()?,
        acks_missed: 0,
    };
    for Sent { ids, intended, committing, committed } in sent {
        let Some(intended) = *intended else { continue };
        for id in ids {
            let arrival = find(arrived, *id)?;
            times.committed.record(*committed, intended)?;
            times.consumed.record(arrival.at, intended)?;
            times.commit_to_consumer.record(arrival.at, *committing)?;
            match acks.at(arrival.seq) {
                Some(acked) => {
                    times.acked.record(acked, intended)?;
                    times.commit_to_ack.record(acked, *committing)?;
                }
                None => times.acks_missed += 1,
            }
        }
    }
    Ok(times)
}

fn find(arrived: &HashMap<Uuid, Arrival>, id: Uuid) -> Result<Arrival> {
    arrived.get(&id).copied().with_context(|| format!("lost: event {id}"))
}
