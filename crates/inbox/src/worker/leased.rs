//! Handles events under a lease: for effects outside of the database.
//!
//! A statement claims many events at a time; then their handlers run side by side, each with a lease
//! that is renewed. The verdicts of those that end at about the same time are written together.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use crate::engine::{Decision, Item, Path, Report};
use crate::postgres::sqlstate::is_about_data;
use crate::postgres::store::Store;
use crate::worker::lease::{Lease, Over};
use crate::worker::work::{Claimed, Context, Reports, Work, trouble, verdict_of};
use crate::{Error, LeasedHandler, Verdict};

/// After trouble with the database, before it is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// How long writing a batch of verdicts may take before it is tried on another connection.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct UnderLeases<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) recorder: mpsc::Sender<Ended>,
}

/// A verdict that has to be written down, and whom to tell when it is.
pub(crate) struct Ended {
    item: Item,
    claimed: Claimed,
    verdict: Verdict,
    /// Renewed until it is written.
    _lease: Lease,
    reports: Reports,
}

impl<H: LeasedHandler> Work for UnderLeases<H> {
    const SHARES: bool = false;

    async fn run(&self, context: Arc<Context>, items: Vec<Item>, reports: Reports) {
        let ours = claim_all(&context, items, &reports).await;
        let handling = |(item, claimed)| self.handle(&context, item, claimed, &reports);
        let mut running: FuturesUnordered<_> = ours.into_iter().map(handling).collect();
        while running.next().await.is_some() {}
    }
}

impl<H: LeasedHandler> UnderLeases<H> {
    async fn handle(&self, context: &Context, item: Item, claimed: Claimed, reports: &Reports) {
        let lease = context.leases.keep(claimed.claim, claimed.since);
        let (delivery, attempt) = context.delivery(&item.message, claimed.attempts);
        let handling = self.handler.handle(delivery);
        let verdict = tokio::select! {
            biased;
            over = lease.over() => Err(over),
            verdict = verdict_of(handling) => Ok(verdict),
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(over) => {
                drop(lease);
                let report = match over {
                    Over::Lost => lost(context, &item),
                    Over::Abandoned => {
                        context.release(&[claimed.claim]).await;
                        Report::undone(&item, Path::Careful)
                    }
                };
                let _ = reports.send(vec![report]).await; // fails when the session is gone
                return;
            }
        };
        attempt.end(&verdict);
        let reports = reports.clone();
        // Fails only when the session is gone.
        let _ = self.recorder.send(Ended { item, claimed, verdict, _lease: lease, reports }).await;
    }
}

/// Claims what can be claimed, and reports the rest.
async fn claim_all(context: &Context, items: Vec<Item>, reports: &Reports) -> Vec<(Item, Claimed)> {
    let store = context.pool.get().await;
    let all = items.clone();
    let claiming = async {
        let claimed = try_claim_all(context, &store, items).await;
        if claimed.as_ref().is_err_and(is_about_data) {
            return claim_each(context, &store, &all).await;
        }
        claimed
    };
    let claimed = timeout(context.config.lease, claiming).await;
    match claimed.unwrap_or_else(|_| Err(silent(context, "claim events"))) {
        Ok((ours, done)) => {
            context.pool.put(store);
            let _ = reports.send(done).await;
            ours
        }
        Err(error) => {
            trouble(context, &error);
            drop(store);
            let later = all.iter().map(|item| Report::waits(item, PAUSE, item.path));
            let _ = reports.send(later.collect()).await;
            Vec::new()
        }
    }
}

/// What is ours, and what became of the rest.
type ClaimedAll = (Vec<(Item, Claimed)>, Vec<Report>);

