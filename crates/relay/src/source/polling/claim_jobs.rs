//! Statements of claims, and reads of the stream's tail.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tracing::warn;

use super::{NO_SYSTEM, Polling, reach};
use crate::config::Config;
use crate::describe;
use crate::engine::{ClaimsEffect, ClaimsInput, LEASE, Parked, RowsEffect, RowsInput};
use crate::error::Error;
use crate::nats::TailReader;
use crate::postgres::Store;
use crate::postgres::sql::Rows;
use crate::source::{Done, Job, tail_read, unless_contended, within};

/// A statement that has not answered by then never will.
const STATEMENT_MAX: Duration = Duration::from_secs(20);

/// What a connection that holds a claim is called.
pub(super) const CONNECTION: &str = "tailpost poll";

/// How often a statement is made again that met others' locks, with pauses.
const CONTENDED_MAX: u32 = 5;

/// The pause between two of them.
const CONTENDED_PAUSE: Duration = Duration::from_secs(1);

impl Polling {
    pub(in crate::source) fn job(&mut self, effect: ClaimsEffect) -> Result<Job, Error> {
        Ok(match effect {
            ClaimsEffect::Claim { claim } => {
                let created = Arc::clone(&self.stream_created);
                claim_rows(Arc::clone(&self.config), created, self.free.pop(), claim)
            }
            ClaimsEffect::Renew { claim } => {
                let store = self.holder(Some(claim))?;
                job(async move {
                    store.renew_claim().await?;
                    Ok(ClaimsInput::Renewed { claim }.into())
                })
            }
            ClaimsEffect::Mark { claim, published } => {
                let (store, stream) = (self.holder(Some(claim))?, self.config.stream.name.clone());
                job(async move {
                    let marked = store.mark(&stream, &published).await;
                    Ok(match unless_contended(marked, "marking rows later")? {
                        Some(marked) => ClaimsInput::Marked { claim, marked: marked.rows }.into(),
                        None => ClaimsInput::NotMarked { claim, published }.into(),
                    })
                })
            }
            ClaimsEffect::GiveBack { claim, published } => {
                let store = self.claims.remove(&claim).ok_or_else(unknown_claim)?;
                let stream = self.config.stream.name.clone();
                job(async move {
                    let marked = insist(|| store.mark(&stream, &published)).await?.rows;
                    store.finish_claim().await?;
                    Ok(freed(store, ClaimsInput::GaveBack { marked }))
                })
            }
            // As long as the stream answers: each request of it is bounded.
            ClaimsEffect::LookAtTail { from } => {
                let (tail, newest) = (self.tail.clone(), reach(&self.config));
                async move {
                    Ok(match tail.newest_since(from, newest, NO_SYSTEM).await {
                        Ok(tail) => ClaimsInput::Looked(tail).into(),
                        Err(error) => ClaimsInput::LookFailed(describe(&error)).into(),
                    })
                }
                .boxed()
            }
        })
    }

    /// A row is reached over the connection of its claim alone.
    pub(in crate::source) fn rows_job(&mut self, effect: RowsEffect) -> Result<Option<Job>, Error> {
        Ok(Some(match effect {
            RowsEffect::Park { claim, batch } => {
                let store = self.holder(claim)?;
                job(async move {
                    let mut parked = Vec::new();
                    for (index, dead) in batch {
                        let row = insist(|| store.park(&dead, None)).await?;
                        parked.push(Parked { index, row });
                    }
                    Ok(RowsInput::Parked(parked).into())
                })
            }
            RowsEffect::NoteFailure { claim, id, reason, pause } => {
                let store = self.holder(claim)?;
                job(async move {
                    if let Err(error) = store.note_failure(id, &reason, pause).await {
                        warn!(event_id = %id, error = describe(&error), "could not count an attempt");
                    }
                    Ok(Done::Nothing)
                })
            }
            RowsEffect::MakeUpForMarks => {
                // It is asked again, and may wait for a connection without a claim.
                let Some(store) = self.free.pop() else { return Ok(None) };
                job(async move {
                    let found = store.mark_owed().await.inspect_err(|error| {
                        warn!(error = describe(error), "left rows to be marked later");
                    });
                    Ok(Done::Freed(store, Done::Stuck(found.ok()).into()))
                })
            }
        }))
    }

    pub(in crate::source) fn read_tail(&self, from: u64, delay: Duration) -> Job {
        let from = from.saturating_sub(reach(&self.config)).max(1);
        let (tail, event) = (self.tail.clone(), self.last_event);
        async move { Ok(tail_read(tail.since(from, NO_SYSTEM, delay, event).await).into()) }.boxed()
    }

    pub(in crate::source) fn tail(&self) -> TailReader {
        self.tail.clone()
    }

    /// The connection that holds a claim.
    fn holder(&self, claim: Option<u32>) -> Result<Arc<Rows>, Error> {
        claim.and_then(|it| self.claims.get(&it)).map(Arc::clone).ok_or_else(unknown_claim)
    }
}

/// An effect for a claim that is not held would be lost.
fn unknown_claim() -> Error {
    Error::bug("a claim is worked on that is not held")
}

/// With a connection that has no claim any more.
fn freed(store: Arc<Rows>, input: ClaimsInput) -> Done {
    Done::Freed(store, Box::new(input.into()))
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
        let rows = store.claim(config.poll.batch, LEASE).await;
        // The table is being changed.
        let Some(rows) = unless_contended(rows, "cannot claim rows, trying again")? else {
            store.finish_claim().await?;
            return Ok(freed(store, ClaimsInput::NotClaimed));
        };
        Ok(Done::Claimed { claim, store, rows })
    })
}

/// Makes a statement again, with pauses, that meets others' locks. If they last, the session ends, and
/// with it the claims.
async fn insist<T, F>(statement: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    for _ in 1..CONTENDED_MAX {
        let what = "somebody has the table locked, trying again";
        if let Some(done) = unless_contended(statement().await, what)? {
            return Ok(done);
        }
        tokio::time::sleep(CONTENDED_PAUSE).await;
    }
    statement().await
}

pub(super) fn job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    within(STATEMENT_MAX, work)
}
