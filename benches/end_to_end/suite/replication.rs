//! What do three replicas and flushed writes change?

use super::Bench;
use super::answer::Answer;
use super::{compare, paced};
use crate::load::Shape;
use crate::pace::Pace;
use crate::servers::Keeping;
use crate::variant::Variant;

/// A broker that flushes every write stores some hundreds to thousands a second.
const ROWS: u32 = 50_000;
const ROWS_SYNCED: u32 = 10_000;
const QUICK_ROWS: u32 = 1_000;

const SECONDS: u32 = 8;
const QUICK_SECONDS: u32 = 1;

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let all = [(1, false), (1, true), (3, false), (3, true)];
    let all = all.map(|(replicas, sync_always)| Keeping { replicas, sync_always });
    let quick = bench.quick;
    let drain = |keeping: Keeping| compare::Case {
        label: label(keeping),
        shape: Shape { rows: rows(keeping, quick), ..Shape::DEFAULT },
        keeping,
        variant: Variant::DEFAULT,
        rounds: 1,
    };
    let seconds = if quick { QUICK_SECONDS } else { SECONDS };
    let pace = |keeping| paced::Case {
        label: format!("{}, 500/s", label(keeping)),
        keeping,
        pace: Pace { events_per_second: 500, events_per_transaction: 1, seconds },
    };
    let compared = compare::compare(bench, all.map(drain).to_vec()).await;
    let paced = paced::paced(bench, all.map(pace).to_vec()).await;
    let points = compared.iter().map(compare::Compared::json);
    let mut charts = compare::charts(&compared);
    charts.extend(paced::charts(&paced));
    Answer {
        title: "What do three replicas and flushed writes change?",
        points: points.chain(paced.iter().map(paced::Paced::json)).collect(),
        charts,
    }
}

fn rows(keeping: Keeping, quick: bool) -> u32 {
    match (quick, keeping.sync_always) {
        (true, _) => QUICK_ROWS,
        (false, true) => ROWS_SYNCED,
        (false, false) => ROWS,
    }
}

fn label(keeping: Keeping) -> String {
    let sync = if keeping.sync_always { "always" } else { "default" };
    format!("R{}, sync_interval {sync}", keeping.replicas)
}
