//! What runs beside the loop.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use outbox::Event;
use pgoutput::Lsn;
use tokio_postgres::Row;
use tracing::warn;

use crate::broker::TailReader;
use crate::core::{Settled, SlotHealth, Tail, Unmarked};
use crate::database::{Store, Watermark};
use crate::describe;
use crate::error::Error;

/// A statement that has not answered by then never will: the session starts anew.
const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// Between attempts to read the tail of a stream that does not answer.
const TAIL_RETRY_MIN: Duration = Duration::from_millis(50);
const TAIL_RETRY_MAX: Duration = Duration::from_secs(5);

pub(super) type Job = BoxFuture<'static, Result<Done, Error>>;

/// What a job brought.
pub(super) enum Done {
    Tail(Tail),
    Parked {
        index: u64,
        row_was_there: bool,
    },
    /// `None` if the statement failed: its rows are the sweeper's then.
    Marked {
        batch: usize,
        marked: Option<Marked>,
    },
    Observed(Watermark),
    /// `None` if the statement failed: the next watermark tries again.
    Unmarked(Option<Found>),
    /// The stream's messages since the last complete sweep, and whether none is missing.
    SweepTail {
        found: Found,
        tail: Tail,
        is_whole: bool,
    },
    /// `None` if the statement failed: the next watermark tries again.
    Swept(Option<Swept>),
    Scanned {
        scanner: Arc<Store>,
        rows: Vec<Row>,
        seen: Option<Tail>,
    },
    ScanMarked(u64),
    ScanClosed,
    Heartbeat,
    LeftServer,
    /// The slot may be confirmed up to here.
    Held(Lsn),
    Looked(SlotHealth),
}

/// What became of a batch of marks.
pub(super) struct Marked {
    pub(super) rows: u64,
    /// Events of which no row is to be seen: it is gone, or not visible yet.
    pub(super) without_row: Vec<Settled>,
}

/// What a sweep has to judge, and which transactions it could see.
pub(super) struct Found {
    pub(super) rows: Vec<Unmarked>,
    /// The transaction that stored the watermark: every one numbered before it had begun by then.
    pub(super) transaction: u64,
    /// Every transaction numbered before this had ended when the watermark was taken.
    pub(super) oldest_running: u64,
}

/// What a sweep did.
pub(super) struct Swept {
    pub(super) found: Found,
    /// Rows marked.
    pub(super) marked: u64,
    /// Rows that the log did not bring: left to the scanner.
    pub(super) unlogged: u64,
    /// Rows that it may not have brought.
    pub(super) suspected: usize,
}

/// Boxes a job and bounds its time.
pub(super) fn job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    let bounded = tokio::time::timeout(STATEMENT_MAX, work);
    bounded.map(|done| done.unwrap_or(Err(Error::Stalled("a statement never answered")))).boxed()
}

/// Boxes a job that takes the longer the more there is to do. A connection that is dead ends it.
pub(super) fn long_job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    work.boxed()
}

/// Reads the tail for as long as it takes, then makes sure that the slot is still ours.
///
/// A relay that was paused while another took its slot over wakes up here: its messages were
/// refused, and it must not try again with the right sequence.
pub(super) fn read_tail(
    tail: TailReader,
    store: Arc<Store>,
    slot: String,
    reader: i32,
    from: u64,
    delay: Duration,
) -> Job {
    async move {
        tokio::time::sleep(delay).await;
        let mut pause = TAIL_RETRY_MIN;
        let read = loop {
            match tail.since(from).await {
                Ok(read) => break read,
                Err(error) => warn!(
                    error = describe(&error),
                    "the stream does not answer, trying again in {pause:?}"
                ),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(TAIL_RETRY_MAX);
        };
        let owner = tokio::time::timeout(STATEMENT_MAX, store.slot_reader(&slot)).await;
        match owner.unwrap_or(Err(Error::Stalled("a statement never answered")))? {
            Some(owner) if owner == reader => Ok(Done::Tail(read)),
            _ => Err(Error::SlotBusy { slot }),
        }
    }
    .boxed()
}

pub(super) fn park(store: Arc<Store>, index: u64, event: Box<Event>, reason: String) -> Job {
    job(async move {
        let row_was_there = store.park(&event, &reason).await?;
        Ok(Done::Parked { index, row_was_there })
    })
}

/// Goes to another server of the broker's cluster.
pub(super) fn leave_server(tail: TailReader) -> Job {
    job(async move {
        tail.leave_server().await;
        Ok(Done::LeftServer)
    })
}

pub(super) fn heartbeat(store: Arc<Store>) -> Job {
    job(async move { store.heartbeat().await.map(|()| Done::Heartbeat) })
}

pub(super) fn hold(store: Arc<Store>, slot: String, reader: i32) -> Job {
    job(async move { store.hold(&slot, reader).await.map(Done::Held) })
}

pub(super) fn look(store: Arc<Store>, slot: String) -> Job {
    job(async move { store.slot_health(&slot).await.map(Done::Looked) })
}

pub(super) fn mark(store: Arc<Store>, stream: String, batch: Vec<Settled>) -> Job {
    job(async move {
        let marked = async {
            let rows = store.mark(&stream, &batch).await?;
            let all = rows == batch.len() as u64;
            let without_row = if all { Vec::new() } else { store.without_row(&batch).await? };
            Ok(Marked { rows, without_row })
        };
        Ok(Done::Marked { batch: batch.len(), marked: tolerate(marked.await) })
    })
}

/// Marks are not worth a session: whoever locks the table delays them, not the events. A broken
/// connection is noticed by itself.
pub(super) fn tolerate<T>(outcome: Result<T, Error>) -> Option<T> {
    outcome.inspect_err(|error| warn!(error = describe(error), "left rows to be marked later")).ok()
}
