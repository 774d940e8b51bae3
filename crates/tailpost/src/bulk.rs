//! One action on many dead letters, of whichever queue.

use std::time::Duration;

use operate::dead_letters::{Actor, BulkRequest, Progress, Store};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Dead letters looked up at a time.
const PAGE: u32 = 10_000;

/// Works through everything that matches now. Tells how far it got; stops when `stop` is cancelled.
/// What is refused for some is counted and skipped.
pub(crate) async fn work_through<S: Store<Error: Into<anyhow::Error>>>(
    store: &S,
    BulkRequest { action, filter, rate, .. }: &BulkRequest,
    actor: &Actor,
    progress: &watch::Sender<Progress>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (total, until) = store.count(filter).await.map_err(Into::into)?;
    progress.send_modify(|it| it.total = total);
    let at_once = rate.unwrap_or(S::AT_ONCE).clamp(1, S::AT_ONCE);
    // An interval of nothing would panic.
    let least = Duration::from_nanos(1);
    let pause = rate.map(|it| (Duration::from_secs(1) * at_once / it.max(1)).max(least));
    let mut pace = tokio::time::interval(pause.unwrap_or(least));
    let mut last = None;
    loop {
        let page = store.page(filter, until, last.as_ref(), PAGE).await;
        let mut page = page.map_err(Into::into)?;
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
