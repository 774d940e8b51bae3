//! What do shards bring, and what does each walsender's decoding of the whole log cost?

use super::Bench;
use super::answer::Answer;
use super::compare::{self, Case};
use crate::load::Shape;
use crate::servers::Keeping;
use crate::variant::Variant;

const ROWS: u32 = 200_000;
const QUICK_ROWS: u32 = 2_000;
const ROUNDS: u32 = 3;

const SHARDS: [u32; 3] = [1, 2, 4];

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let quick = bench.quick;
    let case = |shards: u32| Case {
        label: format!("{shards} shard{}", if shards == 1 { "" } else { "s" }),
        shape: Shape { rows: if quick { QUICK_ROWS } else { ROWS }, ..Shape::DEFAULT },
        keeping: Keeping::DEFAULT,
        variant: Variant { shards, ..Variant::DEFAULT },
        rounds: if quick { 1 } else { ROUNDS },
    };
    let compared = compare::compare(bench, SHARDS.map(case).to_vec()).await;
    Answer {
        title: "What do shards bring, and what do they cost?",
        points: compared.iter().map(compare::Compared::json).collect(),
        charts: compare::charts(&compared),
    }
}
