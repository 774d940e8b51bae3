//! What runs beside the loop.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{FutureExt, join_all};
use pgoutput::Lsn;
use tracing::warn;
use uuid::Uuid;

use crate::describe;
use crate::engine::{
    BooksInput, BrokerInput, Dead, LastEvent, Marked, MarkingInput, NotedPlace, Parked, Resolved,
    RowsInput, Statement,
};
use crate::error::Error;
use crate::nats::TailReader;
use crate::postgres::sql::{Books, Marks, Rows, SlotReader};
use crate::source::{Done, Job, within};

/// A statement that has not answered by then never will: the session starts anew.
const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// Dead letters on their way at a time. Together they wait for a lock for less than the session does.
const PARKED_ON_THE_WAY: usize = 8;

/// How long marks wait for a table that is locked. Then the rows are the sweeper's.
const TABLE_LOCKED_MAX: Duration = Duration::from_secs(10);

/// Boxes a job of statements.
pub(super) fn job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    within(STATEMENT_MAX, work)
}

/// Boxes a job that takes the longer the more there is to do. A connection that is dead ends it.
pub(super) fn long_job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    work.boxed()
}

/// Who is to read the slot, if we still may send.
pub(super) struct Owner {
    pub(super) books: Arc<Books>,
    pub(super) reader: SlotReader,
}

/// Reads the tail, then makes sure that the slot is still ours.
///
/// A relay that was paused while another took its slot over wakes up here: its messages were
/// refused, and it must not try again with the right sequence.
pub(super) fn read_tail(
    tail: TailReader,
    owner: Owner,
    from: u64,
    (system_id, event): (u64, Option<LastEvent>),
    delay: Duration,
) -> Job {
    async move {
        let read = tail.since(from, system_id, delay, event).await;
        let Owner { books, reader: SlotReader { slot, pid } } = owner;
        let reader = tokio::time::timeout(STATEMENT_MAX, books.slot_reader(&slot)).await;
        match reader.unwrap_or(Err(Error::Stalled("a statement never answered")))? {
            Some(reader) if reader == pid => {}
            _ => return Err(Error::SlotBusy { slot }),
        }
        Ok(match read {
            Ok(read) => BrokerInput::Tail(read).into(),
            Err(error) => BrokerInput::TailFailed(describe(&error)).into(),
        })
    }
    .boxed()
}

pub(super) fn note_failure(store: Arc<Rows>, id: Uuid, reason: String, pause: Duration) -> Job {
    job(async move {
        // Its loss costs one attempt more, if this session ends before the event is done with.
        tolerate(store.note_failure(id, &reason, pause).await);
        Ok(Done::Nothing)
    })
}

/// Writes down that the whole table was looked at. Lost, it costs another look.
pub(super) fn note_look(noted: impl Future<Output = Result<(), Error>> + Send + 'static) -> Job {
    job(async move {
        tolerate(noted.await);
        Ok(Done::Nothing)
    })
}

pub(super) fn heartbeat(store: Arc<Books>, slot: String) -> Job {
    job(async move { store.heartbeat(&slot).await.map(Done::Asked) })
}

pub(super) fn checkpoint(
    store: Arc<Books>,
    reader: SlotReader,
    (at, place): (Lsn, NotedPlace),
    rules: i64,
    (stream, stream_end): (String, u64),
    event: Option<LastEvent>,
) -> Job {
    job(async move {
        let written = async {
            store.note_stream_end(&stream, stream_end, event).await?;
            store.checkpoint(&reader, at, place, rules).await
        };
        match written.await {
            // Nothing is confirmed meanwhile, and everything else goes on.
            Err(error) if error.is_contention() => {
                warn!(error = describe(&error), "cannot write down what may be confirmed");
                Ok(BooksInput::Checkpointed(None).into())
            }
            written => written.map(|()| BooksInput::Checkpointed(Some(at)).into()),
        }
    })
}

/// Parks events, the oldest first. The first one alone: while somebody has the table locked, each
/// statement on its way would wait for that.
pub(super) fn park(store: Arc<Rows>, reader: SlotReader, batch: Vec<(u64, Dead)>) -> Job {
    job(async move {
        let (mut parked, mut left, mut held_up) = (Vec::new(), VecDeque::from(batch), None);
        while held_up.is_none() && !left.is_empty() {
            let count = if parked.is_empty() { 1 } else { PARKED_ON_THE_WAY.min(left.len()) };
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
                    Some(Err(error)) if error.is_contention() => {
                        held_up = Some(describe(&error));
                        not_parked.push((index, dead));
                    }
                    Some(Err(error)) => return Err(error),
                    None => not_parked.push((index, dead)),
                }
            }
            not_parked.into_iter().rev().for_each(|it| left.push_front(it));
        }
        let Some(held_up) = held_up else { return Ok(RowsInput::Parked(parked).into()) };
        warn!(error = held_up, events = left.len(), "cannot park, trying again");
        // Not those that were: somebody may requeue them meanwhile.
        Ok(RowsInput::NotParked { parked, left: left.into() }.into())
    })
}

pub(super) fn make_up_for_marks(store: Arc<Rows>) -> Job {
    job(async move { Ok(Done::Stuck(tolerate(store.mark_owed().await))) })
}

pub(super) fn look(store: Arc<Books>, slot: String) -> Job {
    job(async move { store.slot_health(&slot).await.map(|it| BooksInput::Slot(it).into()) })
}

pub(super) fn mark(
    store: Arc<Marks>,
    stream: String,
    batch: Vec<Resolved>,
    statement: Statement,
) -> Job {
    job(async move {
        let begun = Instant::now();
        let marked = loop {
            match store.mark_and_miss(&stream, &batch).await {
                // The table is locked: it was waited for, and may be free by now.
                Err(error) if error.is_contention() && begun.elapsed() < TABLE_LOCKED_MAX => {}
                marked => break marked.map(|(rows, without_row)| Marked { rows, without_row }),
            }
        };
        Ok(MarkingInput::Marked { statement, marked: tolerate(marked) }.into())
    })
}

/// Marks are not worth a session: whoever locks the table delays them, not the events. A broken
/// connection is noticed by itself.
pub(super) fn tolerate<T>(outcome: Result<T, Error>) -> Option<T> {
    outcome.inspect_err(|error| warn!(error = describe(error), "left rows to be marked later")).ok()
}
