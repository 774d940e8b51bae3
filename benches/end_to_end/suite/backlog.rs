//! Do speed and memory depend on how much waits?

use super::Bench;
use super::answer::Answer;
use super::compare::{self, Case};
use crate::load::Shape;
use crate::servers::Keeping;
use crate::variant::Variant;

/// How many rows wait, and how often they are drained: small backlogs are noisy.
const BACKLOGS: [(u32, u32); 3] = [(10_000, 3), (100_000, 2), (1_000_000, 1)];
const LARGE: (u32, u32) = (5_000_000, 1);
/// The same, and the log brings none of them.
const FROM_THE_TABLE: (u32, u32) = (1_000_000, 1);
const QUICK_FROM_THE_TABLE: (u32, u32) = (5_000, 1);
const QUICK_BACKLOGS: [(u32, u32); 2] = [(1_000, 1), (10_000, 1)];

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let mut backlogs = if bench.quick { QUICK_BACKLOGS.to_vec() } else { BACKLOGS.to_vec() };
    if bench.large {
        backlogs.push(LARGE);
    }
    let case = |(rows, rounds), before_the_slot| Case {
        label: format!("{rows} rows wait{}", if before_the_slot { ", in the table" } else { "" }),
        shape: Shape { rows, before_the_slot, ..Shape::DEFAULT },
        keeping: Keeping::DEFAULT,
        variant: Variant::DEFAULT,
        rounds,
    };
    let in_the_table = if bench.quick { QUICK_FROM_THE_TABLE } else { FROM_THE_TABLE };
    let in_the_log = backlogs.into_iter().map(|it| case(it, false));
    let cases = in_the_log.chain([case(in_the_table, true)]).collect();
    let compared = compare::compare(bench, cases).await;
    Answer {
        title: "Do speed and memory depend on how much waits?",
        points: compared.iter().map(compare::Compared::json).collect(),
        charts: compare::charts(&compared),
    }
}
