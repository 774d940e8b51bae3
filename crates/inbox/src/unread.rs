//! Messages that left the stream before the consumer was given them.
//!
//! After a limit, a purge or an expiry JetStream delivers the next message that there is, and says
//! nothing of those before it. The role's row has up to where none was missed, and how many deliveries
//! there had been by then. What the stream's first message is beyond that, without the deliveries since,
//! was never delivered. Whose subjects those messages had nobody knows any more.

use async_nats::jetstream::consumer::Info;

/// How far a consumer had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Up to this sequence no message was missed, or it was told.
    pub to: u64,
    /// The deliveries that there had been up to there.
    pub given: u64,
}

impl Seen {
    /// How many messages before the `first` of the stream were not delivered since, at most.
    #[must_use]
    pub fn missed(self, first: u64, found: &Info) -> u64 {
        let before = first.saturating_sub(1);
        // What was delivered since may be behind the first.
        let passed = found.delivered.stream_sequence.max(before).saturating_sub(self.to);
        let given = found.delivered.consumer_sequence.saturating_sub(self.given);
        before.saturating_sub(self.to).min(passed.saturating_sub(given))
    }
}
