//! Handles events under a lease: for effects outside of the database.
//!
//! A statement claims a group of events. Each has a lease from then on, which is renewed, and its
//! handler runs when the engine says so. Whatever verdicts there are when the former ones are
//! written down are written together.

#[cfg(test)]
mod tests;

use std::iter;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::engine::{Decision, Item, Report};
use crate::postgres::attended::answered;
use crate::postgres::sqlstate::{is_about_data, is_locked, is_of_one};
use crate::postgres::store::Store;
use crate::worker::lease::{Lease, Over};
use crate::worker::work::{
    Begun, Claimed, Context, Ending, Reports, Said, Work, trouble, verdict_of,
};
use crate::{Error, LeasedHandler};

/// After trouble with the database, before it is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Verdicts that are written together, at most.
pub(crate) const GROUP_MAX: usize = 512;

pub(crate) struct UnderLeases<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) recorder: mpsc::Sender<Ended>,
}

/// A claim that has to get its end, and whom to tell when it has.
pub(crate) struct Ended {
    item: Item,
    claimed: Claimed,
    /// None if the handler was not asked, or not waited for: the claim is given back.
    decision: Option<Decision>,
    /// How long it was at work, if it was.
    took: Option<Duration>,
    /// Renewed until it is written.
    _lease: Lease,
    reports: Reports,
}

impl<H: LeasedHandler> Work for UnderLeases<H> {
    const SHARES: bool = false;

    async fn run(&self, context: Arc<Context>, items: Vec<Item>, reports: Reports) {
        let ours = claim_all(&context, items, &reports).await;
        let (mut group, mut running) = (Vec::with_capacity(ours.len()), FuturesUnordered::new());
        for (item, claimed) in ours {
            let (begin, begins) = oneshot::channel();
            group.push((item.id(), begin));
            let partition = context.config.partition;
            let lease = context.leases.keep(claimed.claim, partition, claimed.since);
            running.push(self.handle(&context, (item, claimed, lease), begins, &reports));
        }
        let _ = reports.send(Said::Claimed(group)).await; // fails when the session is gone
        while running.next().await.is_some() {}
    }
}

impl<H: LeasedHandler> UnderLeases<H> {
    async fn handle(
        &self,
        context: &Context,
        (item, claimed, mut lease): (Item, Claimed, Lease),
        begins: oneshot::Receiver<()>,
        reports: &Reports,
    ) {
        let ended = {
            // Pinned here: moved into what selects, it would take its room twice.
            let mut handling = pin!(async {
                begins.await.ok()?;
                let (delivery, attempt) = context.delivery(&item.message, claimed.attempts);
                let began = Instant::now();
                let verdict = verdict_of(self.handler.handle(delivery)).await;
                let decision = context.decide(verdict, claimed.tried());
                attempt.end(&decision);
                Some((decision, began.elapsed()))
            });
            tokio::select! {
                biased;
                over = lease.over() => Err(over),
                decision = &mut handling => Ok(decision),
            }
        };
        // Sending fails only when the session is gone.
        let _ = reports.send(Said::Left(item.id())).await;
        let (decision, took) = match ended {
            Ok(decided) => decided.unzip(),
            Err(Over::Abandoned) => (None, None),
            Err(Over::Lost) => {
                drop(lease);
                let _ = reports.send(Said::Reported(vec![context.lost(&item)])).await;
                return;
            }
        };
        let reports = reports.clone();
        let ended = Ended { item, claimed, decision, took, _lease: lease, reports };
        let _ = self.recorder.send(ended).await;
    }
}

/// Claims what can be claimed, and reports the rest.
async fn claim_all(context: &Context, items: Vec<Item>, reports: &Reports) -> Vec<(Item, Claimed)> {
    let turn = context.pool.turns.claims.acquire().await;
    let store = context.pool.get().await;
    let claiming = async {
        match context.claim(&store, items.clone()).await {
            Err(error) if is_of_one(&error) => claim_each(context, &store, &items).await,
            claimed => claimed,
        }
    };
    let (ours, done) = match answered("claim events", claiming).await {
        Ok(claimed) => {
            context.pool.put(store);
            claimed
        }
        Err(error) => {
            trouble(context, &error);
            let later = items.iter().map(|item| Report::waits(item, PAUSE, item.path));
            (Vec::new(), later.collect())
        }
    };
    drop(turn);
    let _ = reports.send(Said::Reported(done)).await; // fails when the session is gone
    ours
}

/// One of them is refused by the database, or locked by somebody: it must not keep the others from
/// being claimed.
async fn claim_each(context: &Context, store: &Store, items: &[Item]) -> Result<Begun, Error> {
    let (mut ours, mut done) = (Vec::new(), Vec::new());
    let mut all_locked = true;
    store.wait_briefly(true).await?;
    for item in items {
        let claimed = context.claim(store, vec![item.clone()]).await;
        all_locked &= claimed.as_ref().is_err_and(is_locked);
        match claimed {
            Ok((claimed, reports)) => {
                ours.extend(claimed);
                done.extend(reports);
            }
            Err(error) if is_about_data(&error) => {
                done.push(match context.park_unrecordable(store, item, None, &error).await {
                    Err(Error::KeptOut { .. }) => Report::waits(item, PAUSE, item.path),
                    parked => parked?,
                });
            }
            Err(error) if is_of_one(&error) => done.push(Report::waits(item, PAUSE, item.path)),
            Err(error) => return Err(error),
        }
    }
    store.wait_briefly(false).await?;
    if all_locked {
        context.look_for_locked_tables(store).await?;
    }
    Ok((ours, done))
}

