//! The picture that the poller draws and the pages show, and who looks at it.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::state::picture::{Picture, Round};

/// Streams of changes at a time. Each visible tab has one.
const STREAMS_MAX: usize = 256;
/// The same beside a relay, whose port has 128 connections.
const GUEST_STREAMS_MAX: usize = 32;
/// Somebody looks for so long after a page was asked for.
const LOOKS_SECONDS: i64 = 20;
/// A page shows figures that are not older, if there are some in time.
const FRESH_SECONDS: i64 = 3;
const FRESH_MAX: Duration = Duration::from_millis(1500);

#[derive(Debug)]
pub(crate) struct Watch {
    picture: RwLock<Picture>,
    /// Counts the rounds.
    rounds: watch::Sender<u64>,
    wanted: Notify,
    /// What is in the databases is to be asked for, too.
    changed: AtomicBool,
    asked_at: AtomicI64,
    streams: Arc<Semaphore>,
    streams_max: usize,
    /// What is in the databases is asked for only while somebody looks.
    pub(crate) is_guest: bool,
}

impl Watch {
    pub(crate) fn new(picture: Picture, is_guest: bool) -> Self {
        let streams_max = if is_guest { GUEST_STREAMS_MAX } else { STREAMS_MAX };
        Self {
            picture: RwLock::new(picture),
            rounds: watch::Sender::new(0),
            wanted: Notify::new(),
            changed: AtomicBool::new(false),
            // Whoever starts it looks soon. A relay starts for another reason.
            asked_at: AtomicI64::new(if is_guest { 0 } else { Timestamp::now().as_second() }),
            streams: Arc::new(Semaphore::new(streams_max)),
            streams_max,
            is_guest,
        }
    }

    /// Looks at the picture. Nothing may wait meanwhile.
    pub(crate) fn see<T>(&self, look: impl FnOnce(&Picture) -> T) -> T {
        look(&self.picture.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn apply(&self, now: Timestamp, round: Round) {
        self.picture.write().unwrap_or_else(PoisonError::into_inner).apply(now, round);
        self.rounds.send_modify(|it| *it += 1);
    }

    pub(crate) fn rounds(&self) -> watch::Receiver<u64> {
        self.rounds.subscribe()
    }

    /// A place for a stream, as long as it is kept.
    pub(crate) fn stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.streams).try_acquire_owned().ok()
    }

    pub(crate) fn close(&self) {
        self.streams.close();
        self.rounds.send_modify(|it| *it += 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.streams.is_closed()
    }

    pub(crate) fn is_watched(&self) -> bool {
        let asked = Timestamp::now().as_second() - self.asked_at.load(Ordering::Relaxed);
        self.streams.available_permits() < self.streams_max || asked < LOOKS_SECONDS
    }

    /// Returns when somebody wants an answer sooner.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Somebody looks: waits a moment for figures that are not old.
    pub(crate) async fn freshen(&self) {
        let now = Timestamp::now();
        self.asked_at.store(now.as_second(), Ordering::Relaxed);
        let is_fresh =
            |it: &Picture| it.at.is_some_and(|at| now.as_second() - at.as_second() < FRESH_SECONDS);
        if self.see(is_fresh) {
            return;
        }
        let mut rounds = self.rounds();
        rounds.mark_unchanged();
        self.wanted.notify_one();
        // An old figure with its age is better than none.
        let _ = timeout(FRESH_MAX, rounds.changed()).await;
    }

    /// Something was changed: asks for a round now.
    pub(crate) fn hurry(&self) {
        self.changed.store(true, Ordering::Relaxed);
        self.wanted.notify_one();
    }

    /// Whether something was changed since the last time.
    pub(crate) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }
}
