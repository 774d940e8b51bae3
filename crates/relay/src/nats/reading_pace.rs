//! How fast the stream's messages are read.

use async_nats::jetstream::stream::State;

/// Requests for single messages under way at a time.
pub(super) const READS_IN_FLIGHT: usize = 64;

/// Bytes of answers under way at a time, if the next messages are as large as the last ones. Each
/// answer has the whole message.
const BYTES_IN_FLIGHT: u64 = 4 << 20;

/// How many messages to ask for at a time, by their size.
pub(super) struct Pace {
    pub(super) at_once: usize,
}

impl Pace {
    /// By the average of all messages.
    pub(super) fn new(stream: &State) -> Self {
        let mut pace = Self { at_once: 1 };
        pace.saw(stream.bytes / stream.messages.max(1));
        pace
    }

    /// The largest of the last messages took so many bytes.
    pub(super) fn saw(&mut self, bytes: u64) {
        let fit = usize::try_from(BYTES_IN_FLIGHT / bytes.max(1)).unwrap_or(READS_IN_FLIGHT);
        self.at_once = fit.clamp(1, READS_IN_FLIGHT);
    }
}
