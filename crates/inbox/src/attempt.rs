//! The span of one attempt at an event whose trace is recorded.

use std::time::SystemTime;

use jiff::Timestamp;
use outbox::spans::{Span, SpanKind, SpanSink, SpanValue, publish_span_id};
use outbox::wire::{self, SpanId, TraceContext, TraceParent, header};
use uuid::Uuid;

use crate::Verdict;
use crate::config::Config;
use crate::message::Message;

/// An attempt that is under way. One that is dropped was undone: the worker lost its lease or its
/// database, or another event of the same transaction failed.
///
/// Nothing at all for events whose traces are not recorded, and where nobody takes spans.
pub(crate) struct Attempt(Option<Box<Open>>);

struct Open {
    sink: SpanSink,
    span: Span,
    is_last: bool,
}

impl Attempt {
    pub(crate) fn begin(config: &Config, message: &Message, number: u32) -> Self {
        let Some(sink) = &config.spans else { return Self(None) };
        let context = message.event.as_ref().ok().and_then(TraceContext::sampled);
        let id = SpanId::new(rand::random());
        let (Some(context), Some(id)) = (context, id) else { return Self(None) };
        let now = SystemTime::from(Timestamp::now());
        let span = Span {
            context,
            id,
            name: format!("process {}", config.stream),
            kind: SpanKind::Consumer,
            start: now,
            end: now,
            attributes: attributes(config, message, number),
            link: publisher(message),
            error: None,
        };
        let is_last = number >= config.max_attempts;
        Self(Some(Box::new(Open { sink: sink.clone(), span, is_last })))
    }

    /// Whether there is a span.
    pub(crate) fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// What the handler's own spans are children of.
    pub(crate) fn parent(&self) -> Option<TraceParent> {
        let Open { span, .. } = self.0.as_deref()?;
        Some(TraceParent { parent_id: span.id, ..span.context.parent })
    }

    /// The handler has said what became of the event.
    pub(crate) fn end(mut self, verdict: &Verdict) {
        let Some(open) = self.0.take() else { return };
        let (outcome, is_error) = match verdict {
            Verdict::Processed { .. } => ("processed", false),
            Verdict::Retry { .. } if !open.is_last => ("retry", true),
            Verdict::Retry { .. } | Verdict::Dead { .. } => ("dead_letter", true),
            Verdict::Outage { .. } => ("outage", true),
            Verdict::Misconfigured { .. } => ("misconfigured", true),
        };
        open.end(outcome, is_error);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.end("undone", false);
        }
    }
}

impl Open {
    fn end(mut self, outcome: &'static str, is_error: bool) {
        self.span.end = SystemTime::from(Timestamp::now()).max(self.span.start);
        self.span.attributes.push(("tailpost.outcome", outcome.into()));
        self.span.error = is_error.then_some(outcome);
        self.sink.take(self.span);
    }
}

fn attributes(config: &Config, message: &Message, number: u32) -> Vec<(&'static str, SpanValue)> {
    let mut attributes: Vec<(&'static str, SpanValue)> = vec![
        ("messaging.system", "nats".into()),
        ("messaging.operation.name", "process".into()),
        ("messaging.operation.type", "process".into()),
        ("messaging.destination.name", message.subject.as_str().into()),
        ("messaging.message.id", message.key.id.to_string().into()),
        ("messaging.message.body.size", (message.payload.len() as u64).into()),
        ("messaging.consumer.group.name", config.consumer.as_str().into()),
        ("tailpost.stream", config.stream.as_str().into()),
        ("tailpost.stream_seq", message.stream_seq.into()),
        ("tailpost.attempt", u64::from(number).into()),
    ];
    attributes.extend(message.lsn().map(|it| ("tailpost.lsn", it.into())));
    attributes
}

/// The span in which the relay published the message, if it was a relay.
fn publisher(message: &Message) -> Option<SpanId> {
    message.headers.get(header::EXPECTED_STREAM)?;
    let replay = message.headers.get(header::REPLAY);
    let replay = replay.and_then(|it| it.as_str().parse::<Uuid>().ok());
    let id = message.key.id;
    Some(publish_span_id(replay.map_or(id, |replay| wire::replayed_id(id, replay))))
}
