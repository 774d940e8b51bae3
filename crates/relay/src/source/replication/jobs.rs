//! What runs beside the loop.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use tracing::warn;

use super::Replication;
use crate::describe;
use crate::engine::{Dead, Parked, RowsEffect, RowsInput};
use crate::error::Error;
use crate::postgres::sql::{Rows, SlotReader};
use crate::source::{Done, Job, within};

/// A statement that has not answered by then never will: the session starts anew.
pub(super) const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// Dead letters on their way at a time. Together they wait for a lock for less than the session does.
const PARKED_ON_THE_WAY: usize = 8;

/// Boxes a job of statements.
pub(super) fn job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    within(STATEMENT_MAX, work)
}

/// Boxes a job that takes the longer the more there is to do. A connection that is dead ends it.
pub(super) fn long_job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    work.boxed()
}

/// Writes down what costs little if it is lost.
pub(super) fn note(noted: impl Future<Output = Result<(), Error>> + Send + 'static) -> Job {
    job(async move {
        tolerate(noted.await);
        Ok(Done::Nothing)
    })
}

impl Replication {
    /// All rows are reached over one connection, since none are claimed.
    pub(in crate::source) fn rows_job(&self, effect: RowsEffect) -> Job {
        let rows = Arc::clone(&self.rows);
        match effect {
            RowsEffect::Park { batch, .. } => park(rows, self.reader(), batch),
            RowsEffect::NoteFailure { id, reason, pause, .. } => {
                note(async move { rows.note_failure(id, &reason, pause).await })
            }
            RowsEffect::MakeUpForMarks => {
                job(async move { Ok(Done::Stuck(tolerate(rows.mark_owed().await))) })
            }
        }
    }
}

/// Parks events, the oldest first. The first one goes alone: while the table is locked, each further
/// statement would wait for the lock.
fn park(store: Arc<Rows>, reader: SlotReader, batch: Vec<(u64, Dead)>) -> Job {
    job(async move {
        let (mut parked, mut left, mut held_up) = (Vec::new(), VecDeque::from(batch), None);
        while held_up.is_none() && !left.is_empty() {
            let count = if parked.is_empty() { 1 } else { parked_at_once(&left) };
            let some: Vec<_> = left.drain(..count).collect();
            // Prepared first: then the connection carries them in the order in which they are polled.
            let done = match store.prepare_park().await {
                Ok(_) => {
                    join_all(some.iter().map(|(_, dead)| store.park(dead, Some(&reader)))).await
                }
                Err(error) => vec![Err(error)],
            };
            let mut done = done.into_iter();
            let mut not_parked = Vec::new();
            for (index, dead) in some {
                match done.next() {
                    Some(Ok(row)) => parked.push(Parked { index, row }),
                    Some(Err(error))
                        if error.is_contention() || matches!(error, Error::NoLetter { .. }) =>
                    {
                        held_up = Some(why_not_parked(&error));
                        not_parked.push((index, dead));
                    }
                    Some(Err(error)) => return Err(error),
                    None => not_parked.push((index, dead)),
                }
            }
            not_parked.into_iter().rev().for_each(|it| left.push_front(it));
        }
        let Some(held_up) = held_up else { return Ok(RowsInput::Parked(parked).into()) };
        warn!(error = %held_up, events = left.len(), "cannot park, trying again");
        // Not those that were parked: an operator may requeue them meanwhile.
        let left = RowsInput::NotParked { parked, left: left.into() };
        Ok(Done::HeldUp(left.into(), held_up))
    })
}

fn why_not_parked(error: &Error) -> String {
    let said = describe(error);
    if let Error::NoLetter { fix, .. } = error {
        return format!("{said} ({fix})");
    }
    format!("cannot park an event, `tailpost doctor` says who has a lock: {said}")
}

/// How many of them are on their way together: not beside the one that it waits for, which may take
/// longer. Where that is no dead letter, what waits for it is released.
fn parked_at_once(left: &VecDeque<(u64, Dead)>) -> usize {
    let some = || left.iter().take(PARKED_ON_THE_WAY).map(|(_, dead)| dead);
    let waits = |it: &Dead| some().any(|head| Some(head.event.id) == it.blocked_by);
    some().position(waits).unwrap_or(some().count()).max(1)
}

/// A failed mark does not end the session: a lock on the table delays marks, and not events. A broken
/// connection is noticed by itself.
pub(super) fn tolerate<T>(outcome: Result<T, Error>) -> Option<T> {
    outcome.inspect_err(|error| warn!(error = describe(error), "left rows to be marked later")).ok()
}
