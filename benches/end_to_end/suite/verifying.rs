//! How fast does `verify` compare table and stream?

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;

use super::Bench;
use super::answer::Answer;
use super::chart::{Chart, Scale};
use crate::arrivals::{self, ARRIVAL_MAX};
use crate::bench_env::BenchEnv;
use crate::drain;
use crate::figures::median;
use crate::load::{Shape, load};
use crate::process::{self, Relay};
use crate::servers::{Keeping, Servers};
use crate::variant::ROW;

const ROUNDS: u32 = 3;
const ROWS: u32 = 1_000_000;
const LARGE_ROWS: u32 = 10_000_000;
const QUICK_ROWS: u32 = 20_000;

/// Rows a second that would be stuck.
const SLOWEST: u32 = 2_000;

const MIB: f64 = (1 << 20) as f64;

#[derive(Debug, Clone, Serialize)]
struct Round {
    rows: u32,
    copy_per_second: f64,
    consumer_per_second: f64,
    verify_per_second: f64,
    /// To the slower of the two.
    ratio: f64,
    us_per_event: f64,
    peak_resident_mib: f64,
}

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let rows = match (bench.quick, bench.large) {
        (true, _) => QUICK_ROWS,
        (false, true) => LARGE_ROWS,
        (false, false) => ROWS,
    };
    let rounds = if bench.quick { 1 } else { ROUNDS };
    let limit = Duration::from_secs(120) + Duration::from_secs((rows / SLOWEST * rounds).into());
    let measured = bench.measure("table against stream", limit, measure(rows, rounds)).await;
    let rounds = measured.unwrap_or_default();
    let row = |label: &str, of: fn(&Round) -> f64| {
        (label.to_owned(), vec![median(rounds.iter().map(of).collect())])
    };
    let chart = |title, decimals, rows| Chart {
        title,
        series: &["median"],
        scale: Scale::Linear,
        decimals,
        rows,
    };
    let charts = if rounds.is_empty() {
        Vec::new()
    } else {
        vec![
            chart(
                "events/s",
                0,
                vec![
                    row("COPY of the table", |it| it.copy_per_second),
                    row("ordered consumer of the stream", |it| it.consumer_per_second),
                    row("tailpost verify", |it| it.verify_per_second),
                ],
            ),
            chart("as a part of the slower", 2, vec![row("tailpost verify", |it| it.ratio)]),
            chart("CPU, us/event", 1, vec![row("tailpost verify", |it| it.us_per_event)]),
            chart("peak RSS, MiB", 1, vec![row("tailpost verify", |it| it.peak_resident_mib)]),
        ]
    };
    Answer {
        title: "How fast does verify compare table and stream?",
        points: rounds.iter().map(|it| json!(it)).collect(),
        charts,
    }
}

async fn measure(rows: u32, rounds: u32) -> Result<Vec<Round>> {
    let servers = Servers::start(Keeping::DEFAULT).await?;
    let env = BenchEnv::set_up(&servers, "verify").await?;
    load(&env, Shape { rows, ..Shape::DEFAULT }).await?;
    drain::relay(&env, rows, ROW).await?;
    env.client.batch_execute("VACUUM ANALYZE outbox_events").await?;
    // It waits until the log is read up to where the table was.
    let relay = Relay::start(&env.variables)?;
    let mut measured = Vec::new();
    for number in 0..rounds {
        let (mut copied, mut consumed, mut verified) = (0.0, 0.0, None);
        for turn in 0..3 {
            match (turn + number) % 3 {
                0 => copied = copy(&env).await?,
                1 => consumed = consume(&env, rows).await?,
                _ => verified = Some(verify(&env, rows).await?),
            }
        }
        let verified = verified.context("every turn was taken")?;
        let per_second = |seconds: f64| f64::from(rows) / seconds;
        measured.push(Round {
            rows,
            copy_per_second: per_second(copied),
            consumer_per_second: per_second(consumed),
            verify_per_second: per_second(verified.seconds),
            ratio: copied.max(consumed) / verified.seconds,
            us_per_event: verified.used.as_secs_f64() * 1e6 / f64::from(rows),
            peak_resident_mib: verified.peak_resident_bytes as f64 / MIB,
        });
    }
    relay.stop().await?;
    env.tear_down(&[]).await?;
    Ok(measured)
}

/// Every column, to nothing.
async fn copy(env: &BenchEnv<'_>) -> Result<f64> {
    let client = env.servers.postgres.client(&env.name).await?;
    let started = Instant::now();
    let rows = client.copy_out("COPY outbox_events TO STDOUT (FORMAT binary)").await?;
    let bytes = rows.try_fold(0, async |sum, it| Ok(sum + it.len())).await?;
    ensure!(bytes > 0, "the table is empty");
    Ok(started.elapsed().as_secs_f64())
}

/// Every message, to nothing.
async fn consume(env: &BenchEnv<'_>, rows: u32) -> Result<f64> {
    let mut messages = arrivals::consumer(&env.jetstream, &env.name).await?;
    let started = Instant::now();
    for _ in 0..rows {
        let next = timeout(ARRIVAL_MAX, messages.next()).await.context("nothing arrives")?;
        next.context("the consumer ended")??;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn verify(env: &BenchEnv<'_>, rows: u32) -> Result<process::Ran> {
    let limit = Duration::from_secs(60) + Duration::from_secs((rows / SLOWEST).into());
    let ran = process::run(&env.variables, &["verify", "--json"], limit).await?;
    ensure!(
        ran.log.contains(&format!("\"matched\":{rows}")),
        "verify did not see all: {}",
        ran.log
    );
    Ok(ran)
}
