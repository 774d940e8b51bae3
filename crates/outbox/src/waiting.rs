//! Many wait for what becomes of events, and one statement asks for all of them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

/// Between two statements. Whoever knows more says so at once with [`Waiting::tell`].
const TICK: Duration = Duration::from_millis(50);

/// A statement that takes long is repeated less often: after so many times as long, within bounds.
const SHARE: u32 = 4;

/// The longest pause. Whoever begins to wait then gets a first look within [`LOOK_MAX`].
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// When nobody has waited for so long, [`Waiting::look`] returns.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// How long the first look may take.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Those who wait at a time, at most.
const WAITERS_MAX: usize = 20_000;

/// Events that are remembered for those who begin to wait later.
const REMEMBERED_MAX: usize = 10_000;

/// What is known about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<S> {
    /// More will become of it.
    Open(S),
    /// Nothing more becomes of it by itself.
    Final(S),
}

impl<S> Seen<S> {
    /// What is known, final or not.
    pub fn into_inner(self) -> S {
        match self {
            Self::Open(state) | Self::Final(state) => state,
        }
    }
}

/// Why nobody can wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{WAITERS_MAX} wait already")]
pub struct TooMany;

/// Those who wait for events, by event. Clones are handles to the same.
#[derive(Debug)]
pub struct Waiting<S>(Arc<Shared<S>>);

#[derive(Debug)]
struct Shared<S> {
    /// Looked at for each batch of events that are published, so it needs no lock.
    waiters: AtomicUsize,
    events: Mutex<HashMap<Uuid, watch::Sender<Option<Seen<S>>>>>,
    remembered: Mutex<Remembered<S>>,
    begun: Notify,
}

/// What became of the newest events of which nobody else can tell.
#[derive(Debug)]
struct Remembered<S> {
    events: HashMap<Uuid, S>,
    /// The oldest first.
    ids: VecDeque<Uuid>,
}

impl<S> Clone for Waiting<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> Default for Waiting<S> {
    fn default() -> Self {
        let (waiters, events, begun) = (AtomicUsize::new(0), Mutex::default(), Notify::new());
        let remembered = Remembered { events: HashMap::new(), ids: VecDeque::new() };
        let remembered = Mutex::new(remembered);
        Self(Arc::new(Shared { waiters, events, remembered, begun }))
    }
}

impl<S> Waiting<S> {
    /// Whether nobody waits.
    fn is_idle(&self) -> bool {
        self.0.waiters.load(Ordering::Relaxed) == 0
    }

    fn events(&self) -> MutexGuard<'_, HashMap<Uuid, watch::Sender<Option<Seen<S>>>>> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered<S>> {
        self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Clone> Waiting<S> {
    /// Waits until something final is known about the event, for `patience`, and up to a second
    /// longer if nothing at all is known by then. Returns what is known; `None` if nobody could
    /// look, because the database is away.
    ///
    /// # Errors
    ///
    /// [`TooMany`], at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the waiting.
    pub async fn wait(&self, id: Uuid, patience: Duration) -> Result<Option<Seen<S>>, TooMany> {
        let until = Instant::now() + patience;
        let mut waiter = Waiter::enter(self, id)?;
        let ended = waiter.seen.wait_for(|seen| matches!(seen, Some(Seen::Final(_))));
        if timeout_at(until, ended).await.is_err() {
            // Also whoever has no patience gets an answer.
            let _ = timeout(LOOK_MAX, waiter.seen.wait_for(Option::is_some)).await;
        }
        let seen = waiter.seen.borrow().clone();
        Ok(seen)
    }

    /// Tells those who wait for these events, if anybody does. Takes one lock for all of them, and
    /// none if nobody waits for any event; `seen` is called only for those that somebody waits for.
    pub fn tell<T>(
        &self,
        told: impl IntoIterator<Item = (Uuid, T)>,
        mut seen: impl FnMut(T) -> Seen<S>,
    ) {
        if self.is_idle() {
            return;
        }
        let events = self.events();
        for (id, what) in told {
            let Some(event) = events.get(&id) else { continue };
            event.send_modify(|known| {
                // What is read may be older than what was told.
                if !matches!(known, Some(Seen::Final(_))) {
                    *known = Some(seen(what));
                }
            });
        }
    }

    /// Remembers the end of events of which nobody can tell whoever asks for it later; the newest
    /// 10,000. Those who wait now are [told](Self::tell) as well, behind this.
    pub fn remember(&self, ended: impl IntoIterator<Item = (Uuid, S)>) {
        let mut ended = ended.into_iter().peekable();
        if ended.peek().is_none() {
            return;
        }
        let mut remembered = self.remembered();
        for (id, state) in ended {
            if remembered.events.insert(id, state).is_none() {
                remembered.ids.push_back(id);
            }
            if remembered.ids.len() > REMEMBERED_MAX
                && let Some(oldest) = remembered.ids.pop_front()
            {
                remembered.events.remove(&oldest);
            }
        }
    }

    /// Waits until somebody waits.
    pub async fn begun(&self) {
        loop {
            let begun = self.0.begun.notified();
            if !self.is_idle() {
                return;
            }
            begun.await;
        }
    }

    /// Asks `ask` about all events that anybody waits for, every 50 ms or less often, until nobody
    /// has waited for 10 s. `ask` answers for each that it is given; nothing is known of others.
    ///
    /// # Errors
    ///
    /// Those of `ask`.
    pub async fn look<E, F>(&self, mut ask: impl FnMut(Vec<Uuid>) -> F) -> Result<(), E>
    where
        F: Future<Output = Result<HashMap<Uuid, Seen<S>>, E>>,
    {
        while timeout(IDLE_AFTER, self.begun()).await.is_ok() {
            let ids = self.unresolved();
            let started = Instant::now();
            if !ids.is_empty() {
                self.tell(ask(ids).await?, |seen| seen);
            }
            sleep((started.elapsed() * SHARE).clamp(TICK, PAUSE_MAX)).await;
        }
        Ok(())
    }

    fn unresolved(&self) -> Vec<Uuid> {
        let events = self.events();
        let open = events.iter().filter(|(_, it)| !matches!(*it.borrow(), Some(Seen::Final(_))));
        open.map(|(id, _)| *id).collect()
    }
}

/// Somebody who waits for an event.
struct Waiter<'a, S> {
    waiting: &'a Waiting<S>,
    id: Uuid,
    seen: watch::Receiver<Option<Seen<S>>>,
}

