//! The handlers that the partitions of a consumer have together, in one process.
//!
//! ```text
//!   free ──▶ held for a turn of the engine ──▶ used by a handler ──▶ free: whoever waited first
//!                        └──▶ not used: free
//! ```

use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Those of one partition's session.
#[derive(Default)]
pub(crate) struct Places {
    /// Of the whole; none where the session has them all.
    all: Option<Arc<Semaphore>>,
    held: Vec<OwnedSemaphorePermit>,
    /// Comes when others have given one back.
    next: Option<Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send + Sync>>>,
}

impl Places {
    pub(crate) fn of(all: Option<&Arc<Semaphore>>) -> Self {
        Self { all: all.cloned(), ..Self::default() }
    }

    /// How many there are for a turn, where that is not all of them: those in use, and what nobody
    /// else has or waits for.
    pub(crate) fn take(&mut self) -> Option<usize> {
        let all = self.all.as_ref()?;
        while self.next.is_none()
            && let Ok(place) = Arc::clone(all).try_acquire_owned()
        {
            self.held.push(place);
        }
        Some(self.held.len())
    }

    /// Gives back what is not used.
    pub(crate) fn keep(&mut self, used: usize) {
        self.held.truncate(used);
    }

    /// Waits in line, if another is wanted.
    pub(crate) fn want(&mut self, wanted: bool) {
        let Some(all) = self.all.as_ref().filter(|_| wanted) else { return self.next = None };
        let acquire = Arc::clone(all).acquire_owned();
        let acquire = acquire.map(|it| it.expect("nobody closes it"));
        self.next.get_or_insert_with(|| Box::pin(acquire));
    }

    /// Returns when it is there; never if none is wanted.
    pub(crate) async fn granted(&mut self) {
        let Some(next) = &mut self.next else { return std::future::pending().await };
        let place = next.await;
        self.next = None;
        self.held.push(place);
    }
}
