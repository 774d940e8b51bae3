//! How fast old rows go.

use std::time::Duration;

use tokio::time::sleep;

/// After a statement there is a pause that is so many times as long, within bounds: what the relay
/// and the producers do goes first.
const PAUSE_TIMES: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Lets others work after a statement that took so long.
pub(super) async fn pause_after(took: Duration) {
    sleep((took * PAUSE_TIMES).clamp(PAUSE_MIN, PAUSE_MAX)).await;
}
