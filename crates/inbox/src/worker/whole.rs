//! A consumer whose partitions are handled apart says what it does as one.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::tally::Tally;
use crate::{Error, Handler, HeldUp, State, Status, Summary};

/// The shortest time between two words.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs the workers of all partitions until they are to stop. If one of them cannot go on, the others
/// stop as always: they finish what they have begun, and give back the rest.
pub(super) async fn run_all(
    workers: impl Iterator<Item = impl Future<Output = Result<Summary, Error>> + Send + 'static>,
    shutdown: &CancellationToken,
) -> Result<Summary, Error> {
    let mut running: JoinSet<_> = workers.collect();
    let mut all = Ok(Summary::default());
    while let Some(ended) = running.join_next().await {
        match (ended.expect("a worker does not panic"), &mut all) {
            (Ok(counts), Ok(summary)) => *summary = summary.and(&counts),
            (Err(error), Ok(_)) => {
                shutdown.cancel();
                all = Err(error);
            }
            (_, Err(_)) => {}
        }
    }
    all
}

/// Tells what all parts do together, until it is dropped.
pub(super) async fn tell(
    mut parts: Vec<watch::Receiver<Status>>,
    tally: &Tally,
    whole: watch::Sender<Status>,
) -> Infallible {
    loop {
        let mut all: Vec<Status> =
            parts.iter_mut().map(|it| it.borrow_and_update().clone()).collect();
        let states = all.iter().map(|it| (it.state, it.counts)).collect();
        name_paused(&mut all);
        let none = Status { state: State::Standby, parts: states, ..tally.status() };
        let status = all.into_iter().fold(none, together);
        whole.send_if_modified(|it| std::mem::replace(it, status.clone()) != status);
        select_all(parts.iter_mut().map(|it| Box::pin(it.changed()))).await.0.ok();
        sleep(PAUSE).await;
    }
}

/// Says of which partition it is that not all say.
fn name_paused(all: &mut [Status]) {
    let works = |it: &Status| it.state != State::Standby && it.paused.is_none();
    if all.iter().any(works) {
        for (partition, status) in all.iter_mut().enumerate() {
            if let Some(paused) = &mut status.paused {
                paused.push_str(&format!(" (partition {partition})"));
            }
        }
    }
}

/// What is wrong with one part is wrong with the whole.
fn together(one: Status, other: Status) -> Status {
    // Who holds one part says nothing of another that fails.
    let (paused, paused_by) = [(one.paused, one.paused_by), (other.paused, other.paused_by)]
        .into_iter()
        .max_by_key(|(paused, by)| (paused.is_some(), by.is_none()))
        .unwrap_or_default();
    let opened = one.handler.opened + other.handler.opened;
    let handler =
        if one.handler.breaker > other.handler.breaker { one.handler } else { other.handler };
    Status {
        state: one.state.max(other.state),
        paused,
        paused_by,
        handler: Handler { opened, ..handler },
        busy: one.busy + other.busy,
        lanes: one.lanes + other.lanes,
        held: one.held + other.held,
        left: one.left + other.left,
        counts: one.counts.and(&other.counts),
        held_up: match (&*one.held_up, &*other.held_up) {
            (_, []) => one.held_up,
            ([], _) => other.held_up,
            (some, more) => some.iter().chain(more).take(HeldUp::MOST).cloned().collect(),
        },
        ..one
    }
}

impl Summary {
    pub(super) fn and(self, other: &Self) -> Self {
        Self {
            processed: self.processed + other.processed,
            skipped: self.skipped + other.skipped,
            retried: self.retried + other.retried,
            dead: self.dead + other.dead,
            released: self.released + other.released,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_fails_is_not_hidden_by_one_that_is_held() {
        let paused = |why: &str, by: Option<&str>| Status {
            paused: Some(why.into()),
            paused_by: by.map(str::to_owned),
            ..Status::default()
        };
        let (held, away) = (paused("paused by ada", Some("ada")), paused("away", None));
        for (one, other) in [(&held, &away), (&away, &held)] {
            let whole = together(one.clone(), other.clone());
            assert_eq!((whole.paused.as_deref(), whole.paused_by), (Some("away"), None));
        }
        let whole = together(Status::default(), held);
        assert_eq!(whole.paused_by.as_deref(), Some("ada"));
    }

    #[test]
    fn a_partition_that_waits_while_others_do_not_is_named() {
        let away = Status { paused: Some("away".into()), ..Status::default() };
        let standby = Status { state: State::Standby, ..Status::default() };
        let mut all = [away.clone(), away.clone(), standby];
        name_paused(&mut all);
        assert_eq!(all[1].paused.as_deref(), Some("away"));
        let mut some = [Status::default(), away];
        name_paused(&mut some);
        assert_eq!(some[1].paused.as_deref(), Some("away (partition 1)"));
    }

    #[tokio::test]
    async fn a_partition_that_cannot_go_on_lets_the_others_finish_what_they_have_begun() {
        let (shutdown, finished) = (CancellationToken::new(), watch::Sender::new(false));
        let worker = |fails: bool| {
            let (shutdown, finished) = (shutdown.clone(), finished.clone());
            async move {
                if fails {
                    return Err(Error::Tables { reason: "for a test".into() });
                }
                shutdown.cancelled().await;
                tokio::task::yield_now().await;
                finished.send_replace(true);
                Ok(Summary { processed: 1, ..Summary::default() })
            }
        };
        let ended = run_all([false, true].into_iter().map(worker), &shutdown).await;
        assert!(matches!(ended, Err(Error::Tables { .. })), "{ended:?}");
        assert!(*finished.borrow(), "its handlers were ended");
    }
}
