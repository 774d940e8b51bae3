use std::time::Duration;

/// How long to wait between attempts: a random time up to `first`, then up to twice that, and so
/// on, but never beyond `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest pause after the first failure: 1 s.
    pub first: Duration,
    /// The longest pause of all: 5 min. Also caps what a handler asks for.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(300) }
    }
}

/// What an inbox needs to know, beside its connections.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) consumer: String,
    pub(crate) stream: String,
    pub(crate) filter_subjects: Vec<String>,
    pub(crate) lanes: usize,
    pub(crate) batch: usize,
    pub(crate) lease: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) ack_wait: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) schema: String,
}

impl Config {
    pub(crate) fn new(consumer: String) -> Self {
        Self {
            consumer,
            stream: String::new(),
            filter_subjects: Vec::new(),
            lanes: 8,
            batch: 64,
            lease: Duration::from_secs(30),
            max_attempts: 5,
            ack_wait: Duration::from_secs(30),
            backoff: Backoff::default(),
            schema: "public".to_owned(),
        }
    }
}
