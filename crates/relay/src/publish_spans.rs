//! The span of each message whose trace is recorded: from the commit to the broker's answer.

use std::collections::HashMap;
use std::time::SystemTime;

use jiff::Timestamp;
use outbox::spans::{Span, SpanKind, SpanSink, SpanValue, publish_span_id};
use outbox::wire::TraceContext;
use uuid::Uuid;

use crate::engine::{Resolved, Send};

/// Messages whose spans are kept open. A window has fewer events, unless somebody makes it larger.
/// Beyond this many all of them are given up: nothing will be heard of most.
const UNDER_WAY_MAX: usize = 65_536;

/// Spans that are open. They outlast a session, as the events do.
pub(crate) struct PublishSpans {
    sink: SpanSink,
    stream: String,
    under_way: HashMap<Uuid, UnderWay>,
}

struct UnderWay {
    context: TraceContext,
    subject: String,
    /// Of the event; the message of a copy has an id of its own.
    event: Uuid,
    replay: Option<Uuid>,
    body_bytes: usize,
    first_sent: SystemTime,
    sent: u64,
}

impl PublishSpans {
    pub(crate) fn new(sink: SpanSink, stream: &str) -> Self {
        Self { sink, stream: stream.to_owned(), under_way: HashMap::new() }
    }

    /// A message is sent, perhaps not for the first time.
    pub(crate) fn sending(&mut self, send: &Send<'_>) {
        let id = send.event.id;
        if let Some(known) = self.under_way.get_mut(&id) {
            known.sent += 1;
            return;
        }
        let Some(context) = TraceContext::sampled(send.event) else { return };
        if self.under_way.len() >= UNDER_WAY_MAX {
            self.under_way.clear();
        }
        let begun = UnderWay {
            context,
            subject: send.subject.to_owned(),
            event: send.replayed.map_or(id, |it| it.event),
            replay: send.replayed.map(|it| it.replay),
            body_bytes: send.event.payload.len(),
            first_sent: SystemTime::from(Timestamp::now()),
            sent: 1,
        };
        self.under_way.insert(id, begun);
    }

    /// The stream has it, or a route drops it now.
    pub(crate) fn resolved(&mut self, resolved: &Resolved, committed: impl FnOnce() -> SystemTime) {
        let Some(it) = self.under_way.remove(&resolved.id) else { return };
        let Some(seq) = resolved.seq else { return };
        let mut span = self.span(resolved.id, it);
        span.attributes.push(("tailpost.stream_seq", seq.into()));
        if resolved.origin.is_logged() {
            // The clocks of the two machines may differ.
            span.start = committed().min(span.end);
            span.attributes.push(("tailpost.lsn", resolved.commit_lsn.to_string().into()));
        }
        self.sink.take(span);
    }

    /// The event went into the dead-letter table instead.
    pub(crate) fn parked(&mut self, event: Uuid) {
        let Some(it) = self.under_way.remove(&event) else { return };
        let span = self.span(event, it);
        self.sink.take(Span { error: Some("dead_letter"), ..span });
    }

    fn span(&self, message: Uuid, it: UnderWay) -> Span {
        let mut attributes: Vec<(&'static str, SpanValue)> = vec![
            ("messaging.system", "nats".into()),
            ("messaging.operation.name", "publish".into()),
            ("messaging.operation.type", "send".into()),
            ("messaging.destination.name", it.subject.into()),
            ("messaging.message.id", it.event.to_string().into()),
            ("messaging.message.body.size", (it.body_bytes as u64).into()),
            ("tailpost.stream", self.stream.as_str().into()),
            ("tailpost.attempts", it.sent.into()),
        ];
        attributes.extend(it.replay.map(|it| ("tailpost.replay", it.to_string().into())));
        Span {
            context: it.context,
            id: publish_span_id(message),
            name: format!("publish {}", self.stream),
            kind: SpanKind::Producer,
            start: it.first_sent,
            end: SystemTime::from(Timestamp::now()).max(it.first_sent),
            attributes,
            link: None,
            error: None,
        }
    }
}
