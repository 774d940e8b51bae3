use std::time::Duration;

use outbox::quote;
use outbox::spans::SpanSink;

use crate::Error;
use crate::engine::{Backoff, Rate};

/// What an inbox needs to know, beside its connections.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names the durable consumer, and is part of the key of every record.
    pub consumer: String,
    /// The stream to take events from.
    pub stream: String,
    /// The subjects to take; all of the stream's if there are none.
    pub filter_subjects: Vec<String>,
    /// How many handlers run at a time.
    pub lanes: usize,
    /// The most events that share a transaction of a transactional inbox.
    pub batch: usize,
    /// How long an event belongs to a worker that gives no sign of life.
    pub lease: Duration,
    /// After how many attempts an event becomes a dead letter.
    pub max_attempts: u32,
    /// After how long the broker delivers an event again.
    pub ack_wait: Duration,
    /// How long to wait between attempts.
    pub backoff: Backoff,
    /// How many events are begun in a time.
    pub rate: Option<Rate>,
    /// The schema that holds the tables of the inbox.
    pub schema: String,
    /// For how long records are kept.
    pub retention: Option<Duration>,
    /// For how long decisions are kept.
    pub decisions_retention: Option<Duration>,
    /// How often the tables are looked after.
    pub upkeep_interval: Duration,
    /// Who takes spans of attempts.
    pub spans: Option<SpanSink>,
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
            backoff: crate::engine::backoff::EVENT,
            rate: None,
            schema: "public".to_owned(),
            retention: None,
            decisions_retention: None,
            upkeep_interval: Duration::from_hours(1),
            spans: None,
        }
    }

    /// The schema's name for use in SQL.
    #[must_use]
    pub fn quoted_schema(&self) -> String {
        quote(&self.schema)
    }

    /// How many events are held in memory at most, at work or waiting.
    pub(crate) fn held_max(&self) -> usize {
        (2 * self.lanes * self.batch).clamp(256, 4096)
    }

    /// Says what is wrong with it.
    pub(crate) fn refused(&self, reason: impl Into<String>) -> Error {
        Error::Config { consumer: self.consumer.clone(), reason: reason.into() }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |reason: &str| Err(self.refused(reason));
        let illegal = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
        if self.consumer.is_empty() || self.consumer.contains(illegal) {
            return bad("the consumer's name is empty or has spaces, dots, wildcards or slashes");
        }
        if self.stream.is_empty() {
            return bad("no stream is given");
        }
        if self.lanes == 0 || self.batch == 0 || self.max_attempts == 0 {
            return bad("lanes, batch and max_attempts are at least 1");
        }
        if self.lanes > LANES_MAX || self.batch > BATCH_MAX {
            return bad("lanes are at most 1024, and batch is at most 1024");
        }
        if self.lease < Duration::from_secs(1) || self.ack_wait < Duration::from_secs(1) {
            return bad("lease and ack_wait are at least 1s");
        }
        if self.backoff.first > self.backoff.max {
            return bad("the first backoff is longer than the longest");
        }
        Ok(())
    }
}

const LANES_MAX: usize = 1024;
const BATCH_MAX: usize = 1024;
