//! What does reading the log cost, from a bare socket to the relay's decoder?

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::Bench;
use super::answer::Answer;
use super::chart::{Chart, Scale};
use crate::bench_env::BenchEnv;
use crate::cpu;
use crate::figures::median;
use crate::limits;
use crate::load::{Shape, load};
use crate::readers::{Read, Target};
use crate::servers::{Keeping, Servers};

const ROUNDS: u32 = 3;
const QUICK_ROWS: u32 = 5_000;

const TIME_MAX: Duration = Duration::from_secs(180);

/// In the order in which they are shown; they take turns in being first.
const READERS: [Reader; 4] = [
    Reader { name: "recvlogical", label: "pg_recvlogical to nothing" },
    Reader { name: "socket", label: "a socket, read to nothing" },
    Reader { name: "client", label: "the replication client" },
    Reader { name: "decoder", label: "the client and the decoder" },
];

struct Reader {
    /// Of its slot.
    name: &'static str,
    label: &'static str,
}

#[derive(Debug, Clone, Serialize)]
struct Cost {
    label: &'static str,
    per_second: f64,
    /// Processor time.
    us_per_event: f64,
}

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let rows = if bench.quick { QUICK_ROWS } else { Shape::DEFAULT.rows };
    let rounds = if bench.quick { 1 } else { ROUNDS };
    let measured = bench.measure("four readers", TIME_MAX, measure(rows, rounds)).await;
    let costs = measured.unwrap_or_default();
    let row = |of: fn(&Cost) -> f64| {
        let of_reader = |reader: &Reader| {
            let its = costs.iter().filter(|it| it.label == reader.label).map(of);
            (reader.label.to_owned(), vec![median(its.collect())])
        };
        if costs.is_empty() { Vec::new() } else { READERS.iter().map(of_reader).collect() }
    };
    let chart = |title, decimals, rows| Chart {
        title,
        series: &["median"],
        scale: Scale::Linear,
        decimals,
        rows,
    };
    Answer {
        title: "What does reading the log cost, from a bare socket to the relay's decoder?",
        points: costs.iter().map(|it| json!(it)).collect(),
        charts: vec![
            chart("events/s", 0, row(|it| it.per_second)),
            chart("CPU of the reader, us/event", 2, row(|it| it.us_per_event)),
        ],
    }
}

async fn measure(rows: u32, rounds: u32) -> Result<Vec<Cost>> {
    let servers = Servers::start(Keeping::DEFAULT).await?;
    let mut costs = Vec::new();
    for number in 0..rounds {
        let env = BenchEnv::set_up(&servers, &format!("reading{number}")).await?;
        let slots = env.add_slots(READERS.map(|it| it.name)).await?;
        load(&env, Shape { rows, ..Shape::DEFAULT }).await?;
        let end = env.end_of_log().await?;
        for turn in 0..READERS.len() {
            let index = (turn + number as usize) % READERS.len();
            let read = read(&env, index, &slots[index], &end, rows).await?;
            costs.push(Cost {
                label: READERS[index].label,
                per_second: f64::from(rows) / read.elapsed.as_secs_f64(),
                us_per_event: read.used.as_secs_f64() * 1e6 / f64::from(rows),
            });
        }
        env.tear_down(&slots).await?;
    }
    ensure!(costs.len() == READERS.len() * rounds as usize, "every reader read");
    Ok(costs)
}

async fn read(env: &BenchEnv<'_>, index: usize, slot: &str, end: &str, rows: u32) -> Result<Read> {
    let target = Target::new(env, slot, rows);
    match index {
        0 => {
            // A child that was waited for.
            let before = cpu::of_reaped()?;
            let cost = limits::log(env, slot, end, rows).await?;
            let used = cpu::of_reaped()?.saturating_sub(before);
            Ok(Read { elapsed: Duration::from_secs_f64(cost.seconds), used })
        }
        1 => target.socket().await,
        decode => target.client(decode == 3).await,
    }
}
