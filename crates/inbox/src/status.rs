use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use servers::Latency;
use uuid::Uuid;

/// What an inbox is doing, as of now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What it is up to.
    pub state: State,
    /// Why it does not handle events at the moment, if it does not.
    pub paused: Option<String>,
    /// Who paused it, if somebody did: then it begins no events until somebody lets it go on.
    pub paused_by: Option<String>,
    /// Whether the handler can be reached.
    pub handler: Handler,
    /// Events that a handler has.
    pub busy: usize,
    /// Aggregates with an event waiting or at work.
    pub lanes: usize,
    /// Events held in memory, at work or waiting.
    pub held: usize,
    /// Events left in the stream behind one of their aggregate that makes no progress; read from
    /// there in their turn.
    pub left: usize,
    /// What has been done since the start.
    pub counts: Summary,
    /// What claims of events found since the start.
    pub claims: Claims,
    /// What became of leases since the start.
    pub leases: LeaseCounts,
    /// Dead letters that were written since the start, by why.
    pub dead_letters: DeadLetterCounts,
    /// How long attempts took, whatever came of them.
    #[serde(rename = "attempt_duration")]
    pub attempts: Attempts,
    /// Markers of the broker's, which are no events, that were passed over since the start.
    pub markers: u64,
    /// When the consumer last went back by itself since the start, if it did: its stream or its
    /// database had been put back to an earlier state.
    pub went_back_at: Option<Timestamp>,
    /// Events that wait for another attempt, the oldest, as of the last second.
    #[serde(serialize_with = "list")]
    pub held_up: Arc<[HeldUp]>,
    /// How each partition is, and what has been done in it, where the consumer is divided.
    #[serde(skip)]
    pub parts: Vec<(State, Summary)>,
}

fn list<S: Serializer>(held_up: &[HeldUp], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(held_up)
}

/// How long attempts took since the start. A copy is the same one: it goes on, and no status is
/// another by it.
#[derive(Debug, Clone, Default)]
pub struct Attempts(Arc<Mutex<Latency>>);

impl Attempts {
    pub(crate) fn record(&self, durations: impl IntoIterator<Item = Duration>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        durations.into_iter().for_each(|it| all.record(it));
    }

    /// As it is now.
    pub fn durations(&self) -> Latency {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Attempts {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Attempts {}

impl Serialize for Attempts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.durations().serialize(to)
    }
}

/// An event that waits for another attempt, or is at it, and what waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldUp {
    /// The event.
    pub event_id: Uuid,
    /// Its aggregate, as `TYPE:ID`, if it says so.
    pub aggregate: Option<String>,
    /// Its type, if it says so.
    pub event_type: Option<String>,
    /// How many later events of its aggregate the consumer was given.
    pub waiting: usize,
}

impl HeldUp {
    /// Of a consumer, at most so many are told.
    pub(crate) const MOST: usize = 20;
}

/// A struct of numbers in an order that [`crate::tally`] counts them in.
macro_rules! counts {
    ($(#[$of:meta])* $name:ident, $by:ident -> $many:literal, { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$of])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            pub(crate) fn of([$($field),*]: [u64; $many]) -> Self {
                Self { $($field),* }
            }

            /// Each number by its name.
            #[must_use]
            pub fn $by(&self) -> [(&'static str, u64); $many] {
                [$((stringify!($field), self.$field)),*]
            }
        }
    };
}

counts! {
/// What claims found. New events that share a transaction are not claimed.
Claims, by_result -> 8, {
    /// The event was free.
    claimed,
    /// The same, and an earlier attempt has no end: its worker died, or lost its lease.
    reclaimed,
    /// Another worker has the event.
    leased,
    /// The event has had its effect, or is a dead letter.
    resolved,
    /// The event failed, and is due later.
    early,
    /// Three attempts have no end: the event becomes a dead letter.
    crashed,
    /// The event is older than what is remembered: it becomes a dead letter.
    forgotten,
    /// The record changed at the same moment.
    contended,
}}

/// What became of leases on events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LeaseCounts {
    /// Renewed while the handler was at work.
    pub renewed: u64,
    /// Lost while the handler was at work: another worker may have handled the event as well.
    pub lost: u64,
}

counts! {
/// Dead letters by why.
DeadLetterCounts, by_reason -> 8, {
    /// The handler said so.
    dead,
    /// The last attempt failed.
    max_attempts,
    /// The event failed for longer than events are tried.
    expired,
    /// Attempts began and did not end.
    crashes,
    /// The message is no event.
    unreadable,
    /// The event is older than what is remembered.
    forgotten,
    /// The database refuses its record.
    unrecordable,
    /// The stream has the event no more.
    gone,
}}

/// Whether events are handed to the handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Handler {
    /// Closed unless the handler fails whatever the event.
    pub breaker: BreakerState,
    /// When one event is tried next, while the breaker is open.
    pub next_probe_at: Option<Timestamp>,
    /// How often the breaker opened since the consumer became active.
    pub opened: u64,
}

/// What the breaker lets through; the less, the greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Everything.
    #[default]
    Closed,
    /// One event, which is at work.
    HalfOpen,
    /// Nothing: the handler failed whatever the event.
    Open,
}

/// What an inbox is up to. Of its partitions the greatest tells how the whole is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Another worker has the consumer; this one takes over when it is gone.
    Standby,
    /// Connecting.
    #[default]
    Starting,
    /// Handling events.
    Active,
    /// Letting the handlers finish.
    Stopping,
    /// Waiting for something to be mended: see [`Status::paused`].
    Paused,
}

/// How many events met which end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Had their effect.
    pub processed: u64,
    /// Were delivered again although they had had their effect, and skipped.
    pub skipped: u64,
    /// Attempts that failed and are to be repeated.
    pub retried: u64,
    /// Became dead letters.
    pub dead: u64,
    /// Were given back untouched at the end.
    pub released: u64,
}

impl State {
    /// As it is in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
        }
    }
}

impl BreakerState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}
