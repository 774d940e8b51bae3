//! Dead letters of both queues, as commands and the API work on them.

use std::time::Duration;

use operate::dead_letters::inbox_letters::{DeadLetterDetail, Marked};
use operate::dead_letters::{Actor, BulkRequest, Progress, Store, ambiguity};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::errors::Refusal;

/// Dead letters looked up at a time.
const PAGE: u32 = 10_000;

/// Works through everything that matches now. Tells how far it got; stops when `stop` is cancelled.
/// What is refused for some is counted and skipped.
pub(crate) async fn work_through<S: Store<Error: Into<anyhow::Error>>>(
    store: &S,
    BulkRequest { action, filter, first, rate, .. }: &BulkRequest,
    actor: &Actor,
    progress: &watch::Sender<Progress>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let aggregates = store.aggregates(filter).await.map_err(Into::into)?;
    if let Some(problem) = ambiguity(&aggregates) {
        return Err(Refusal::conflict(problem).into());
    }
    let (total, until) = store.count(filter).await.map_err(Into::into)?;
    let mut left = first.unwrap_or(u32::MAX);
    progress.send_modify(|it| it.total = total.min(left.into()));
    let at_once = rate.unwrap_or(S::AT_ONCE).clamp(1, S::AT_ONCE);
    // An interval of nothing would panic.
    let least = Duration::from_nanos(1);
    let pause = rate.map(|it| (Duration::from_secs(1) * at_once / it.max(1)).max(least));
    let mut pace = tokio::time::interval(pause.unwrap_or(least));
    let mut last = None;
    loop {
        let page = store.page(filter, until, last.as_ref(), PAGE.min(left)).await;
        let mut page = page.map_err(Into::into)?;
        left = left.saturating_sub(u32::try_from(page.len()).unwrap_or(left));
        for some in page.chunks(at_once as usize) {
            if stop.is_cancelled() {
                progress.send_modify(|it| (it.cancelled, it.ended) = (true, true));
                return Ok(());
            }
            if pause.is_some() {
                pace.tick().await;
            }
            let decided = store.decide(*action, filter, some, actor).await;
            let (done, refusal) = decided.map_err(Into::into)?;
            progress.send_modify(|it| {
                it.done += done as u64;
                it.skipped += some.len().saturating_sub(done) as u64;
                it.last_refusal = refusal.or(it.last_refusal.take());
            });
        }
        last = page.pop();
        if last.is_none() {
            progress.send_modify(|it| it.ended = true);
            return Ok(());
        }
    }
}

/// The only dead letter that the inbox has of an event.
pub(crate) fn only(
    event: Uuid,
    mut found: Vec<DeadLetterDetail>,
) -> Result<DeadLetterDetail, Refusal> {
    if found.len() < 2 {
        return found.pop().ok_or_else(|| no_letter(event));
    }
    let consumers = found.into_iter().filter_map(|it| Some(it.dead_letter?.consumer));
    let consumers = consumers.collect::<Vec<_>>().join(", ");
    let refusal = Refusal::conflict("several consumers have this dead letter");
    Err(refusal.with_hint(format!("name one with --consumer: {consumers}")))
}

pub(crate) fn no_letter(event: Uuid) -> Refusal {
    Refusal::not_found(format!("there is no dead letter of event {event}"))
        .with_hint("`tailpost inbox dlq list` shows all there are")
}

pub(crate) fn not_dead(decision: &str) -> Refusal {
    Refusal::conflict(format!("nothing there is to {decision}")).with_hint(
        "it is requeued, or has no record any more, or cannot be handled whatever changes: see \
         `inbox dlq show`",
    )
}

/// Why an event does not count as processed.
pub(crate) fn not_marked(why: Marked, consumer: &str, event: Uuid) -> Refusal {
    match why {
        Marked::Leased => {
            Refusal::conflict(format!("a worker of {consumer} has event {event} right now"))
                .with_hint("try again when its lease is over, or stop the consumer first")
        }
        Marked::Forgotten => {
            Refusal::conflict(format!("event {event} is older than the inbox remembers"))
                .with_hint("it is not handled any more: if it comes again it becomes a dead letter")
        }
        _ => Refusal::not_found(format!("neither inbox nor outbox know event {event}"))
            .with_hint("name the time in its Occurred-At header with --occurred-at"),
    }
}
