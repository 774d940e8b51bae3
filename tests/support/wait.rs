//! Waiting for a condition instead of for a time.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use lab::Pauses;

/// Long enough for a machine that does much else beside. A test that works does not come near it.
pub const DEADLINE: Duration = Duration::from_secs(150);

/// Asks for a figure until it is `reached`, as long as it changes: how fast it does is the machine's.
///
/// # Panics
///
/// When it has been another one for [`DEADLINE`]; `what` says what was waited for.
pub async fn until_counted<N: PartialEq + Copy + Debug>(
    what: &str,
    mut count: impl AsyncFnMut() -> N,
    reached: impl Fn(N) -> bool,
) {
    let (mut last, mut changed, mut pauses) = (None, Instant::now(), Pauses::default());
    loop {
        let now = count().await;
        if reached(now) {
            return;
        }
        if last != Some(now) {
            (last, changed) = (Some(now), Instant::now());
        }
        assert!(changed.elapsed() < DEADLINE, "{now:?} for {DEADLINE:?}, in vain until {what}");
        pauses.pass().await;
    }
}

/// Asks again and again until the answer is yes.
///
/// # Panics
///
/// When it is still no after `deadline`; `what` says what was waited for.
pub async fn until(deadline: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let (started, mut pauses) = (Instant::now(), Pauses::default());
    while !holds().await {
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain until {what}");
        pauses.pass().await;
    }
}

/// Asserts that what is promised within a time took no more than three times as long: a machine that
/// does much else is slow, and what breaks the promise waits for minutes.
///
/// # Panics
///
/// When it took longer.
pub fn assert_promise(within: Duration, took: Duration) {
    eprintln!("promised within {within:?}, and it took {took:?}");
    assert!(took < 3 * within, "promised within {within:?}, and it took {took:?}");
}
