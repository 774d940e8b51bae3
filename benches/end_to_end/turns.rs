//! A replay that is paused and resumed while events keep coming.
//!
//! What a machine's other tenants do to latency may be more than what a replay does, and changes from
//! minute to minute. So both are measured within the same seconds, in turns.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::sleep;

use crate::arrivals::ARRIVAL_MAX;
use crate::bench_env::BenchEnv;
use crate::figures::median;
use crate::measured::Quantiles;
use crate::process;

const TURN: Duration = Duration::from_secs(2);

/// The producers' connections are warm by then.
const FIRST_AFTER: Duration = Duration::from_secs(1);

const LOOK: Duration = Duration::from_millis(50);

/// No copy for so long: the replay rests.
const RESTS_AFTER: Duration = Duration::from_millis(300);

/// A stretch of time, and the copies that were stored in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    from: Instant,
    copies: i64,
}

impl Turn {
    fn has(self, at: Instant) -> bool {
        at >= self.from && at < self.from + TURN
    }
}

/// From just before COMMIT to the acknowledgement.
#[derive(Debug, Serialize)]
pub(crate) struct InTurns {
    pub(crate) paused: Side,
    pub(crate) beside: Side,
    pub(crate) copies_per_second: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Side {
    /// Of all turns.
    pub(crate) quantiles: Quantiles,
    /// In the middle of the turns, milliseconds: a stall of the machine is in one of them.
    pub(crate) p99: f64,
}

impl InTurns {
    /// `acked` are the times of COMMIT and acknowledgement of each event.
    pub(crate) fn of(turns: &[Turn], acked: &[(Instant, Instant)]) -> Result<Self> {
        let (paused, beside): (Vec<Turn>, Vec<Turn>) = turns.iter().partition(|it| it.copies == 0);
        ensure!(!paused.is_empty() && !beside.is_empty(), "no turn of each kind: {turns:?}");
        let copies: i64 = beside.iter().map(|it| it.copies).sum();
        Ok(Self {
            copies_per_second: copies as f64 / (TURN.as_secs_f64() * beside.len() as f64),
            paused: Side::of(&paused, acked)?,
            beside: Side::of(&beside, acked)?,
        })
    }
}

impl Side {
    fn of(turns: &[Turn], acked: &[(Instant, Instant)]) -> Result<Self> {
        let mut all = Histogram::<u64>::new(3)?;
        let mut p99 = Vec::new();
        for turn in turns {
            let mut its = Histogram::<u64>::new(3)?;
            for (committing, acked) in acked.iter().filter(|it| turn.has(it.0)) {
                its.record(u64::try_from((*acked - *committing).as_micros())?)?;
            }
            p99.push(Quantiles::of(&its).p99);
            all.add(&its)?;
        }
        Ok(Self { quantiles: Quantiles::of(&all), p99: median(p99) })
    }
}

/// Takes turns with the replay that is under way, for so long.
pub(crate) async fn take(env: &BenchEnv<'_>, lasting: Duration) -> Result<Vec<Turn>> {
    let until = Instant::now() + lasting;
    sleep(FIRST_AFTER).await;
    let sql = "SELECT id::text FROM tailpost_replays";
    let id: String = env.client.query_one(sql, &[]).await.context("find the replay")?.get(0);
    let mut turns = Vec::new();
    loop {
        process::run(&env.variables, &["replays", "pause", &id], ARRIVAL_MAX).await?;
        wait_for_rest(env).await?;
        turns.push(turn(env).await?);
        process::run(&env.variables, &["replays", "resume", &id], ARRIVAL_MAX).await?;
        wait_for_copies(env, copies(env).await?).await?;
        turns.push(turn(env).await?);
        if Instant::now() >= until {
            // The producers may have ended within these two.
            turns.truncate(turns.len().saturating_sub(2));
            return Ok(turns);
        }
    }
}

async fn turn(env: &BenchEnv<'_>) -> Result<Turn> {
    let (from, before) = (Instant::now(), copies(env).await?);
    sleep(TURN.saturating_sub(from.elapsed())).await;
    Ok(Turn { from, copies: copies(env).await? - before })
}

async fn wait_for_rest(env: &BenchEnv<'_>) -> Result<()> {
    let (asked, mut seen, mut since) = (Instant::now(), copies(env).await?, Instant::now());
    while since.elapsed() < RESTS_AFTER {
        ensure!(asked.elapsed() < ARRIVAL_MAX, "the replay is not paused");
        sleep(LOOK).await;
        let now = copies(env).await?;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Waits until more than `before` copies are stored.
pub(crate) async fn wait_for_copies(env: &BenchEnv<'_>, before: i64) -> Result<()> {
    let asked = Instant::now();
    while copies(env).await? <= before {
        ensure!(asked.elapsed() < ARRIVAL_MAX, "the relay does not replay");
        sleep(LOOK).await;
    }
    Ok(())
}

/// How many copies are stored.
pub(crate) async fn copies(env: &BenchEnv<'_>) -> Result<i64> {
    let sql = "SELECT coalesce(sum(published), 0)::bigint FROM tailpost_replays";
    Ok(env.client.query_one(sql, &[]).await.context("look at the replay")?.get(0))
}
