//! Handles events inside the transaction that their records are in.
//!
//! New events go fast: a transaction writes the records of many, already completed, then their
//! handlers run, then it commits. If anything goes wrong it is as if nothing had happened, and
//! whatever it was about goes carefully from then on: the start is written down, durably, and the
//! event has a transaction for itself, which ends with the completion under the fencing token.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Transaction;

use crate::engine::{Decision, Item, Path, Report, Trouble};
use crate::message::{Message, MessageId};
use crate::postgres::attended::{answered, attended};
use crate::postgres::sqlstate::{is_about_data, is_refused};
use crate::postgres::store::Store;
use crate::record::{End, Key};
use crate::worker::lease::Over;
use crate::worker::work::{Claimed, Context, Reports, Said, Work, trouble, verdict_of};
use crate::{Error, TransactionalHandler, Verdict};

/// After a refusal that is nobody's fault that we know of: time for somebody to look.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct InTransactions<H> {
    pub(crate) handler: Arc<H>,
}

impl<H: TransactionalHandler> Work for InTransactions<H> {
    const SHARES: bool = true;

    async fn run(&self, context: Arc<Context>, items: Vec<Item>, reports: Reports) {
        let done = if items[0].path == Path::Fast {
            self.fast(&context, items).await
        } else {
            let mut done = Vec::with_capacity(items.len());
            for item in items {
                done.push(self.carefully(&context, item).await);
            }
            done
        };
        let _ = reports.send(Said::Reported(done)).await; // fails when the session is gone
    }
}

const HANDLING: &str = "handle events";

/// How a shared transaction went.
enum Shared {
    /// It is committed.
    Done,
    /// It is undone, because of these.
    Undone(Vec<MessageId>),
    /// It is undone, because the handler cannot work: it was noticed at this one.
    Trouble(MessageId, Trouble),
}

impl Shared {
    fn report(&self, item: &Item) -> Report {
        match self {
            Self::Done => Report::processed(item),
            Self::Undone(because) if because.contains(&item.id()) => {
                Report::undone(item, Path::Careful)
            }
            Self::Trouble(at, trouble) if item.id() == *at => {
                Report::trouble(item, trouble.clone())
            }
            Self::Undone(_) | Self::Trouble(..) => Report::undone(item, Path::Fast),
        }
    }
}

impl<H: TransactionalHandler> InTransactions<H> {
    async fn fast(&self, context: &Context, items: Vec<Item>) -> Vec<Report> {
        let mut store = context.pool.get().await;
        let all = items.clone();
        let room = answered(HANDLING, context.make_room(&store, items)).await;
        let (items, mut done) = match room {
            Ok(room) => room,
            Err(error) => {
                trouble(context, &error);
                return all.iter().map(again_later).collect();
            }
        };
        if items.is_empty() {
            return done;
        }
        let mut took = Vec::with_capacity(items.len());
        let shared = self.share(context, &mut store, &items, &mut took).await;
        context.tally.took(took);
        match shared {
            Ok(shared) => {
                done.extend(items.iter().map(|item| shared.report(item)));
                context.pool.put(store);
            }
            Err(Error::Sql { source, .. }) if is_refused(&source) => {
                // The commit, or a statement that a handler ignored: nobody knows whose.
                done.extend(items.iter().map(|item| Report::undone(item, Path::Careful)));
            }
            Err(error) => {
                trouble(context, &error);
                done.extend(items.iter().map(|item| Report::undone(item, Path::Fast)));
            }
        }
        done
    }

    async fn share(
        &self,
        context: &Context,
        store: &mut Store,
        items: &[Item],
        took: &mut Vec<Duration>,
    ) -> Result<Shared, Error> {
        let messages: Vec<&Message> = items.iter().map(|item| &*item.message).collect();
        let pid = store.pid();
        let (sql, transaction) = answered(HANDLING, store.begin()).await?;
        let new =
            answered(HANDLING, sql.record(&transaction, context.term.token, &messages)).await?;
        if new.len() < items.len() {
            answered(HANDLING, transaction.rollback()).await?;
            let known = items.iter().filter(|item| !new.contains(&item.message.key.id));
            return Ok(Shared::Undone(known.map(Item::id).collect()));
        }
        let mut notes: Vec<(Key, String)> = Vec::new();
        let mut attempts = Vec::new();
        for item in items {
            let (delivery, attempt) = context.delivery(&item.message, 1);
            let began = Instant::now();
            let handling = verdict_of(self.handler.handle(delivery, &transaction));
            let verdict = attended(&context.pool, pid, &transaction, handling).await?;
            took.push(began.elapsed());
            let decision = context.decide(verdict, (1, Duration::ZERO));
            if let Decision::Complete { outcome } = decision {
                notes.extend(outcome.map(|note| (item.message.key, note)));
                attempts.extend(attempt.is_recorded().then_some(attempt));
                continue;
            }
            attempt.end(&decision);
            answered(HANDLING, transaction.rollback()).await?;
            return Ok(match decision {
                Decision::GiveBack(trouble) => Shared::Trouble(item.id(), trouble),
                Decision::Complete { .. }
                | Decision::Fail { .. }
                | Decision::Park { .. }
                | Decision::Expire(_) => Shared::Undone(vec![item.id()]),
            });
        }
        if !notes.is_empty() {
            answered(HANDLING, sql.note(&transaction, &notes)).await?;
        }
        answered(HANDLING, commit(transaction)).await?;
        let processed = Decision::Complete { outcome: None };
        attempts.into_iter().for_each(|it| it.end(&processed));
        Ok(Shared::Done)
    }

