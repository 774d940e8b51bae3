//! The span of one attempt at an event whose trace is recorded.

use std::time::SystemTime;

use jiff::Timestamp;
use outbox::spans::{Span, SpanKind, SpanSink, SpanValue, publish_span_id};
use outbox::wire::{self, SpanId, TraceContext, TraceParent, header};
use uuid::Uuid;

use crate::config::Config;
use crate::engine::{Decision, Trouble, TroubleKind};
use crate::message::Message;

/// An attempt that is under way. One that is dropped was undone: the worker lost its lease or its
/// database, or another event of the same transaction failed.
///
/// Nothing at all for events whose traces are not recorded, and where nobody takes spans.
pub(crate) struct Attempt(Option<Box<Open>>);

struct Open {
    sink: SpanSink,
    span: Span,
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
        Self(Some(Box::new(Open { sink: sink.clone(), span })))
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

    /// The handler has said what became of the event, and this is done about it.
    pub(crate) fn end(mut self, decision: &Decision) {
        let Some(open) = self.0.take() else { return };
        let (outcome, is_error) = match decision {
            Decision::Complete { .. } => ("processed", false),
            Decision::Fail { .. } => ("retry", true),
            Decision::Park { .. } | Decision::Expire(_) => ("dead_letter", true),
            Decision::GiveBack(Trouble { kind: TroubleKind::Away, .. }) => ("outage", true),
            Decision::GiveBack(Trouble { kind: TroubleKind::Misconfigured, .. }) => {
                ("misconfigured", true)
            }
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::engine::simulation::message;
    use crate::record::Cause;

    #[test]
    fn a_span_says_what_became_of_the_event() {
        let spans = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&spans);
        let mut config = Config::new("billing".into());
        config.spans =
            Some(SpanSink::new(move |span| taken.lock().expect("not poisoned").push(span)));
        let mut message = message(1, 1);
        let event = Arc::get_mut(&mut message).expect("just made").event.as_mut().expect("one");
        let traced =
            r#"{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;
        event.headers = Some(traced.into());
        let (reason, delay) = ("no".to_owned(), Duration::ZERO);
        let trouble = |kind| Trouble { kind, reason: "no".into(), after: None };
        for (decision, outcome) in [
            (Decision::Complete { outcome: None }, "processed"),
            (Decision::Fail { reason: reason.clone(), delay }, "retry"),
            (Decision::Park { cause: Cause::Expired, reason }, "dead_letter"),
            (Decision::Expire(trouble(TroubleKind::Away)), "dead_letter"),
            (Decision::GiveBack(trouble(TroubleKind::Away)), "outage"),
            (Decision::GiveBack(trouble(TroubleKind::Misconfigured)), "misconfigured"),
        ] {
            Attempt::begin(&config, &message, 1).end(&decision);
            let span = spans.lock().expect("not poisoned").pop().expect("a span");
            assert_eq!(span.attributes.last(), Some(&("tailpost.outcome", outcome.into())));
        }
    }
}
