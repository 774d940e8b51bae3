//! What a service manager is told over `NOTIFY_SOCKET`: ready, alive, stopping.
//!
//! Nothing here knows by itself that an engine is alive. It passes on that each of them told
//! something new: an engine that hangs tells nothing, and the service manager misses the next ping.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// How often is looked for news.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How many pings there are in the time after which one would be missed.
const PINGS: u32 = 4;

/// Tells a service manager, if there is one, what becomes of these engines; `up` says whether one
/// is ready, and a word for what it does. An engine that lives has news within `deadline`, if there
/// is one. Ends when the engines are to stop.
pub(crate) async fn tell<S>(
    mut statuses: Vec<watch::Receiver<S>>,
    up: fn(&S) -> (bool, &'static str),
    deadline: Option<Duration>,
    stop: CancellationToken,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut pings = Pings::new(deadline);
    let mut told = (false, String::new());
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = look.tick() => {}
        }
        let states: Vec<_> = statuses.iter().map(|it| up(&it.borrow())).collect();
        let is_ready = told.0 || states.iter().all(|(ready, _)| *ready);
        let words = states.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ");
        if is_ready && !told.0 {
            notify(NotifyState::Ready);
        }
        if words != told.1 {
            notify(NotifyState::Status(&words));
        }
        told = (is_ready, words);
        let news = statuses.iter().all(|it| it.has_changed().unwrap_or(false));
        if pings.is_due(Instant::now(), news) {
            statuses.iter_mut().for_each(watch::Receiver::mark_unchanged);
            notify(NotifyState::Watchdog);
        }
    }
    notify(NotifyState::Stopping);
}

/// When to ping.
struct Pings {
    every: Option<Duration>,
    last: Option<Instant>,
}

impl Pings {
    fn new(deadline: Option<Duration>) -> Self {
        Self { every: deadline.map(|it| it / PINGS), last: None }
    }

    /// Whether one is due: not too often, and only with news of every engine since the last one.
    fn is_due(&mut self, now: Instant, news: bool) -> bool {
        let Some(every) = self.every else { return false };
        let due = news && self.last.is_none_or(|last| now.duration_since(last) >= every);
        if due {
            self.last = Some(now);
        }
        due
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!(%error, "could not tell the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_without_news_is_not_vouched_for() {
        let mut pings = Pings::new(Some(Duration::from_secs(40)));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(!pings.is_due(start, false), "nothing is known of it yet");
        assert!(pings.is_due(start, true));
        assert!(!pings.is_due(after(9), true), "a ping every 10 s is enough");
        assert!(!pings.is_due(after(11), false), "it hangs");
        assert!(!pings.is_due(after(300), false), "and it still hangs");
        assert!(pings.is_due(after(301), true));
    }

    #[test]
    fn without_a_watchdog_there_are_no_pings() {
        assert!(!Pings::new(None).is_due(Instant::now(), true));
    }
}
