//! Rows that wait are drained, by the relay and by its limits.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use uuid::Uuid;

use crate::bench_env::BenchEnv;
use crate::cpu;
use crate::limits;
use crate::load::{Shape, load};
use crate::measured::{Drain, Round};
use crate::process::Relay;
use crate::servers::Servers;
use crate::variant::{LEAN, ROW, Variant};

/// How exact the times are. Asking is load, so it is done this often near the end only.
const POLL: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_millis(200);

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
    variant: Variant,
    number: u32,
) -> Result<Round> {
    let env = BenchEnv::set_up_as(servers, &format!("round{number}"), variant).await?;
    if shape.payload_type != Shape::DEFAULT.payload_type {
        env.keep_payloads_as(shape.payload_type).await?;
    }
    let slots = env.add_slots(["log", "both"]).await?;
    load(&env, shape).await?;
    if shape.before_the_slot {
        env.renew_slot().await?;
    }
    let end = env.end_of_log().await?;
    let mut phases = PHASES;
    phases.rotate_left(number as usize % PHASES.len());
    let (mut log, mut publisher, mut both, mut relay) = (None, None, None, None);
    for phase in phases {
        match phase {
            Phase::Log => log = Some(limits::log(&env, &slots[0], &end, shape.rows).await?),
            Phase::Publisher => publisher = Some(limits::publisher(&env, shape).await?),
            Phase::Both => both = Some(limits::both(&env, &slots[1], &end, shape).await?),
            Phase::Relay => relay = Some(self::relay(&env, shape.rows, variant.mark).await?),
        }
    }
    env.tear_down(&slots).await?;
    let every = "every phase ran";
    Ok(Round {
        log: log.context(every)?,
        publisher: publisher.context(every)?,
        both: both.context(every)?,
        relay: relay.context(every)?,
    })
}

/// From the start of the process until every row is marked.
pub(crate) async fn relay(env: &BenchEnv<'_>, rows: u32, mark: &str) -> Result<Drain> {
    let sql = "SELECT id FROM outbox_events ORDER BY seq DESC LIMIT 1";
    let last: Uuid = env.client.query_one(sql, &[]).await?.get(0);
    let log = log_written(env).await?;
    let meter = env.servers.meter()?;
    let deadline = meter.started + Duration::from_secs(60) + Duration::from_millis(rows.into());
    let relay = Relay::start(&env.variables)?;
    // When the first events were seen in the stream, and how many they were.
    let mut first = None;
    loop {
        let stored = env.stored().await?;
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
    while !is_marked(env, mark, last).await? {
        wait(&relay, deadline, POLL, || "the last row is not marked".to_owned()).await?;
    }
    // Marks come in about the order of the rows: only now is counting worth its load.
    let drain = loop {
        let marked = meter.cost(meter.started.elapsed().as_secs_f64(), rows)?;
        let used = cpu::of_process(relay.pid())?;
        let written = log_written(env).await? - log;
        let unmarked = count_unmarked(env, mark).await?;
        if unmarked == 0 {
            break Drain {
                stored_seconds,
                stored_per_second: f64::from(rows) / stored_seconds,
                flow_per_second,
                marked,
                wal_bytes_per_event: written as f64 / f64::from(rows),
                relay_us_per_event: used.as_secs_f64() * 1e6 / f64::from(rows),
                relay_peak_resident_bytes: cpu::peak_resident_bytes(relay.pid())?,
            };
        }
        wait(&relay, deadline, POLL, || format!("{unmarked} rows are not marked")).await?;
    };
    relay.stop().await?;
    check(env, rows, mark).await?;
    Ok(drain)
}

/// Half of the time that the rest will take at this pace, once there is one. The first events are
/// the slowest: at their pace a small backlog would be looked at when it is long gone.
fn pause(elapsed: Duration, stored: u64, rows: u32) -> Duration {
    if stored == 0 {
        return POLL;
    }
    let rest = u64::from(rows).saturating_sub(stored) as f64;
    elapsed.mul_f64(rest / (2 * stored) as f64).clamp(POLL, POLL_MAX.min(elapsed / 4).max(POLL))
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

async fn log_written(env: &BenchEnv<'_>) -> Result<i64> {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    Ok(env.client.query_one(sql, &[]).await.context("ask for the log's end")?.get(0))
}

/// The rows that are not marked. What a watermark says only the view knows.
fn unmarked(mark: &str) -> &'static str {
    match mark {
        LEAN => "FROM outbox_status WHERE status <> 'PUBLISHED'",
        _ => "FROM outbox_events WHERE published_at IS NULL",
    }
}

async fn is_marked(env: &BenchEnv<'_>, mark: &str, id: Uuid) -> Result<bool> {
    let sql = format!("SELECT NOT EXISTS (SELECT {} AND id = $1)", unmarked(mark));
    Ok(env.client.query_one(&sql, &[&id]).await.context("look at the last row")?.get(0))
}

async fn count_unmarked(env: &BenchEnv<'_>, mark: &str) -> Result<i64> {
    let sql = format!("SELECT count(*) {}", unmarked(mark));
    Ok(env.client.query_one(&sql, &[]).await.context("count unmarked rows")?.get(0))
}

/// Every row has a message of its own, and the stream has no other. Where rows do not name their
/// messages (nor those few of a large backlog whose marks were too many to wait, and that the sweeper
/// marked by a watermark): there are as many messages as rows, and the stream takes none twice.
async fn check(env: &BenchEnv<'_>, rows: u32, mark: &str) -> Result<()> {
    let stored = env.stored().await?;
    if mark != ROW {
        let all = u64::from(rows);
        ensure!(stored == all, "lost or doubled: {rows} rows, {stored} messages in the stream");
        return Ok(());
    }
    let sql = "SELECT sum(places)::bigint, sum(named)::bigint, sum(marked)::bigint
               FROM (SELECT count(DISTINCT stream_seq) AS places, count(stream_seq) AS named,
                            count(*) AS marked
                     FROM outbox_events WHERE published_at IS NOT NULL AND stream = ANY ($1)
                     GROUP BY stream) AS streams";
    let row = env.client.query_one(sql, &[&env.streams()]).await?;
    let [places, named, marked] = [0, 1, 2].map(|at| row.get::<_, Option<i64>>(at));
    ensure!(
        stored == u64::from(rows) && marked == Some(rows.into()) && places == named,
        "lost or doubled: {marked:?} of {rows} rows are marked, {named:?} name a message, {places:?} \
         one of their own; {stored} messages in the stream"
    );
    Ok(())
}
