//! How long what is done with is kept.

use std::time::Duration;

use servers::Error;

use super::StreamConfig;

/// How long rows are kept that nobody needs any more. `None` means forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Rows of the outbox, from when they were published or dropped by a route; at least
    /// [`StreamConfig::duplicate_window`].
    pub published: Option<Duration>,
    /// Dead letters of the outbox, from when they were discarded. Others stay.
    pub dead_letters: Option<Duration>,
    /// What was done to dead letters, by whom and why; at least as long as `dead_letters`.
    pub audit: Option<Duration>,
    /// Replays, from when they were done or cancelled. The newest stays.
    pub replays: Option<Duration>,
    /// The time between two passes.
    pub interval: Duration,
}

impl RetentionConfig {
    /// Settings that contradict each other, or what they are for.
    pub(super) fn check(&self, stream: &StreamConfig) -> Result<(), Error> {
        let window = stream.duplicate_window;
        if let Some(published) = self.published.filter(|it| *it < window) {
            let text = format!(
                "{published:?} is shorter than stream.duplicate_window, which is {window:?}: a \
                 producer that repeats an insert would be heard again. Raise retention.published, \
                 or lower stream.duplicate_window"
            );
            return Err(Error::invalid("retention.published", text));
        }
        if let (Some(audit), Some(letters)) = (self.audit, self.dead_letters)
            && audit < letters
        {
            let text = format!(
                "{audit:?} is shorter than retention.dead_letters, which is {letters:?}: a dead \
                 letter would be there without what was decided about it. Raise the one, or lower \
                 the other"
            );
            return Err(Error::invalid("retention.audit", text));
        }
        Ok(())
    }
}
