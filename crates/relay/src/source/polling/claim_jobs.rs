//! Statements of claims, and reads of the stream's tail.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tracing::warn;
use uuid::Uuid;

use super::{NO_SYSTEM, Polling, reach};
use crate::config::Config;
use crate::describe;
use crate::engine::{ClaimEffect, ClaimOutcome, Dead, End, LEASE, LastEvent, Resolved};
use crate::error::Error;
use crate::nats::TailReader;
use crate::postgres::Store;
use crate::postgres::sql::{Rows, ScannedRow, Stuck};
use crate::reporter::Reporter;
use crate::source::{self, STREAM_IS_SHORTER, within};
use crate::status::HistoryStatus;

/// A statement that has not answered by then never will.
const STATEMENT_MAX: Duration = Duration::from_secs(20);

/// What a connection that holds a claim is called.
pub(super) const CONNECTION: &str = "tailpost poll";

/// How often a statement is made again that met others' locks, with pauses.
const CONTENDED_MAX: u32 = 5;

/// The pause between two of them.
const CONTENDED_PAUSE: Duration = Duration::from_secs(1);

type Job = source::Job<Done>;

/// What a job brought.
pub(crate) enum Done {
    Claimed { claim: u32, store: Arc<Rows>, rows: Vec<ScannedRow> },
    NotClaimed { store: Arc<Rows> },
    GaveBack { store: Arc<Rows>, marked: u64 },
    MadeUp { store: Arc<Rows>, found: Option<Stuck> },
    Compared { store: Arc<Rows>, found: HistoryStatus },
    Outcome(ClaimOutcome),
    Nothing,
}

