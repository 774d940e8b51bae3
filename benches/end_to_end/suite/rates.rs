//! How long from commit to acknowledgement and consumer at a steady rate?

use super::Bench;
use super::answer::Answer;
use super::paced::{self, Case};
use crate::pace::Pace;
use crate::servers::Keeping;

const RATES: [u32; 4] = [1_000, 5_000, 10_000, 20_000];

/// From just before COMMIT to the acknowledgement, at any of these rates, on an idle machine with two
/// cores: what works behind the publishing must give way to it.
const P99_MAX_MS: f64 = 25.0;

/// The same at every rate, so that the database's work on commits is: the events of one second are
/// so many transactions.
const TRANSACTIONS_PER_SECOND: u32 = 500;

const SECONDS: u32 = 10;
const QUICK_SECONDS: u32 = 1;

pub(super) async fn answer(bench: &mut Bench) -> Answer {
    let seconds = if bench.quick { QUICK_SECONDS } else { SECONDS };
    let case = |events_per_second| {
        let events_per_transaction = events_per_second / TRANSACTIONS_PER_SECOND;
        Case {
            label: format!("{events_per_second}/s, transactions of {events_per_transaction}"),
            keeping: Keeping::DEFAULT,
            pace: Pace { events_per_second, events_per_transaction, seconds },
        }
    };
    let paced = paced::paced(bench, RATES.map(case).to_vec()).await;
    if !bench.quick {
        paced::fail_above(bench, &paced, P99_MAX_MS);
    }
    Answer {
        title: "How long from commit to acknowledgement and consumer at a steady rate?",
        points: paced.iter().map(paced::Paced::json).collect(),
        charts: paced::charts(&paced),
    }
}
