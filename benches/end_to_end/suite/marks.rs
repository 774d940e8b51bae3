//! What does it cost to say of each row that it is published?

use super::Bench;
use super::answer::Answer;
use super::chart::{Chart, Scale};
use super::compare::{self, Case};
use crate::load::Shape;
use crate::servers::Keeping;
use crate::variant::{DELETE, LEAN, ROW, Variant};

const ROWS: u32 = 200_000;
const QUICK_ROWS: u32 = 5_000;
const ROUNDS: u32 = 3;

const MARKS: [&str; 3] = [ROW, DELETE, LEAN];

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let rows = if bench.quick { QUICK_ROWS } else { ROWS };
    let rounds = if bench.quick { 1 } else { ROUNDS };
    let case = |mark: &'static str| Case {
        label: mark.to_owned(),
        shape: Shape { rows, ..Shape::DEFAULT },
        keeping: Keeping::DEFAULT,
        variant: Variant { mark, ..Variant::DEFAULT },
        rounds,
    };
    let compared = compare::compare(bench, MARKS.map(case).to_vec()).await;
    let mut charts = compare::charts(&compared);
    charts.push(Chart {
        title: "log written by PostgreSQL, bytes/event",
        series: &["relay"],
        scale: Scale::Linear,
        decimals: 0,
        rows: compare::rows(&compared, &["wal_bytes_per_event"]),
    });
    Answer {
        title: "What does it cost to say of each row that it is published?",
        points: compared.iter().map(compare::Compared::json).collect(),
        charts,
    }
}