impl<'a, S: Clone> Waiter<'a, S> {
    fn enter(waiting: &'a Waiting<S>, id: Uuid) -> Result<Self, TooMany> {
        let mut events = waiting.events();
        if waiting.0.waiters.load(Ordering::Relaxed) >= WAITERS_MAX {
            return Err(TooMany);
        }
        // Under the lock: whoever sees nobody wait has told nobody, and the table is asked.
        waiting.0.waiters.fetch_add(1, Ordering::Relaxed);
        // As much under this lock: what is not remembered yet is told afterwards.
        let remembered = waiting.remembered().events.get(&id).cloned().map(Seen::Final);
        let seen = events.entry(id).or_insert_with(|| watch::channel(remembered).0).subscribe();
        drop(events);
        waiting.0.begun.notify_waiters();
        Ok(Self { waiting, id, seen })
    }
}

impl<S> Drop for Waiter<'_, S> {
    fn drop(&mut self) {
        let mut events = self.waiting.events();
        self.waiting.0.waiters.fetch_sub(1, Ordering::Relaxed);
        if events.get(&self.id).is_some_and(|it| it.receiver_count() == 1) {
            events.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_told_at_once() {
        let waiting = Waiting::<u8>::default();
        assert!(waiting.is_idle());
        let (seen, ()) = tokio::join!(waiting.wait(id(1), PATIENCE), async {
            waiting.begun().await;
            let told = [(2, Seen::Final(9)), (1, Seen::Open(1)), (1, Seen::Final(2))];
            waiting.tell(told.map(|(number, seen)| (id(number), seen)), |seen| seen);
            waiting.tell([(id(1), 3)], Seen::Open);
        });
        assert_eq!(seen, Ok(Some(Seen::Final(2))));
        assert!(waiting.is_idle() && waiting.events().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_of_patience_the_last_that_is_known_counts() {
        let waiting = Waiting::<u8>::default();
        assert_eq!(waiting.wait(id(1), PATIENCE).await, Ok(None));
        let (seen, ()) = tokio::join!(waiting.wait(id(1), PATIENCE), async {
            waiting.begun().await;
            waiting.tell([(id(1), 1)], Seen::Open);
        });
        assert_eq!(seen, Ok(Some(Seen::Open(1))));
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_cost_one_question_a_tick_and_none_when_nobody_waits() {
        let waiting = Waiting::<u8>::default();
        let mut asked = Vec::new();
        let looks = waiting.look(|ids| {
            asked.push(ids.len());
            let is_last = asked.len() == 3;
            let seen = |id| (id, if is_last { Seen::Final(1) } else { Seen::Open(0) });
            std::future::ready(Ok::<_, Infallible>(ids.into_iter().map(seen).collect()))
        });
        let waiters = (0..10_000).map(|number| waiting.wait(id(number), PATIENCE));
        let all = futures_util::future::join_all(waiters);
        let (seen, looked) = tokio::join!(all, looks);
        assert!(seen.iter().all(|it| *it == Ok(Some(Seen::Final(1)))));
        assert_eq!(looked, Ok(()));
        assert_eq!(asked, [10_000; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_leaves_nothing() {
        let waiting = Waiting::<u8>::default();
        {
            let mut one = Box::pin(waiting.wait(id(1), PATIENCE));
            let mut other = Box::pin(waiting.wait(id(1), PATIENCE));
            assert!(futures_util::poll!(&mut one).is_pending());
            assert!(futures_util::poll!(&mut other).is_pending());
            drop(one);
            assert!(!waiting.is_idle());
            assert_eq!(waiting.unresolved(), [id(1)]);
        }
        assert!(waiting.is_idle() && waiting.events().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_known_at_once_and_not_for_ever() {
        let waiting = Waiting::<u8>::default();
        waiting.remember([(id(1), 7)]);
        assert_eq!(waiting.wait(id(1), PATIENCE).await, Ok(Some(Seen::Final(7))));
        waiting.remember((2..=REMEMBERED_MAX as u128).map(|number| (id(number), 8)));
        assert_eq!(waiting.wait(id(1), PATIENCE).await, Ok(Some(Seen::Final(7))));
        waiting.remember([(id(2), 9), (id(0), 9)]);
        assert_eq!(waiting.wait(id(1), Duration::ZERO).await, Ok(None));
        assert_eq!(waiting.wait(id(2), PATIENCE).await, Ok(Some(Seen::Final(9))));
        assert_eq!(waiting.remembered().events.len(), REMEMBERED_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_a_limit() {
        let waiting = Waiting::<u8>::default();
        let enter = |number| Waiter::enter(&waiting, id(number));
        let all: Vec<_> = (0..WAITERS_MAX as u128).map(|it| enter(it).ok()).collect();
        assert!(all.iter().all(Option::is_some));
        assert_eq!(waiting.wait(id(0), PATIENCE).await, Err(TooMany));
        drop(all);
        assert_eq!(waiting.wait(id(0), Duration::ZERO).await, Ok(None));
    }
}
