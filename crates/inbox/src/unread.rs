//! Messages that left the stream before the consumer was given them.
//!
//! After a limit, a purge or an expiry JetStream delivers the next message that there is, and says
//! nothing of those before it. The role's row has up to where none was missed, and how many deliveries
//! there had been by then. What the stream's first message is beyond that, without the deliveries since,
//! was never delivered. Whose subjects those messages had nobody knows any more.

use async_nats::jetstream::consumer::SequenceInfo;
use jiff::Timestamp;

/// Up to which sequence everything is handled, and when the message there was stored, if there is one.
pub(crate) type Handled = (u64, Option<Timestamp>);

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
    pub fn missed(self, first: u64, delivered: &SequenceInfo) -> u64 {
        let before = first.saturating_sub(1);
        // What was delivered since may be behind the first, and more than once.
        let reached = delivered.stream_sequence.saturating_sub(self.to);
        let given = delivered.consumer_sequence.saturating_sub(self.given).min(reached);
        let passed = reached.max(before.saturating_sub(self.to));
        before.saturating_sub(self.to).min(passed.saturating_sub(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_delivered_again_and_again_hides_nothing() {
        let seen = Seen { to: 10, given: 10 };
        let missed = |first, stream_sequence, consumer_sequence| {
            let last_active = None;
            seen.missed(first, &SequenceInfo { consumer_sequence, stream_sequence, last_active })
        };
        // Nothing is gone; all that is gone was delivered; some of it; nothing of it.
        assert_eq!(missed(5, 10, 10), 0);
        assert_eq!(missed(31, 30, 30), 0);
        assert_eq!(missed(31, 30, 20), 10);
        assert_eq!(missed(31, 10, 10), 20);
        // What was delivered is behind what is gone.
        assert_eq!(missed(31, 40, 20), 20);
        // Ten were delivered five times, and the ten behind them never.
        assert_eq!(missed(31, 20, 60), 10);
    }
}