/// One of them is refused by the database: it must not keep the others from being claimed.
async fn claim_each(context: &Context, store: &Store, items: &[Item]) -> Result<ClaimedAll, Error> {
    let (mut ours, mut done) = (Vec::new(), Vec::new());
    for item in items {
        match try_claim_all(context, store, vec![item.clone()]).await {
            Ok((claimed, reports)) => {
                ours.extend(claimed);
                done.extend(reports);
            }
            Err(error) if is_about_data(&error) => {
                done.push(context.park_unrecordable(store, item, None, &error).await?);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((ours, done))
}

async fn try_claim_all(
    context: &Context,
    store: &Store,
    items: Vec<Item>,
) -> Result<ClaimedAll, Error> {
    let (items, mut done) = context.make_room(store, items).await?;
    let (readable, unreadable): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| item.message.event.is_ok());
    for item in &unreadable {
        done.push(context.park_unreadable(store, item).await?);
    }
    let mut ours = Vec::with_capacity(readable.len());
    let claims = context.claim(store, &readable).await?;
    for (item, claim) in readable.into_iter().zip(claims) {
        match (claim, &item.convicted) {
            (Ok(claimed), Some(reason)) => {
                let verdict = Verdict::retry(reason);
                done.push(context.write_failure(store, &item, &claimed, &verdict).await?);
            }
            (Ok(claimed), None) => ours.push((item, claimed)),
            (Err(report), _) => done.push(report),
        }
    }
    Ok((ours, done))
}

/// Writes verdicts down, as many at a time as there are. They are not given up: without its record
/// an event would be handled again.
pub(crate) async fn record(context: Arc<Context>, mut ended: mpsc::Receiver<Ended>) {
    let mut batch = Vec::new();
    while ended.recv_many(&mut batch, context.config.batch).await > 0 {
        while !batch.is_empty() {
            let store = context.pool.get().await;
            let writing = async {
                let written = write(&context, &store, &mut batch).await;
                if written.as_ref().is_err_and(is_about_data) {
                    return write_each(&context, &store, &mut batch).await;
                }
                written
            };
            let written = timeout(WRITE_DEADLINE, writing).await;
            match written.unwrap_or_else(|_| Err(silent(&context, "write down verdicts"))) {
                Ok(()) => context.pool.put(store),
                Err(error) => {
                    trouble(&context, &error);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// One of them is refused by the database: it must not keep the others from being written.
async fn write_each(context: &Context, store: &Store, batch: &mut Vec<Ended>) -> Result<(), Error> {
    while let Some(one) = batch.pop() {
        let mut one = vec![one];
        let written = match write(context, store, &mut one).await {
            Err(error) if is_about_data(&error) => {
                park_refused(context, store, &one[0], &error).await.map(|()| one.clear())
            }
            written => written,
        };
        if written.is_err() {
            batch.append(&mut one);
            return written;
        }
    }
    Ok(())
}

async fn park_refused(
    context: &Context,
    store: &Store,
    ended: &Ended,
    error: &Error,
) -> Result<(), Error> {
    let claim = Some(ended.claimed.claim);
    let report = context.park_unrecordable(store, &ended.item, claim, error).await?;
    let _ = ended.reports.send(vec![report]).await; // fails when the session is gone
    Ok(())
}

fn silent(context: &Context, doing: &'static str) -> Error {
    Error::Silent { doing, within: context.config.lease.min(WRITE_DEADLINE) }
}

/// Takes out of `batch` what has been written.
async fn write(context: &Context, store: &Store, batch: &mut Vec<Ended>) -> Result<(), Error> {
    // In the order in which everybody locks records, so that no two wait for each other.
    batch.sort_by_key(|it| it.claimed.claim.key);
    let decide = |it: &Ended| context.decide(it.verdict.clone(), it.claimed.attempts);
    let decisions: Vec<Decision> = batch.iter().map(decide).collect();
    let (mut completed, mut outcomes) = (Vec::new(), Vec::new());
    let (mut failed, mut reasons, mut delays) = (Vec::new(), Vec::new(), Vec::new());
    for (it, decision) in batch.iter().zip(&decisions) {
        match decision {
            Decision::Complete { outcome } => {
                completed.push(it.claimed.claim);
                outcomes.push(outcome.as_deref());
            }
            Decision::Fail { reason, delay } => {
                failed.push(it.claimed.claim);
                reasons.push(reason.as_str());
                delays.push(*delay);
            }
            Decision::Park { .. } | Decision::GiveBack(_) => {}
        }
    }
    let (mut processed, mut retried) = (Vec::new(), Vec::new());
    if !completed.is_empty() {
        let ours = store.sql().complete(store.client(), &completed, &outcomes).await;
        processed = ours.map_err(Error::sql("complete events"))?;
    }
    if !failed.is_empty() {
        let ours = store.sql().fail(store.client(), &failed, &reasons, &delays).await;
        retried = ours.map_err(Error::sql("write down failures"))?;
    }
    let mut reports = Vec::with_capacity(batch.len());
    for (Ended { item, claimed, verdict, .. }, decision) in batch.iter().zip(&decisions) {
        let id = &item.message.key.id;
        reports.push(match decision {
            Decision::Complete { .. } if processed.contains(id) => Report::processed(item),
            Decision::Fail { delay, .. } if retried.contains(id) => Report::retried(item, *delay),
            Decision::Complete { .. } | Decision::Fail { .. } => lost(context, item),
            Decision::Park { .. } | Decision::GiveBack(_) => {
                context.write_failure(store, item, claimed, verdict).await?
            }
        });
    }
    for (it, report) in batch.drain(..).zip(reports) {
        let _ = it.reports.send(vec![report]).await; // fails when the session is gone
    }
    Ok(())
}

/// Another look says whose it is now.
fn lost(context: &Context, item: &Item) -> Report {
    context.tally.lost();
    let (consumer, message) = (&context.config.consumer, &item.message);
    warn!(
        consumer,
        event_id = %message.key.id,
        lsn = message.lsn(),
        trace_id = message.trace_id().map(display),
        "the lease was lost while the handler was at work"
    );
    Report::undone(item, Path::Careful)
}
