use jiff::Timestamp;
use serde::Serialize;

/// What an inbox is doing, as of now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What it is up to.
    pub state: State,
    /// Why it does not handle events at the moment, if it does not.
    pub paused: Option<String>,
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
}

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

/// What the breaker lets through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Everything.
    #[default]
    Closed,
    /// Nothing: the handler failed whatever the event.
    Open,
    /// One event, which is at work.
    HalfOpen,
}

/// What an inbox is up to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Connecting.
    #[default]
    Starting,
    /// Another worker has the consumer; this one takes over when it is gone.
    Standby,
    /// Handling events.
    Active,
    /// Waiting for something to be mended: see [`Status::paused`].
    Paused,
    /// Letting the handlers finish.
    Stopping,
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
    pub(crate) fn name(self) -> &'static str {
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
