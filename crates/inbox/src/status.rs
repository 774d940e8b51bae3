use serde::Serialize;

/// What an inbox is doing, as of now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What it is up to.
    pub state: State,
    /// Why it does not handle events at the moment, if it does not.
    pub paused: Option<String>,
    /// Events that a handler has.
    pub busy: usize,
    /// Aggregates with an event waiting or at work.
    pub lanes: usize,
    /// Events held in memory, at work or waiting.
    pub held: usize,
    /// What has been done since the start.
    pub counts: Summary,
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
