//! Compares what is written down with the stream, now and then: the stream's end, and a sample of rows.
//! `tailpost verify` compares all of it.

use std::time::Duration;

use async_nats::jetstream::stream::{self, Info, RetentionPolicy};
use jiff::Timestamp;
use rand::RngExt;

use super::{STREAM_IS_SHORTER, lost_end};
use crate::config::Config;
use crate::describe;
use crate::error::Error;
use crate::nats::{TailReader, stream_check};
use crate::postgres::sql::{MarkedRow, Rows};
use crate::status::HistoryStatus;

/// The first comparison of a session comes so long after its start, and the others after each other.
const FIRST_AFTER: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(60);

/// A stream with less room may have removed its oldest message for the next one.
const ROOM: u64 = 8 << 20;

/// When the next comparison is due.
pub(super) struct HistoryWatch {
    due: Duration,
}

impl HistoryWatch {
    pub(super) fn new() -> Self {
        Self { due: jittered(FIRST_AFTER) }
    }

    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now + jittered(EVERY);
        }
        is_due
    }
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.75..1.25))
}

/// What a comparison found, or why it could not be made.
///
/// # Errors
///
/// If the stream has lost its end, which the next session mends, or was changed so that it refuses it.
pub(super) async fn compare(
    config: &Config,
    rows: &Rows,
    tail: &TailReader,
) -> Result<HistoryStatus, Error> {
    match compared(config, rows, tail).await {
        Err(error) if !matches!(error, Error::Stalled(_)) => {
            let (failing_since, failing) = (Some(Timestamp::now()), Some(describe(&error)));
            Ok(HistoryStatus { failing_since, failing, ..HistoryStatus::default() })
        }
        found => found,
    }
}

async fn compared(config: &Config, rows: &Rows, tail: &TailReader) -> Result<HistoryStatus, Error> {
    let (stream, compared_at) = (&config.stream.name, Timestamp::now());
    // Before the stream is asked: it may only have more.
    let noted = rows.noted_end(stream).await?;
    let info = tail.info().await?;
    if tail.is_another(&info) {
        return Err(Error::Stalled(STREAM_IS_SHORTER));
    }
    if stream_check::is_refused(config, &info, tail) {
        return Err(Error::Stalled("the stream's configuration has changed"));
    }
    if let Some(noted) = noted.filter(|it| it.created == lost_end::created(&info).to_string()) {
        let is_shorter = info.state.last_sequence < noted.last_seq;
        if is_shorter || tail.is_replaced(noted.event).await? {
            return Err(Error::Stalled(STREAM_IS_SHORTER));
        }
    }
    let sample = rows.sample_marked(stream).await?;
    let mut status = HistoryStatus { compared_at: Some(compared_at), ..HistoryStatus::default() };
    for row in sample.iter().filter(|row| !is_removed_by_a_limit(&info, row)) {
        status.rows += 1;
        let found = tail.id_at(row.seq).await?;
        let is_explained = found.is_none() && removes_anywhere(&info.config);
        // It may be published again by now.
        if found != Some(row.id) && !is_explained && rows.is_marked_so(stream, row).await? {
            status.missing_total += 1;
            status.missing = Some(told(stream, row, found.is_some()));
        }
    }
    Ok(status)
}

fn told(stream: &str, row: &MarkedRow, has_another: bool) -> String {
    let MarkedRow { id, seq, .. } = row;
    let instead = if has_another { "has another message there" } else { "has no message there" };
    format!(
        "row {id} says sequence {seq} of stream {stream}, which {instead}: `tailpost verify` says what \
         else is missing"
    )
}

/// Whether the stream may have removed the message because it was the oldest.
fn is_removed_by_a_limit(Info { config, state, .. }: &Info, row: &MarkedRow) -> bool {
    let is_old = !config.max_age.is_zero() && row.age >= config.max_age;
    let is_full = config.max_messages > 0 && state.messages >= config.max_messages.unsigned_abs()
        || config.max_bytes > 0 && state.bytes + ROOM >= config.max_bytes.unsigned_abs();
    row.seq < state.first_sequence && (is_old || is_full || removes_anywhere(config))
}

/// Whether the stream removes messages that have older ones before them. A roll-up is no limit: whoever
/// publishes one removes what was stored.
fn removes_anywhere(config: &stream::Config) -> bool {
    config.retention != RetentionPolicy::Limits
        || config.max_messages_per_subject > 0
        || config.allow_message_ttl
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_soon_and_then_every_minute() {
        let mut watch = HistoryWatch::new();
        let due: Vec<u64> =
            (0..200).filter(|second| watch.is_due(Duration::from_secs(*second))).collect();
        assert!((4..=7).contains(&due[0]), "{due:?}");
        assert!(due.windows(2).all(|it| (45..=76).contains(&(it[1] - it[0]))), "{due:?}");
    }
}
