//! What became of an event that was started.

use std::time::Duration;

use super::breaker::Trouble;
use super::lanes::{Ending, Item, Path};
use crate::message::MessageId;

/// What a job says of one of its events.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) id: MessageId,
    pub(crate) ending: Ending,
    pub(crate) outcome: Outcome,
    /// Whether the handler was asked, and gave an answer that is about the event.
    pub(crate) answered: bool,
}

/// What a report means for the counts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Processed,
    Skipped,
    Retried,
    Dead,
    /// The handler could not work, whatever the event; the attempt was given back.
    Trouble(Trouble),
    /// The same, but for so long that the event is a dead letter.
    Expired(Trouble),
    /// Nothing has happened; it is begun again, or waits for somebody else.
    Undone,
}

impl Report {
    /// The event has had its effect.
    pub(crate) fn processed(item: &Item) -> Self {
        Self { answered: true, ..Self::resolved(item, Outcome::Processed) }
    }

    /// The event had its end before.
    pub(crate) fn skipped(item: &Item) -> Self {
        Self::resolved(item, Outcome::Skipped)
    }

    /// The event is a dead letter that no handler asked for.
    pub(crate) fn dead(item: &Item) -> Self {
        Self::resolved(item, Outcome::Dead)
    }

    /// The event is a dead letter, since what the handler needs was away for too long.
    pub(crate) fn expired(item: &Item, trouble: Trouble) -> Self {
        Self::resolved(item, Outcome::Expired(trouble))
    }

    fn resolved(item: &Item, outcome: Outcome) -> Self {
        Self { id: item.id(), ending: Ending::Resolved, outcome, answered: false }
    }

    /// The attempt failed, and another one is due after the delay.
    pub(crate) fn retried(item: &Item, delay: Duration) -> Self {
        let ending = Ending::Again { after: delay, path: Path::Careful };
        Self { id: item.id(), ending, outcome: Outcome::Retried, answered: true }
    }

    /// The event's turn comes again at once.
    pub(crate) fn undone(item: &Item, path: Path) -> Self {
        Self::waits(item, Duration::ZERO, path)
    }

    /// The event's turn comes again after the pause.
    pub(crate) fn waits(item: &Item, after: Duration, path: Path) -> Self {
        let ending = Ending::Again { after, path };
        Self { id: item.id(), ending, outcome: Outcome::Undone, answered: false }
    }

    /// The event's turn comes again when the breaker says so.
    pub(crate) fn trouble(item: &Item, trouble: Trouble) -> Self {
        let outcome = Outcome::Trouble(trouble);
        Self { outcome, ..Self::undone(item, item.path.after_fast()) }
    }
}

impl Path {
    pub(super) fn after_fast(self) -> Self {
        if self == Self::Alone { Self::Alone } else { Self::Careful }
    }
}
