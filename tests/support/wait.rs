//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

use lab::Pauses;

/// Long enough for a machine that does much else beside. A test that works does not come near it.
pub const DEADLINE: Duration = Duration::from_secs(150);

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
