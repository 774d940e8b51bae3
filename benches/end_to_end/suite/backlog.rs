//! Do speed and memory depend on how much waits?

use super::Bench;
use super::answer::Answer;
use super::compare::{self, Case};
use crate::load::Shape;
use crate::servers::Keeping;

/// How many rows wait, and how often they are drained: small backlogs are noisy.
const BACKLOGS: [(u32, u32); 3] = [(10_000, 3), (100_000, 2), (1_000_000, 1)];
const LARGE: (u32, u32) = (5_000_000, 1);
const QUICK_BACKLOGS: [(u32, u32); 2] = [(1_000, 1), (10_000, 1)];

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let mut backlogs = if bench.quick { QUICK_BACKLOGS.to_vec() } else { BACKLOGS.to_vec() };
    if bench.large {
        backlogs.push(LARGE);
    }
    let case = |(rows, rounds)| Case {
        label: format!("{rows} rows wait"),
        shape: Shape { rows, ..Shape::DEFAULT },
        keeping: Keeping::DEFAULT,
        setting: None,
        shards: 1,
        rounds,
    };
    let compared = compare::compare(bench, backlogs.into_iter().map(case).collect()).await;
    Answer {
        title: "Do speed and memory depend on how much waits?",
        points: compared.iter().map(compare::Compared::json).collect(),
        charts: compare::charts(&compared),
    }
}
