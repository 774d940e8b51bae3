//! What the inbox calls with each event.

use std::future::Future;
use std::time::Duration;

/// One delivery of an event to a leased handler.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// The consumer that it is delivered for.
    pub consumer: &'a str,
    /// The event.
    pub event: &'a outbox::Event,
    /// The subject that it was published on.
    pub subject: &'a str,
    /// The headers of the message, as they came.
    pub headers: &'a async_nats::HeaderMap,
    /// The stream that it came from.
    pub stream: &'a str,
    /// Its sequence there.
    pub stream_seq: u64,
    /// Counted from 1.
    pub attempt: u32,
    /// The attempt after which it is parked.
    pub max_attempts: u32,
    /// How long the claim lasts unless it is renewed.
    pub lease: Duration,
}

/// What a handler made of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The effect is there.
    Processed {
        /// Kept with the event.
        outcome: Option<String>,
    },
    /// It may work later.
    Retry {
        /// Why.
        reason: String,
        /// When, at the earliest.
        after: Option<Duration>,
    },
    /// The handler, not the event, is at fault.
    Misconfigured {
        /// Why.
        reason: String,
    },
    /// It will never work.
    Dead {
        /// Why.
        reason: String,
    },
}

/// Handles events under a lease.
pub trait LeasedHandler: Send + Sync + 'static {
    /// Handles one event.
    fn handle(&self, delivery: Delivery<'_>) -> impl Future<Output = Verdict> + Send;
}
