//! What runs beside the loop.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, try_join_all};
use pgoutput::Lsn;
use tokio::sync::Notify;
use tracing::warn;
use uuid::Uuid;

use crate::describe;
use crate::engine::{
    Blocked, Dead, Found, Place, Settled, SlotHealth, Statement, Swept, Tail, Watermark,
};
use crate::error::Error;
use crate::nats::TailReader;
use crate::postgres::Store;
use crate::postgres::sql::{
    Look, Looker, Marks, RowOfDead, ScannedRow, Scanner, SlotReader, Stuck,
};

/// A statement that has not answered by then never will: the session starts anew.
const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// How long marks wait for a table that is locked. Then the rows are the sweeper's.
const TABLE_LOCKED_MAX: Duration = Duration::from_secs(10);

pub(super) type Job = BoxFuture<'static, Result<Done, Error>>;

/// What a job brought.
pub(super) enum Done {
    Tail(Tail),
    TailFailed(String),
    FailureNoted,
    LookNoted,
    /// Which events are marked as published, and where.
    Marks(HashMap<Uuid, Option<u64>>),
    Purged(u64),
    Parked(Vec<Parked>),
    /// Somebody has the dead letters locked.
    NotParked(Vec<(u64, Dead)>),
    /// What is still owed; `None` if that could not be found out.
    OwedSettled(Option<Stuck>),
    /// `None` if the statement failed: its rows are the sweeper's then.
    Marked {
        statement: Statement,
        marked: Option<Marked>,
    },
    /// Another connection for marks; `None` if it could not be made.
    SecondWriter(Option<Arc<Store>>),
    /// `None` if it could not be taken now.
    Observed(Option<Watermark>),
    /// With what brings more. `None` if the statement failed: the next watermark tries again.
    Unmarked(Option<(Found, Option<Box<Look>>)>),
    /// The stream's messages since the last complete sweep, and whether none is missing.
    SweepTail {
        found: Found,
        tail: Tail,
        is_whole: bool,
    },
    /// `None` if the statement failed: the next watermark tries again.
    Swept(Option<Swept>),
    Scanned(Read),
    /// `None` if nothing could be marked for now.
    ScanMarked {
        batches: usize,
        published: Vec<Settled>,
        marked: Option<Marks>,
    },
    /// Whether others wait for the scan to let go of the table.
    ScanWatched(bool),
    /// Somebody has what it needs locked: it is to begin again.
    ScanPostponed,
    ScanClosed,
    /// Whether it is written down.
    GapFilled(bool),
    Heartbeat,
    LeftServer,
    /// The slot may be confirmed up to here; `None` if that could not be written down.
    Checkpointed(Option<Lsn>),
    Looked(SlotHealth),
}

/// What a scan read.
pub(super) struct Read {
    pub(super) scanner: Box<Scanner>,
    pub(super) rows: Vec<ScannedRow>,
    /// With the first batch of a scan: the aggregates that are blocked.
    pub(super) blocked: Option<Vec<Blocked>>,
    /// With the first batch of a session: the stream's end.
    pub(super) seen: Option<Tail>,
}

/// An event that is in the table, durably.
pub(super) struct Parked {
    pub(super) index: u64,
    pub(super) row: RowOfDead,
}

