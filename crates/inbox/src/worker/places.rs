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
    held: Option<OwnedSemaphorePermit>,
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
        let free = u32::try_from(all.available_permits()).unwrap_or(u32::MAX);
        if self.next.is_none()
            && free > 0
            && let Ok(places) = Arc::clone(all).try_acquire_many_owned(free)
        {
            self.hold(places);
        }
        Some(self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits))
    }

    fn hold(&mut self, places: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(places),
            none => *none = Some(places),
        }
    }

    /// Gives back what is not used.
    pub(crate) fn keep(&mut self, used: usize) {
        if let Some(held) = &mut self.held {
            drop(held.split(held.num_permits().saturating_sub(used)));
        }
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
        self.hold(place);
    }
}
