//! How long until a standby publishes after the active relay was killed?

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::Bench;
use super::answer::Answer;
use super::chart::Chart;
use super::traffic::{Traffic, Watch};
use crate::bench_env::BenchEnv;
use crate::process::Relay;
use crate::servers::{Keeping, Servers};

const TAKEOVERS: u32 = 6;
const QUICK_TAKEOVERS: u32 = 2;

const TIME_MAX: Duration = Duration::from_secs(180);
const STANDBY_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);

/// Milliseconds since the kill.
#[derive(Debug, Serialize)]
struct Takeover {
    /// The first event that was committed after it is at the consumer.
    published: f64,
    /// The limit: PostgreSQL has noticed, and would give the slot to somebody else.
    slot_free: f64,
}

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let times = if bench.quick { QUICK_TAKEOVERS } else { TAKEOVERS };
    let measured = bench.measure("takeover after kill -9", TIME_MAX, measure(times)).await;
    let takeovers = measured.unwrap_or_default();
    Answer {
        title: "How long until a standby publishes after the active relay was killed?",
        points: takeovers.iter().map(|it| json!(it)).collect(),
        charts: vec![Chart::repeated(
            "kill -9 to first message, ms",
            &takeovers,
            &[("slot free", |it| it.slot_free), ("published", |it| it.published)],
        )],
    }
}

async fn measure(times: u32) -> Result<Vec<Takeover>> {
    let servers = Servers::start(Keeping::DEFAULT).await?;
    let env = BenchEnv::set_up(&servers, "takeover").await?;
    let mut active = Relay::start(&env.variables)?;
    let traffic = Traffic::start(&env).await?;
    let mut watch = Watch::start(&env, &traffic).await?;
    let mut takeovers = Vec::new();
    for _ in 0..times {
        watch.committed_after(Instant::now()).await.context("before the kill")?;
        let standby = standby(&env).await?;
        let reader = reader(&env).await?.context("nobody reads the slot")?;
        let killed = active.kill().await?;
        while reader_is(&env, reader).await? {
            ensure!(killed.elapsed() < STANDBY_MAX, "the slot stays with the killed relay");
            tokio::time::sleep(POLL).await;
        }
        let slot_free = killed.elapsed();
        let published = watch.committed_after(killed).await.context("after the kill")? - killed;
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        takeovers.push(Takeover { published: millis(published), slot_free: millis(slot_free) });
        active = standby;
    }
    watch.saw_all(traffic.stop().await?).await?;
    active.stop().await?;
    Ok(takeovers)
}

/// Starts a relay beside the active one; returns when it waits for the slot.
async fn standby(env: &BenchEnv<'_>) -> Result<Relay> {
    let started = Instant::now();
    let now = env.client.query_one("SELECT clock_timestamp()::text", &[]).await?;
    let now: String = now.get(0);
    let relay = Relay::start(&env.variables)?;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
               AND application_name = 'tailpost standby' AND state = 'idle' AND query <> ''
               AND backend_start > $1::text::timestamptz";
    while env.client.query_one(sql, &[&now]).await?.get::<_, i64>(0) == 0 {
        relay.check()?;
        ensure!(started.elapsed() < STANDBY_MAX, "no relay waits for the slot");
        tokio::time::sleep(POLL).await;
    }
    Ok(relay)
}

/// The process that reads the slot.
async fn reader(env: &BenchEnv<'_>) -> Result<Option<i32>> {
    let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    let row = env.client.query_one(sql, &[&env.name]).await;
    Ok(row.context("ask who reads the slot")?.get(0))
}

async fn reader_is(env: &BenchEnv<'_>, pid: i32) -> Result<bool> {
    Ok(reader(env).await? == Some(pid))
}
