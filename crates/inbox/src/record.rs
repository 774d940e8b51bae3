//! An event's record: what identifies it, what a claim of it answers, why it is a dead letter.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

/// Starts without an end after which an event is not started again.
pub(crate) const UNFINISHED_MAX: i32 = 3;

/// Which record: with the consumer's name, the primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The event.
    pub id: Uuid,
    /// When it happened.
    pub event_time: Timestamp,
}

/// What a claim found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ClaimReply {
    /// It is ours; this attempt, and all that did not end, are counted.
    /// An attempt failed first so long ago, if one did, since the event was requeued if it was.
    Claimed { attempts: u32, unfinished: u32, age: Option<Duration> },
    /// It has had its effect, or is a dead letter, or was rejected: nothing is left to do.
    Resolved,
    /// Somebody else has it, for so long at most.
    Leased { remaining: Duration },
    /// It failed, and is due again after this.
    Early { remaining: Duration },
    /// Three starts have no end.
    Crashed { attempts: u32 },
    /// It is older than what is remembered, and has no record.
    Forgotten,
    /// It changed while we looked.
    Contended,
}

/// Why an event becomes a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Dead,
    MaxAttempts,
    /// It failed for longer than events are tried.
    Expired,
    Crashes,
    Unreadable,
    Forgotten,
    /// The database refuses its record.
    Unrecordable,
    /// The stream has it no more.
    Gone,
}

impl Cause {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::MaxAttempts => "max_attempts",
            Self::Expired => "expired",
            Self::Crashes => "crashes",
            Self::Unreadable => "unreadable",
            Self::Forgotten => "forgotten",
            Self::Unrecordable => "unrecordable",
            Self::Gone => "gone",
        }
    }
}

/// How a claim ends: the event is processed; or the attempt failed, and another one is due after the
/// delay; or it is as if it had never been made, and the attempt does not count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End<'a> {
    Processed {
        outcome: Option<&'a str>,
    },
    /// The attempt took so long, if the handler was asked.
    Failed {
        reason: &'a str,
        delay: Duration,
        took: Option<Duration>,
    },
    /// What the handler needs was away, if that is why.
    GivenBack {
        failed: Option<Failed<'a>>,
    },
}

/// An attempt that failed, and how long it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed<'a> {
    pub(crate) reason: &'a str,
    pub(crate) took: Duration,
}

impl Failed<'_> {
    /// The status of the answer: the reason of an HTTP handler begins with it.
    pub(crate) fn code(&self) -> Option<i16> {
        let (status, _) = self.reason.split_once(' ')?;
        status.parse().ok().filter(|it| status.len() == 3 && (100..1000).contains(it))
    }
}

/// A claimed record, and the token that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) key: Key,
    pub(crate) token: Uuid,
}

/// A time as PostgreSQL's driver writes it: to the microsecond, counted from 2000. Records were
/// written so, and are found again.
pub(crate) fn truncated(time: Timestamp) -> Timestamp {
    const EPOCH: i128 = 946_684_800_000_000_000;
    let nanos = (time.as_nanosecond() - EPOCH) / 1_000 * 1_000 + EPOCH;
    Timestamp::from_nanosecond(nanos).unwrap_or(time)
}

/// The column keeps microseconds, and a key that is rounded there would not be found again.
pub(crate) fn rounded(time: Timestamp) -> Timestamp {
    time.round(jiff::Unit::Microsecond).unwrap_or(time)
}
