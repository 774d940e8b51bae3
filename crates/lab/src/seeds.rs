//! Which schedules a simulation plays.

use std::ops::Range;

/// The first `usual` seeds. `SEEDS=n` plays `n`, `FIRST_SEED=n` begins there, `REPLAY_SEED=n` plays only
/// that one.
///
/// # Panics
///
/// If one of them is no number.
pub fn seeds(usual: u64) -> Seeds {
    let given = |name| std::env::var(name).ok().map(|it| it.parse::<u64>().expect("a number"));
    let first = given("FIRST_SEED").unwrap_or(0);
    let all = first..first + given("SEEDS").unwrap_or(usual);
    Seeds { left: given("REPLAY_SEED").map_or(all, |seed| seed..seed + 1) }
}

/// Seeds of schedules; says which one failed.
#[derive(Debug)]
pub struct Seeds {
    left: Range<u64>,
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left.next()
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("schedule failed; replay it with REPLAY_SEED={}", self.left.start - 1);
        }
    }
}
