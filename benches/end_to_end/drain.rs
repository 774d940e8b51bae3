//! Rows that wait are drained, by the relay and by its limits.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use uuid::Uuid;

use crate::cpu;
use crate::limits;
use crate::load::{Shape, load};
use crate::process::Relay;
use crate::report::{Drain, Round};
use crate::servers::Servers;
use crate::stage::Stage;

/// How exact the times are. Asking is load, so it is done this often near the end only.
const POLL: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_millis(200);

/// A relay that is told so in its environment.
pub(crate) type Setting = (&'static str, &'static str);

#[derive(Debug, Clone, Copy)]
enum Phase {
    Log,
    Publisher,
    Both,
    Relay,
}

const PHASES: [Phase; 4] = [Phase::Log, Phase::Publisher, Phase::Both, Phase::Relay];

/// Loads the same rows for all, and drains them four times. With `number` the order changes, so that
/// none always finds the machine warm.
pub(crate) async fn round(
    servers: &Servers,
    shape: Shape,
    setting: Option<Setting>,
    shards: u32,
    number: u32,
) -> Result<Round> {
    let mut stage = Stage::set_up_shards(servers, &format!("round{number}"), shards).await?;
    stage.environment.extend(setting.map(|(name, value)| (name, value.to_owned())));
    let slots = stage.add_slots(["log", "both"]).await?;
    load(&stage, shape).await?;
    let end = stage.end_of_log().await?;
    let mut phases = PHASES;
    phases.rotate_left(number as usize % PHASES.len());
    let (mut log, mut publisher, mut both, mut relay) = (None, None, None, None);
    for phase in phases {
        match phase {
            Phase::Log => log = Some(limits::log(&stage, &slots[0], &end, shape.rows).await?),
            Phase::Publisher => publisher = Some(limits::publisher(&stage, shape).await?),
            Phase::Both => both = Some(limits::both(&stage, &slots[1], &end, shape).await?),
            Phase::Relay => relay = Some(self::relay(&stage, shape.rows).await?),
        }
    }
    stage.tear_down(&slots).await?;
    let every = "every phase ran";
    Ok(Round {
        log: log.context(every)?,
        publisher: publisher.context(every)?,
        both: both.context(every)?,
        relay: relay.context(every)?,
    })
}

/// From the start of the process until every row is marked.
async fn relay(stage: &Stage<'_>, rows: u32) -> Result<Drain> {
    let sql = "SELECT id FROM outbox_events ORDER BY seq DESC LIMIT 1";
    let last: Uuid = stage.client.query_one(sql, &[]).await?.get(0);
    let meter = stage.servers.meter()?;
    let deadline = meter.started + Duration::from_secs(60) + Duration::from_millis(rows.into());
    let relay = Relay::start(&stage.environment).await?;
    // When the first events were seen in the stream, and how many they were.
    let mut first = None;
    loop {
        let stored = stage.stored().await?;
        if first.is_none() && stored > 0 {
            first = Some((meter.started.elapsed().as_secs_f64(), stored));
        }
        if stored >= u64::from(rows) {
            break;
        }
        let pause = pause(meter.started.elapsed(), stored, rows);
        let state = || format!("the stream has {stored} of {rows} events");
        wait(&relay, deadline, pause, state).await?;
    }
    let stored_seconds = meter.started.elapsed().as_secs_f64();
    let flow_per_second = first.map_or(0.0, |(seconds, stored)| {
        u64::from(rows).saturating_sub(stored) as f64 / (stored_seconds - seconds).max(f64::EPSILON)
    });
    while !is_marked(stage, last).await? {
        wait(&relay, deadline, POLL, || "the last row is not marked".to_owned()).await?;
    }
    // Marks come in about the order of the rows: only now is counting worth its load.
    let drain = loop {
        let marked = meter.cost(meter.started.elapsed().as_secs_f64(), rows)?;
        let used = cpu::of_process(relay.pid())?;
        let unmarked = count_unmarked(stage).await?;
        if unmarked == 0 {
            break Drain {
                stored_seconds,
                stored_per_second: f64::from(rows) / stored_seconds,
                flow_per_second,
                marked,
                relay_us_per_event: used.as_secs_f64() * 1e6 / f64::from(rows),
                relay_peak_resident_bytes: cpu::peak_resident_bytes(relay.pid())?,
            };
        }
        wait(&relay, deadline, POLL, || format!("{unmarked} rows are not marked")).await?;
    };
    relay.stop().await?;
    check(stage, rows).await?;
    Ok(drain)
}

/// Half of the time that the rest will take at this pace, once there is one.
fn pause(elapsed: Duration, stored: u64, rows: u32) -> Duration {
    if stored == 0 {
        return POLL;
    }
    let rest = u64::from(rows).saturating_sub(stored) as f64;
    elapsed.mul_f64(rest / (2 * stored) as f64).clamp(POLL, POLL_MAX)
}

async fn wait(
    relay: &Relay,
    deadline: Instant,
    pause: Duration,
    state: impl FnOnce() -> String,
) -> Result<()> {
    relay.check()?;
    if Instant::now() > deadline {
        bail!("lost events, or far too slow: {}", state());
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

async fn is_marked(stage: &Stage<'_>, id: Uuid) -> Result<bool> {
    let sql = "SELECT published_at IS NOT NULL FROM outbox_events WHERE id = $1";
    Ok(stage.client.query_one(sql, &[&id]).await.context("look at the last row")?.get(0))
}

async fn count_unmarked(stage: &Stage<'_>) -> Result<i64> {
    let sql = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
    Ok(stage.client.query_one(sql, &[]).await.context("count unmarked rows")?.get(0))
}

/// Every row has a message of its own, and the stream has no other.
async fn check(stage: &Stage<'_>, rows: u32) -> Result<()> {
    let sql = "SELECT sum(places)::bigint, sum(last)::bigint
               FROM (SELECT count(DISTINCT stream_seq) AS places, max(stream_seq) AS last
                     FROM outbox_events WHERE published_at IS NOT NULL AND stream = ANY ($1)
                     GROUP BY stream) AS streams";
    let row = stage.client.query_one(sql, &[&stage.streams()]).await?;
    let (distinct, last): (Option<i64>, Option<i64>) = (row.get(0), row.get(1));
    let stored = stage.stored().await?;
    ensure!(
        stored == u64::from(rows) && distinct == Some(rows.into()) && last == Some(rows.into()),
        "lost or doubled: {rows} rows, {distinct:?} messages named by them, of {last:?} by sequence, \
         {stored} messages in the stream"
    );
    Ok(())
}
