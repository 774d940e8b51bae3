use async_nats::jetstream;
use jiff::Timestamp;

use crate::record::rounded;

/// What a delivery says about itself.
pub(super) struct Place {
    pub(super) consumer_seq: u64,
    pub(super) stream_seq: u64,
    pub(super) stored_at: Timestamp,
    pub(super) redelivered: bool,
    /// Messages behind it.
    pub(super) pending: u64,
}

impl Place {
    pub(super) fn of(info: &jetstream::message::Info<'_>) -> Self {
        let stored_at = Timestamp::from_nanosecond(info.published.unix_timestamp_nanos());
        Self {
            consumer_seq: info.consumer_sequence,
            stream_seq: info.stream_sequence,
            stored_at: rounded(stored_at.unwrap_or_default()),
            redelivered: info.delivered > 1,
            pending: info.pending,
        }
    }
}
