//! Reads what a range of the stream has, without having it delivered.

use async_nats::Client;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use jiff::Timestamp;

use crate::Error;
use crate::message::{Message, Origin};
use crate::nats::{durable_consumer, stored_message};
use crate::record::Key;
use crate::rewind::RewindOnly;

/// Messages asked for at a time: each may be as large as the broker allows.
const READ_AHEAD: usize = 32;

/// The place of a message, and when the stream stored it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAt {
    /// Where.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
}

/// The first message from this sequence on, if there is one.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn first_from(nats: &Client, stream: &str, seq: u64) -> Result<Option<StoredAt>, Error> {
    let found = stored_message::next(nats, stream, seq).await?;
    Ok(found.map(|it| StoredAt { seq: it.seq, at: it.stored_at }))
}

/// The first message that was stored at `time` or later, if one of these is: a stream's messages are
/// in the order of their times.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn first_since(
    nats: &Client,
    stream: &str,
    (first, last): (u64, u64),
    time: Timestamp,
) -> Result<Option<StoredAt>, Error> {
    let (mut low, mut high, mut found) = (first, last.saturating_add(1), None);
    while low < high {
        let middle = low + (high - low) / 2;
        match first_from(nats, stream, middle).await? {
            Some(message) if message.at < time => low = message.seq + 1,
            Some(message) if message.seq <= last => (high, found) = (middle, Some(message)),
            _ => high = middle,
        }
    }
    Ok(found)
}

/// Which records belong to the messages of this range, by their sequences, as far as the filters let
/// them through.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn keys(
    nats: &Client,
    origin: &Origin,
    filters: &[String],
    range: (u64, u64),
) -> Result<Vec<(u64, Key)>, Error> {
    read(nats, origin, filters, range, |it| (it.stream_seq, it.key)).await
}

/// As [`keys`], and which of them a rewind means.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn meant(
    nats: &Client,
    origin: &Origin,
    filters: &[String],
    range: (u64, u64),
    only: &RewindOnly,
) -> Result<Vec<(u64, Key, bool)>, Error> {
    // A message that cannot be read is no event of anything.
    let means = |it: &Message| it.event.as_ref().map_or(only.is_all(), |it| only.means(it));
    read(nats, origin, filters, range, |it| (it.stream_seq, it.key, means(&it))).await
}

async fn read<T>(
    nats: &Client,
    origin: &Origin,
    filters: &[String],
    (first, last): (u64, u64),
    of: impl Fn(Message) -> T,
) -> Result<Vec<T>, Error> {
    let of = &of;
    let read = |seq| stored_message::get(nats, &origin.stream, seq);
    stream::iter(first..=last)
        .map(read)
        .buffered(READ_AHEAD)
        .try_filter_map(async |stored| {
            let stored = stored.filter(|it| durable_consumer::take(filters, &it.subject));
            let message = stored.map(|it| it.understood(origin)).filter(|it| !it.is_marker());
            Ok(message.map(of))
        })
        .try_collect()
        .await
}
