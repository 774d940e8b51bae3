//! How long from the start of the process to the first message?

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::Bench;
use super::answer::Answer;
use super::chart::Chart;
use crate::arrivals;
use crate::bench_env::BenchEnv;
use crate::limits;
use crate::load::{Shape, load};
use crate::process::Relay;
use crate::servers::{Keeping, Servers};

const STARTS: u32 = 10;
const QUICK_STARTS: u32 = 2;

const TIME_MAX: Duration = Duration::from_secs(180);

/// One event, committed while no relay runs.
const ONE: Shape = Shape { rows: 1, ..Shape::DEFAULT };

/// Milliseconds until the event is at a consumer that is there already.
#[derive(Debug, Serialize)]
struct Start {
    relay: f64,
    /// `pg_recvlogical` from its start until it has read the event and ended, or the bare publisher,
    /// connected already, until it is answered, whichever takes longer.
    both_at_once: f64,
}

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let starts = if bench.quick { QUICK_STARTS } else { STARTS };
    let measured = bench.measure("start to first message", TIME_MAX, measure(starts)).await;
    let starts = measured.unwrap_or_default();
    Answer {
        title: "How long from the start of the process to the first message?",
        points: starts.iter().map(|it| json!(it)).collect(),
        charts: vec![Chart::repeated(
            "start to first message, ms",
            &starts,
            &[("both at once", |it| it.both_at_once), ("relay", |it| it.relay)],
        )],
    }
}

async fn measure(starts: u32) -> Result<Vec<Start>> {
    let servers = Servers::start(Keeping::DEFAULT).await?;
    let mut measured = Vec::new();
    for number in 0..starts {
        let env = BenchEnv::set_up(&servers, &format!("start{number}")).await?;
        let slots = env.add_slots(["both"]).await?;
        load(&env, ONE).await?;
        let end = env.end_of_log().await?;
        let both = limits::both(&env, &slots[0], &end, ONE).await?;
        let mut messages = arrivals::consumer(&env.jetstream, &env.name).await?;
        let started = Instant::now();
        let relay = Relay::start(&env.variables)?;
        let (_, arrival) = arrivals::next(&mut messages).await?;
        relay.stop().await.context("stop the relay")?;
        ensure!(env.messages(&env.name).await? == 1, "more than one message");
        drop(messages);
        env.tear_down(&slots).await?;
        measured.push(Start {
            relay: (arrival.at - started).as_secs_f64() * 1e3,
            both_at_once: both.seconds * 1e3,
        });
    }
    Ok(measured)
}