/// What became of a batch of marks.
pub(super) struct Marked {
    pub(super) rows: u64,
    /// Events of which no row is to be seen: it is gone, or not visible yet.
    pub(super) without_row: Vec<Settled>,
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

/// Who is to read the slot, if we still may send.
pub(super) struct Owner {
    pub(super) store: Arc<Store>,
    pub(super) slot: String,
    /// The process that reads the slot for us.
    pub(super) pid: i32,
}

/// Reads the tail, then makes sure that the slot is still ours. A request that went into a
/// connection that was replaced meanwhile is made again, rather than waited for.
///
/// A relay that was paused while another took its slot over wakes up here: its messages were
/// refused, and it must not try again with the right sequence.
pub(super) fn read_tail(
    tail: TailReader,
    owner: Owner,
    reconnected: Arc<Notify>,
    from: u64,
    system_id: u64,
    delay: Duration,
) -> Job {
    async move {
        tokio::time::sleep(delay).await;
        let read = loop {
            tokio::select! {
                read = tail.since(from, system_id) => break read,
                () = reconnected.notified() => {}
            }
        };
        let Owner { store, slot, pid } = owner;
        let reader = tokio::time::timeout(STATEMENT_MAX, store.slot_reader(&slot)).await;
        match reader.unwrap_or(Err(Error::Stalled("a statement never answered")))? {
            Some(reader) if reader == pid => {}
            _ => return Err(Error::SlotBusy { slot }),
        }
        Ok(match read {
            Ok(read) => Done::Tail(read),
            Err(error) => Done::TailFailed(describe(&error)),
        })
    }
    .boxed()
}

pub(super) fn note_failure(store: Arc<Store>, id: Uuid, reason: String, pause: Duration) -> Job {
    job(async move {
        // Its loss costs one attempt more, if this session ends before the event is done with.
        tolerate(store.note_failure(id, &reason, pause).await);
        Ok(Done::FailureNoted)
    })
}

/// Writes down that the whole table was looked at. Lost, it costs another look.
pub(super) fn note_look(store: Arc<Store>, slot: String, by: Looker) -> Job {
    job(async move {
        tolerate(store.note_look(&slot, by).await);
        Ok(Done::LookNoted)
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

pub(super) fn checkpoint(
    store: Arc<Store>,
    slot: String,
    reader: i32,
    place: Option<Place>,
) -> Job {
    job(async move {
        match store.hold(&slot, reader, place).await {
            // Nothing is confirmed meanwhile, and everything else goes on.
            Err(error) if error.is_contention() => {
                warn!(error = describe(&error), "cannot write down what may be confirmed");
                Ok(Done::Checkpointed(None))
            }
            end => end.map(|end| Done::Checkpointed(Some(end))),
        }
    })
}

/// Parks events, the oldest first.
pub(super) fn park(store: Arc<Store>, reader: SlotReader, batch: Vec<(u64, Dead)>) -> Job {
    job(async move {
        let parked = async {
            // Prepared first: then the connection carries them in the order in which they are polled.
            store.prepare_park().await?;
            let parks = batch.iter().map(async |(index, dead)| {
                let row = store.park(dead, Some(&reader)).await?;
                Ok(Parked { index: *index, row })
            });
            try_join_all(parks).await
        };
        let parked: Result<Vec<Parked>, Error> = parked.await;
        match parked {
            // Those that were parked do not mind being parked again.
            Err(error) if error.is_contention() => {
                let held_up = describe(&error);
                warn!(error = held_up, events = batch.len(), "cannot park, trying again");
                Ok(Done::NotParked(batch))
            }
            parked => parked.map(Done::Parked),
        }
    })
}

/// Removes dead letters that are too old.
pub(super) fn purge(store: Arc<Store>, retention: Duration) -> Job {
    job(async move {
        let purged = tolerate(store.purge(retention.as_secs_f64()).await);
        Ok(Done::Purged(purged.unwrap_or(0)))
    })
}

pub(super) fn settle_owed(store: Arc<Store>) -> Job {
    job(async move { Ok(Done::OwedSettled(tolerate(store.settle_owed().await))) })
}

pub(super) fn look_for_marks(store: Arc<Store>, ids: Vec<Uuid>) -> Job {
    job(async move { store.marks(&ids).await.map(Done::Marks) })
}

pub(super) fn look(store: Arc<Store>, slot: String) -> Job {
    job(async move { store.slot_health(&slot).await.map(Done::Looked) })
}

pub(super) fn mark(
    store: Arc<Store>,
    stream: String,
    batch: Vec<Settled>,
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
        Ok(Done::Marked { statement, marked: tolerate(marked) })
    })
}

/// Marks are not worth a session: whoever locks the table delays them, not the events. A broken
/// connection is noticed by itself.
pub(super) fn tolerate<T>(outcome: Result<T, Error>) -> Option<T> {
    outcome.inspect_err(|error| warn!(error = describe(error), "left rows to be marked later")).ok()
}