impl Polling {
    /// `None` if it is done, and nothing comes of it.
    pub(super) fn carry_out_effect(
        &mut self,
        effect: ClaimEffect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job>, Error> {
        Ok(Some(match effect {
            ClaimEffect::Claim { claim } => {
                let created = Arc::clone(&self.stream_created);
                claim_rows(Arc::clone(&self.config), created, self.free.pop(), claim)
            }
            ClaimEffect::Renew { claim } => {
                let store = self.holder(claim)?;
                job(async move {
                    store.renew_claim().await?;
                    Ok(Done::Outcome(ClaimOutcome::Renewed { claim }))
                })
            }
            ClaimEffect::Mark { claim, published } => {
                let stream = self.config.stream.name.clone();
                mark_some(self.holder(claim)?, stream, claim, published)
            }
            ClaimEffect::GiveBack { claim, published } => {
                let store = self.claims.remove(&claim).ok_or_else(unknown_claim)?;
                let stream = self.config.stream.name.clone();
                job(async move {
                    let marked = mark(&store, &stream, &published).await?;
                    store.finish_claim().await?;
                    Ok(Done::GaveBack { store, marked })
                })
            }
            ClaimEffect::Park { claim, index, dead } => {
                let store = self.holder(claim)?;
                job(async move {
                    park(&store, &dead).await?;
                    Ok(Done::Outcome(ClaimOutcome::Parked { index }))
                })
            }
            ClaimEffect::NoteFailure { claim, id, reason, pause } => {
                note_failure(self.holder(claim)?, id, reason, pause)
            }
            ClaimEffect::ReadTail { from, delay } => {
                let from = from.saturating_sub(reach(&self.config)).max(1);
                read_tail(self.tail.clone(), from, delay, self.last_event)
            }
            ClaimEffect::LookAtTail { from } => {
                look_at_tail(self.tail.clone(), from, reach(&self.config))
            }
            ClaimEffect::MakeUpForMarks => {
                // It is asked again, and may wait for a connection without a claim.
                let Some(store) = self.free.pop() else { return Ok(None) };
                job(async move {
                    let found = store.mark_owed().await.inspect_err(|error| {
                        warn!(error = describe(error), "left rows to be marked later");
                    });
                    Ok(Done::MadeUp { store, found: found.ok() })
                })
            }
            ClaimEffect::Measure(resolved) => {
                self.last_event = LastEvent::later(Resolved::last_of(&resolved), self.last_event);
                reporter.resolved(&resolved);
                return Ok(None);
            }
            ClaimEffect::Tell(notice) => {
                reporter.tell(notice);
                return Ok(None);
            }
            ClaimEffect::End(end) => return Err(ended(end)),
        }))
    }

    /// The connection that holds a claim.
    fn holder(&self, claim: u32) -> Result<Arc<Rows>, Error> {
        self.claims.get(&claim).map(Arc::clone).ok_or_else(unknown_claim)
    }
}

/// What is done in vain for a claim that nobody holds would never be done.
fn unknown_claim() -> Error {
    Error::bug("a claim is worked on that is not held")
}

fn ended(end: End) -> Error {
    match end {
        End::Refused(reason) => Error::Refused(reason),
        End::ClaimLost => Error::Stalled("a claim was not renewed in time"),
        End::StreamIsShorter => Error::Stalled(STREAM_IS_SHORTER),
        End::Silence | End::LeaveFence(_) => Error::bug("a session over the table has no log"),
    }
}

fn mark_some(store: Arc<Rows>, stream: String, claim: u32, published: Vec<Resolved>) -> Job {
    job(async move {
        Ok(Done::Outcome(match store.mark(&stream, &published).await {
            Err(error) if error.is_contention() => {
                warn!(error = describe(&error), "marking rows later");
                ClaimOutcome::NotMarked { claim, published }
            }
            marked => ClaimOutcome::Marked { claim, marked: marked? },
        }))
    })
}

fn note_failure(store: Arc<Rows>, id: Uuid, reason: String, pause: Duration) -> Job {
    job(async move {
        if let Err(error) = store.note_failure(id, &reason, pause).await {
            warn!(event_id = %id, error = describe(&error), "could not count an attempt");
        }
        Ok(Done::Nothing)
    })
}

fn claim_rows(
    config: Arc<Config>,
    stream_created: Arc<str>,
    free: Option<Arc<Rows>>,
    claim: u32,
) -> Job {
    job(async move {
        let store = match free {
            Some(store) => store,
            None => {
                let store = Store::brief(&config, CONNECTION).await?;
                store.of_stream(&stream_created);
                Arc::new(Rows::of(store).await?)
            }
        };
        let rows = match store.claim(config.poll.batch, LEASE).await {
            // Somebody changes the table.
            Err(error) if error.is_contention() => {
                warn!(error = describe(&error), "cannot claim rows, trying again");
                store.finish_claim().await?;
                return Ok(Done::NotClaimed { store });
            }
            rows => rows?,
        };
        Ok(Done::Claimed { claim, store, rows })
    })
}

/// After a statement that met others' locks: waits, for it to be made again. Who has them for longer ends
/// the session, and with it the claims.
async fn contended(error: Error, times: &mut u32) -> Result<(), Error> {
    *times += 1;
    if !error.is_contention() || *times >= CONTENDED_MAX {
        return Err(error);
    }
    warn!(error = describe(&error), "somebody has the table locked, trying again");
    tokio::time::sleep(CONTENDED_PAUSE).await;
    Ok(())
}

async fn park(store: &Rows, dead: &Dead) -> Result<(), Error> {
    let mut times = 0;
    while let Err(error) = store.park(dead, None).await {
        contended(error, &mut times).await?;
    }
    Ok(())
}

async fn mark(store: &Rows, stream: &str, resolved: &[Resolved]) -> Result<u64, Error> {
    let mut times = 0;
    loop {
        match store.mark(stream, resolved).await {
            Err(error) => contended(error, &mut times).await?,
            marked => return marked,
        }
    }
}

pub(super) fn job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    within(STATEMENT_MAX, work)
}

fn read_tail(tail: TailReader, from: u64, delay: Duration, event: Option<LastEvent>) -> Job {
    async move {
        Ok(Done::Outcome(match tail.since(from, NO_SYSTEM, delay, event).await {
            Ok(read) => ClaimOutcome::Tail(read),
            Err(error) => ClaimOutcome::TailFailed(describe(&error)),
        }))
    }
    .boxed()
}

/// As long as the stream answers: each request of it is bounded.
fn look_at_tail(tail: TailReader, from: u64, newest: u64) -> Job {
    async move {
        Ok(Done::Outcome(match tail.newest_since(from, newest, NO_SYSTEM).await {
            Ok(tail) => ClaimOutcome::Looked(tail),
            Err(error) => ClaimOutcome::LookFailed(describe(&error)),
        }))
    }
    .boxed()
}

#[cfg(test)]
mod tests;