    async fn carefully(&self, context: &Context, item: Item) -> Report {
        let mut store = context.pool.get().await;
        let mut handled = self.claim_and_handle(context, &mut store, &item).await;
        if let Err(error) = &handled
            && is_about_data(error)
        {
            let parking = context.park_unrecordable(&store, &item, None, error);
            handled = answered(HANDLING, parking).await;
        }
        match handled {
            Ok(report) => {
                context.pool.put(store);
                report
            }
            Err(error) => {
                trouble(context, &error);
                again_later(&item)
            }
        }
    }

    async fn claim_and_handle(
        &self,
        context: &Context,
        store: &mut Store,
        item: &Item,
    ) -> Result<Report, Error> {
        let claiming = context.claim(store, vec![item.clone()]);
        let (mut ours, mut done) = answered(HANDLING, claiming).await?;
        let Some((_, claimed)) = ours.pop() else {
            return Ok(done.pop().expect("it is ours, or something became of it"));
        };
        let partition = context.config.partition;
        let mut lease = context.leases.keep(claimed.claim, partition, claimed.since);
        let began = Instant::now();
        let handled = tokio::select! {
            biased;
            over = lease.over() => Err(over),
            handled = self.handle(context, store, item, &claimed) => Ok(handled),
        };
        let handled = match handled {
            Ok(handled) => handled,
            Err(over) => {
                drop(lease);
                match over {
                    Over::Abandoned => context.release(item, claimed.claim).await,
                    Over::Lost => context.tally.lost(),
                }
                return Err(Error::LeaseLost);
            }
        };
        let decision = match handled {
            Ok(Decision::Complete { .. }) => return Ok(Report::processed(item)),
            Ok(decision) => decision,
            Err(error) if matches!(&error, Error::Sql { source, .. } if is_refused(source)) => {
                let reason = format!("the transaction failed: {}", error.without_data());
                context.decide(Verdict::retry(reason), claimed.tried())
            }
            Err(error) => {
                trouble(context, &error);
                drop(lease);
                context.release(item, claimed.claim).await;
                let is_kept_out = matches!(error, Error::KeptOut { .. });
                return Ok(match is_kept_out {
                    true => again_later(item),
                    false => Report::undone(item, Path::Careful),
                });
            }
        };
        let ending = [(item, claimed.claim, Some((&decision, Some(began.elapsed()))))];
        let written = answered(HANDLING, context.end(store, &ending)).await;
        let report = written.map(|mut reports| reports.remove(0));
        if !matches!(report, Ok(Some(_))) {
            drop(lease);
            context.release(item, claimed.claim).await;
        }
        report.map(|it| it.unwrap_or_else(|| again_later(item)))
    }

    /// Handles an event in a transaction of its own, which is committed if, and only if, the decision
    /// is `Complete`.
    async fn handle(
        &self,
        context: &Context,
        store: &mut Store,
        item: &Item,
        claimed: &Claimed,
    ) -> Result<Decision, Error> {
        let Claimed { claim, attempts, .. } = *claimed;
        let pid = store.pid();
        let (sql, transaction) = answered(HANDLING, store.begin()).await?;
        let (delivery, attempt) = context.delivery(&item.message, attempts);
        let began = Instant::now();
        let handling = verdict_of(self.handler.handle(delivery, &transaction));
        let verdict = attended(&context.pool, pid, &transaction, handling).await?;
        context.tally.took([began.elapsed()]);
        let decision = context.decide(verdict, claimed.tried());
        let Decision::Complete { outcome } = &decision else {
            attempt.end(&decision);
            answered(HANDLING, transaction.rollback()).await?;
            return Ok(decision);
        };
        let ends = [(claim, End::Processed { outcome: outcome.as_deref() })];
        let completing = sql.end(&transaction, &ends);
        if answered(HANDLING, completing).await?.is_empty() {
            let looking = context.is_lost(sql, &transaction, (item, claim));
            answered(HANDLING, looking).await?;
            context.tally.lost();
            answered(HANDLING, transaction.rollback()).await?;
            return Ok(context.decide(Verdict::retry("the lease was lost"), claimed.tried()));
        }
        answered(HANDLING, transaction.commit()).await?;
        context.tally.let_in(item.message.key.id);
        attempt.end(&decision);
        Ok(decision)
    }
}

/// Commits in one round trip, or fails if a statement did that nobody noticed: COMMIT would roll that
/// back and not say so. What stands before it in the same text says so, and COMMIT is not reached.
async fn commit(transaction: Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    transaction.batch_execute("SELECT; COMMIT").await?;
    mem::forget(transaction); // It has ended; dropped, it would be rolled back once more.
    Ok(())
}

fn again_later(item: &Item) -> Report {
    Report::waits(item, REFUSED_PAUSE, item.path)
}
