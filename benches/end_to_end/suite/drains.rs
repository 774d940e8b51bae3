//! How fast do waiting rows drain, depending on what they look like? One dimension at a time.

use super::Bench;
use super::answer::Answer;
use super::compare::{self, Case};
use crate::load::Shape;
use crate::servers::Keeping;
use crate::variant::Variant;

const ROWS: u32 = 100_000;
const QUICK_ROWS: u32 = 5_000;
const ROUNDS: u32 = 2;

/// Large rows would fill the disk: fewer of them.
const LARGE_PAYLOAD_BYTES: usize = 4_096;
const LARGE_PAYLOAD_FEWER: u32 = 5;

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let compared = compare::compare(bench, cases(bench.quick)).await;
    Answer {
        title: "How fast do waiting rows drain, depending on what they look like?",
        points: compared.iter().map(compare::Compared::json).collect(),
        charts: compare::charts(&compared),
    }
}

fn cases(quick: bool) -> Vec<Case> {
    let rows = if quick { QUICK_ROWS } else { ROWS };
    let usual = Shape { rows, ..Shape::DEFAULT };
    let case = |label: String, shape: Shape| Case {
        label,
        shape,
        keeping: Keeping::DEFAULT,
        variant: Variant::DEFAULT,
        rounds: if quick { 1 } else { ROUNDS },
    };
    let mut cases = vec![case("default point".to_owned(), usual)];
    cases.extend([100, 1_024, 8_192].map(|payload_bytes| {
        let is_large = payload_bytes > LARGE_PAYLOAD_BYTES;
        let rows = if is_large { rows / LARGE_PAYLOAD_FEWER } else { rows };
        case(format!("{payload_bytes}-byte payload"), Shape { payload_bytes, rows, ..usual })
    }));
    cases.extend(["json", "text"].map(|payload_type| {
        case(format!("payload {payload_type}"), Shape { payload_type, ..usual })
    }));
    cases.extend([1, 10_000].map(|rows_per_transaction| {
        let shape = Shape { rows_per_transaction, ..usual };
        case(format!("transactions of {rows_per_transaction}"), shape)
    }));
    cases.extend([1, 100_000].map(|aggregates| {
        case(format!("aggregates: {aggregates}"), Shape { aggregates, ..usual })
    }));
    cases
}
