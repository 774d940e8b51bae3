//! A stream that ends before what it has acknowledged: a power cut, or an older copy of the store.
//!
//! JetStream acknowledges a message before it is on the disk (`sync_interval`, 2 minutes by default).
//! <https://jepsen.io/analyses/nats-2.12.1>

use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::Info;
use jiff::Timestamp;
use pgoutput::Lsn;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::engine::{Compared, LastEvent, LostEnd};
use crate::error::Error;
use crate::nats::TailReader;
use crate::postgres::Store;
use crate::postgres::sql::Displaced;

/// How often the stream is asked again, and how long after: a leader that was elected just now may
/// have to catch up with its group.
const LOOKS: u32 = 5;
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// So many rows are compared with the messages that they name at a time, and so many others found.
const COMPARED_AT_ONCE: i64 = 256;
const DISPLACED_MAX: usize = 16 << 10;

/// What the stream has lost.
pub(super) struct Lost {
    /// It was found just now, and rows are to be published again.
    pub(super) now: bool,
    /// There may be rows without marks whose messages it had.
    pub(super) unswept: bool,
    /// The last event that the stream is known to have.
    pub(super) event: Option<LastEvent>,
}

/// When the stream was created.
pub(super) fn created(info: &Info) -> Timestamp {
    Timestamp::try_from(SystemTime::from(info.created)).unwrap_or_default()
}

/// Compares the stream's end with what is written down.
async fn compare(config: &Config, store: &Store, tail: &TailReader) -> Result<Compared, Error> {
    let (slot, stream) = (&config.slot, &config.stream.name);
    let mut looks = 0;
    loop {
        let info = tail.info().await?;
        let last_at = SystemTime::from(info.state.last_timestamp);
        let found = LostEnd {
            created: created(&info),
            acknowledged: 0,
            last_seq: info.state.last_sequence,
            last_at: Timestamp::try_from(last_at).unwrap_or_default(),
            has_grown: false,
        };
        let mut compared = store.compare_stream(slot, stream, found).await?;
        if compared.is_made_anew {
            warn!(
                slot,
                stream,
                "the stream was made anew, or restored from a backup, and ends before the former one: \
                 what that had is not published again; `tailpost verify` says what is missing"
            );
        }
        if let Some(event) = compared.event.filter(|it| it.seq <= found.last_seq)
            && tail.is_replaced(Some(event)).await?
        {
            compared.lost = Some(found.grown());
            return Ok(compared);
        }
        looks += 1;
        if compared.lost.is_none() || looks > LOOKS {
            return Ok(compared);
        }
        info!(stream, "the stream ends before what it has acknowledged: asking its leader again");
        tokio::time::sleep(LOOK_AFTER).await;
    }
}

/// The stream went back further than it ends now, if others have been stored since: by this relay
/// before it was killed, by another one, or by strangers.
async fn displaced(
    store: &Store,
    tail: &TailReader,
    stream: &str,
    lost: LostEnd,
) -> Result<Displaced, Error> {
    let (mut displaced, mut before) = (Displaced::default(), lost.last_seq + 1);
    loop {
        let found = displaced.len();
        let rows = store.named_before(stream, lost, before, COMPARED_AT_ONCE).await?;
        for (id, seq) in rows {
            before = seq;
            match tail.id_at(seq).await? {
                Some(other) if other != id => displaced.add(id, seq),
                Some(_) if displaced.agrees.is_none() => {
                    displaced.agrees = Some(LastEvent { seq, id });
                }
                Some(_) | None => {}
            }
        }
        if displaced.len() == found {
            return Ok(displaced);
        }
        if displaced.len() >= DISPLACED_MAX {
            warn!(
                stream,
                "others are stored in the places of many lost messages: run `tailpost verify`"
            );
            return Ok(displaced);
        }
    }
}

/// What the stream has lost is published again, before anything new: from its rows, or from the log,
/// which brings what committed from `resolved_before` on.
pub(super) async fn mend(
    config: &Config,
    store: &Store,
    tail: &TailReader,
    resolved_before: Lsn,
) -> Result<Lost, Error> {
    let (slot, stream) = (&config.slot, &config.stream.name);
    let compared = compare(config, store, tail).await?;
    let Some(lost) = compared.lost else {
        return Ok(Lost { now: false, unswept: compared.unswept, event: compared.event });
    };
    let displaced = displaced(store, tail, stream, lost).await?;
    let mut rows = 0;
    for _ in 0..LOOKS {
        let (taken, left) =
            store.take_back_lost(stream, lost, &displaced, slot, resolved_before).await?;
        rows += taken;
        if left == 0 {
            break;
        }
        warn!(stream, left, "somebody has rows of lost messages locked");
        tokio::time::sleep(LOOK_AFTER).await;
    }
    tell(stream, lost, &displaced, rows);
    Ok(Lost { now: true, unswept: true, event: displaced.agrees })
}

/// The same where rows are claimed, by any number of nodes: one of them takes the marks back. Returns
/// the last event that the stream is known to have.
pub(super) async fn mend_claimed(
    config: &Config,
    store: &Store,
    tail: &TailReader,
) -> Result<Option<LastEvent>, Error> {
    let stream = &config.stream.name;
    let compared = compare(config, store, tail).await?;
    let Some(lost) = compared.lost else { return Ok(compared.event) };
    let displaced = displaced(store, tail, stream, lost).await?;
    if let Some(rows) = store.take_back_claimed(stream, lost, &displaced).await? {
        tell(stream, lost, &displaced, rows);
    }
    Ok(displaced.agrees)
}

fn tell(stream: &str, lost: LostEnd, displaced: &Displaced, rows: u64) {
    let LostEnd { acknowledged, last_seq, has_grown, .. } = lost;
    let messages = lost.messages(displaced.len());
    let others = if has_grown { ", and others are stored in their places" } else { "" };
    error!(
        stream,
        acknowledged,
        last_sequence = last_seq,
        messages,
        rows,
        "the stream has lost acknowledged messages{others}. Rows that name them are published again, \
         in order, before anything new. `tailpost status` says how many messages no row tells of"
    );
}