/// Writes verdicts down, as many at a time as there are. They are not given up: without its record
/// an event would be handled again.
pub(crate) async fn record(context: Arc<Context>, mut ended: mpsc::Receiver<Ended>) {
    let (mut batch, mut alone) = (Vec::new(), JoinSet::new());
    while ended.recv_many(&mut batch, GROUP_MAX).await > 0 {
        context.tally.took(batch.iter().filter_map(|it| it.took));
        write_all(&context, &mut batch).await;
        for one in batch.drain(..) {
            alone.spawn(write_alone(Arc::clone(&context), one));
        }
        while alone.try_join_next().is_some() {}
    }
    alone.join_all().await;
}

/// Its record is locked by somebody, or kept out: it falls out of its group, so that no other waits
/// for it.
async fn write_alone(context: Arc<Context>, ended: Ended) {
    let mut batch = vec![ended];
    while !batch.is_empty() {
        tokio::time::sleep(PAUSE).await;
        write_all(&context, &mut batch).await;
    }
}

/// Leaves in `batch` those whose records are locked, or kept out.
async fn write_all(context: &Context, batch: &mut Vec<Ended>) {
    // In the order in which everybody locks records, so that no two wait for each other.
    batch.sort_by_key(|it| it.claimed.claim.key);
    loop {
        let store = context.pool.get().await;
        let writing = async {
            match context.end(&store, &endings(batch)).await {
                Err(error) if is_of_one(&error) => write_each(context, &store, batch).await,
                written => written,
            }
        };
        match answered("write down verdicts", writing).await {
            Ok(reports) => {
                context.pool.put(store);
                // Those that were written one by one are told, and not in the batch.
                let reports = reports.into_iter().chain(iter::repeat_with(|| None));
                let (written, left): (Vec<_>, Vec<_>) =
                    batch.drain(..).zip(reports).partition(|(_, report)| report.is_some());
                batch.extend(left.into_iter().map(|(it, _)| it));
                let written = written.into_iter().filter_map(|(it, report)| Some((it, report?)));
                return report_all(written).await;
            }
            Err(error) => {
                trouble(context, &error);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Those of a session that follow each other are reported together.
async fn report_all(ended: impl Iterator<Item = (Ended, Report)>) {
    let mut together: Option<(Reports, Vec<Report>)> = None;
    for (it, report) in ended {
        match &mut together {
            Some((to, reports)) if to.same_channel(&it.reports) => reports.push(report),
            _ => tell(together.replace((it.reports, vec![report]))).await,
        }
    }
    tell(together).await;
}

async fn tell(together: Option<(Reports, Vec<Report>)>) {
    let Some((to, reports)) = together else { return };
    let _ = to.send(Said::Reported(reports)).await; // fails when the session is gone
}

/// One of them is refused by the database, or locked by somebody: it must not keep the others from
/// being written. What is written is reported, and taken out of `batch`, also if this is cancelled.
async fn write_each(
    context: &Context,
    store: &Store,
    batch: &mut Vec<Ended>,
) -> Result<Vec<Option<Report>>, Error> {
    let mut all_locked = true;
    store.wait_briefly(true).await?;
    for at in (0..batch.len()).rev() {
        let ended = context.end(store, &endings(&batch[at..=at])).await;
        all_locked &= ended.as_ref().is_err_and(is_locked);
        let report = match ended {
            Ok(mut reports) => match reports.remove(0) {
                Some(report) => report,
                None => continue,
            },
            Err(error) if is_about_data(&error) => {
                let Ended { item, claimed, .. } = &batch[at];
                match context.park_unrecordable(store, item, Some(claimed.claim), &error).await {
                    Err(Error::KeptOut { .. }) => continue,
                    parked => parked?,
                }
            }
            Err(error) if is_of_one(&error) => continue,
            Err(error) => return Err(error),
        };
        batch[at].report(report).await;
        batch.remove(at);
    }
    store.wait_briefly(false).await?;
    if all_locked {
        context.look_for_locked_tables(store).await?;
    }
    Ok(Vec::new())
}

fn endings(batch: &[Ended]) -> Vec<Ending<'_>> {
    batch.iter().map(Ended::ending).collect()
}

impl Ended {
    fn ending(&self) -> Ending<'_> {
        let decided = self.decision.as_ref().map(|decision| (decision, self.took));
        (&self.item, self.claimed.claim, decided)
    }

    async fn report(&self, report: Report) {
        let _ = self.reports.send(Said::Reported(vec![report])).await; // fails when the session is gone
    }
}
