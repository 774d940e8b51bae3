//! What relay and inbox tell of events whose traces are recorded.
//!
//! A [`Span`] has the shape of OpenTelemetry's, and knows nothing of how it is exported. Nobody makes
//! one unless there is a [`SpanSink`].

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use uuid::Uuid;

use crate::fnv;
use crate::wire::{SpanId, TraceContext};

/// Something that was done with an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace, and the span that this one is a child of.
    pub context: TraceContext,
    /// Its own id.
    pub id: SpanId,
    /// What was done, and with which stream.
    pub name: String,
    /// On which side of the broker.
    pub kind: SpanKind,
    /// When it began,
    pub start: SystemTime,
    /// and ended.
    pub end: SystemTime,
    /// What else there is to say. No payloads.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// Another span of the same trace that it follows from.
    pub link: Option<SpanId>,
    /// The class of what went wrong, if something did.
    pub error: Option<&'static str>,
}

/// On which side of the broker something was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A message was published.
    Producer,
    /// A message was handled.
    Consumer,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanValue {
    /// A word, a name, an id.
    Text(String),
    /// A number.
    Number(i64),
}

/// Takes spans. Must not block: it is called where events are published and handled.
#[derive(Clone)]
pub struct SpanSink(Arc<dyn Fn(Span) + Send + Sync>);

impl SpanSink {
    /// Hands each span to `take`.
    pub fn new(take: impl Fn(Span) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// Hands a span over.
    pub fn take(&self, span: Span) {
        (self.0)(span);
    }
}

impl fmt::Debug for SpanSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpanSink")
    }
}

impl From<String> for SpanValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for SpanValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for SpanValue {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// The id of the span in which a message is published: the same whoever works it out, so that the
/// inbox links to it although no header says it. `message` is the id of the event, or of its copy.
#[must_use]
pub fn publish_span_id(message: Uuid) -> SpanId {
    let hash = fnv(message.into_bytes());
    SpanId::new(hash.to_be_bytes()).unwrap_or_else(|| publish_span_id(Uuid::max()))
}
