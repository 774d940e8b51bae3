use std::fmt;
use std::time::Duration;

use async_nats::HeaderMap;
use outbox::Event;
use outbox::wire::{TraceContext, TraceParent};
use tokio_postgres::Transaction;

/// An event on its way into a handler.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    /// The name of the consumer that the handler belongs to.
    pub consumer: &'a str,
    /// What happened. Its id is the same at every attempt: the key for idempotent calls.
    pub event: &'a Event,
    /// The message's subject.
    pub subject: &'a str,
    /// All headers of the message, as they travelled.
    pub headers: &'a HeaderMap,
    /// The stream that the message is stored in.
    pub stream: &'a str,
    /// Where in the stream.
    pub stream_seq: u64,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The attempt after whose failure the event becomes a dead letter.
    pub max_attempts: u32,
    /// How long the event is ours without a sign of life. It is renewed while the handler runs.
    pub lease: Duration,
    /// The span of this attempt, if [`Builder::spans`](crate::Builder::spans) takes spans and the
    /// event's trace is recorded.
    pub span: Option<TraceParent>,
}

impl Delivery<'_> {
    /// What the spans of a handler are children of: the span of this attempt, or else what the
    /// event's `traceparent` says. `None` if there is none that is well-formed.
    #[must_use]
    pub fn trace_parent(&self) -> Option<TraceParent> {
        self.span.or_else(|| TraceContext::of(self.event).map(|it| it.parent))
    }
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It has had its effect, now or before.
    Processed {
        /// A word for the record, such as `already_processed`.
        outcome: Option<String>,
    },
    /// It may work later. After the last attempt the event becomes a dead letter.
    Retry {
        /// What went wrong. Kept in the database: no payloads, no secrets. If it begins with three
        /// digits and a space, these are kept as the attempt's `code`.
        reason: String,
        /// When to try again; by the backoff if `None`.
        after: Option<Duration>,
    },
    /// What the handler needs is away, whatever the event. The attempt is not counted. Another event
    /// is tried at once; if that one fails too the consumer pauses, for 1 s at first and for 10 min
    /// at most, and tries one event after each pause. An event that fails so again and again while
    /// others are answered is to blame itself: then its attempts count.
    Outage {
        /// What is away. Shown to operators: no payloads, no secrets.
        reason: String,
        /// The shortest pause before the next try, if that is known.
        after: Option<Duration>,
    },
    /// The handler cannot work as it is set up, whatever the event. As [`Verdict::Outage`].
    Misconfigured {
        /// What is wrong with the set-up.
        reason: String,
    },
    /// It will never work: the event becomes a dead letter at once.
    Dead {
        /// Why not.
        reason: String,
    },
}

impl Verdict {
    /// The event has had its effect, and there is nothing to say about it.
    #[must_use]
    pub fn processed() -> Self {
        Self::Processed { outcome: None }
    }

    /// Try again, when the backoff says so.
    #[must_use]
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self::Retry { reason: reason.to_string(), after: None }
    }

    /// Try again, when what the handler needs is back. The attempt does not count.
    #[must_use]
    pub fn outage(reason: impl fmt::Display) -> Self {
        Self::Outage { reason: reason.to_string(), after: None }
    }

    /// Never try again.
    #[must_use]
    pub fn dead(reason: impl fmt::Display) -> Self {
        Self::Dead { reason: reason.to_string() }
    }
}

/// Gives events their effect in the database that the inbox is in: exactly one.
///
/// The record, everything that the handler writes through `transaction`, and the completion commit
/// together or not at all. New events share a transaction, handled one after the other; if the
/// verdict on one of them is not [`Verdict::Processed`], or a statement fails, all of it is undone,
/// that event gets a transaction of its own from then on, and the others are handled anew.
///
/// So a handler may run again for an event whose first run was undone, without this counting as an
/// attempt. What it does outside of the transaction is not undone: that is what [`LeasedHandler`]
/// is for.
pub trait TransactionalHandler: Send + Sync + 'static {
    /// Handles one event. A statement that failed makes the transaction unusable until the verdict
    /// is given; `Processed` is then taken for `Retry`.
    fn handle(
        &self,
        delivery: Delivery<'_>,
        transaction: &Transaction<'_>,
    ) -> impl Future<Output = Verdict> + Send;
}

/// Gives events an effect outside of the database: at least one, with a stable id.
///
/// While it runs, nobody else handles the event: the lease is renewed for as long as it takes. The
/// handler runs again if the process dies before the verdict is recorded.
pub trait LeasedHandler: Send + Sync + 'static {
    /// Handles one event.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if the lease is lost: somebody else may have the event by then.
    fn handle(&self, delivery: Delivery<'_>) -> impl Future<Output = Verdict> + Send;
}
