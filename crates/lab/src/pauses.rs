//! Pauses between looks at a state that is waited for.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const MAX: Duration = Duration::from_millis(60);

/// Pauses that grow from 10 to 60 ms: a state that comes at once is seen at once, and a long wait
/// costs the machine, which has other waits at the same time, little.
#[derive(Debug, Clone, Copy)]
pub struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Pauses {
    /// Lets the next pause pass.
    pub async fn pass(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 3 / 2).min(MAX);
    }
}
