//! The span of each message whose trace is recorded: from the commit to the broker's answer.

use std::collections::HashMap;
use std::time::SystemTime;

use jiff::Timestamp;
use outbox::spans::{Span, SpanKind, SpanSink, SpanValue, publish_span_id};
use outbox::wire::TraceContext;
use uuid::Uuid;

use crate::engine::{Resolved, Send};

/// Messages whose spans are kept open. A window has fewer events by default.
/// Beyond this many all of them are ended: nothing will be heard of most.
const UNDER_WAY_MAX: usize = 65_536;

/// What is the matter with a message of which nothing is heard any more.
const UNKNOWN: &str = "unknown";

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
            self.give_up(|_| true);
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

    /// The stream will not have it, for this reason.
    pub(crate) fn failed(&mut self, message: Uuid, error: &'static str) {
        let Some(it) = self.under_way.remove(&message) else { return };
        let span = self.span(message, it);
        self.sink.take(Span { error: Some(error), ..span });
    }

    /// A replay is over, or rests. What an earlier session sent of it may have been found in the
    /// stream since, which nobody tells.
    pub(crate) fn replay_over(&mut self) {
        self.give_up(|it| it.replay.is_some());
    }

    fn give_up(&mut self, which: impl Fn(&UnderWay) -> bool) {
        let given_up: Vec<_> = self.under_way.extract_if(|_, it| which(it)).collect();
        for (message, it) in given_up {
            let span = self.span(message, it);
            self.sink.take(Span { error: Some(UNKNOWN), ..span });
        }
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use outbox::Event;

    use super::*;
    use crate::engine::Replayed;

    /// Open spans, and those that were handed over.
    fn open() -> (PublishSpans, Arc<Mutex<Vec<Span>>>) {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&ended);
        let sink = SpanSink::new(move |span| taken.lock().expect("not poisoned").push(span));
        (PublishSpans::new(sink, "OUTBOX"), ended)
    }

    /// Sends an event, or a copy of it, and returns the message's id.
    fn send(spans: &mut PublishSpans, replay: Option<Uuid>) -> Uuid {
        let parent = "00-4bf92f3577b34da6a3ce929d00000007-00f067aa00000007-01";
        let event = Event::new("order", "o-1", "OrderPlaced", &0).expect("valid");
        let event = event.with_header("traceparent", parent);
        let replayed = replay.map(|replay| Replayed { event: event.id, replay, position: None });
        spans.sending(&Send {
            epoch: 0,
            index: 0,
            expected: None,
            event: &event,
            subject: "outbox.order.OrderPlaced",
            position: None,
            part: None,
            replayed: replayed.as_ref(),
            has_row: true,
        });
        event.id
    }

    #[test]
    fn copies_that_fail_and_copies_of_which_nothing_is_heard_are_ended_as_errors() {
        let (mut spans, ended) = open();
        let replay = Uuid::from_u128(7);
        let copies = [(); 3].map(|()| send(&mut spans, Some(replay)));
        let event = send(&mut spans, None);
        spans.failed(copies[0], "refused");
        let errors = || -> Vec<_> {
            ended.lock().expect("not poisoned").iter().map(|it| it.error).collect()
        };
        assert_eq!(errors(), [Some("refused")]);
        spans.replay_over();
        assert_eq!(errors(), [Some("refused"), Some("unknown"), Some("unknown")]);
        assert_eq!(spans.under_way.keys().collect::<Vec<_>>(), [&event], "it is no copy");
    }

    #[test]
    fn what_does_not_fit_is_ended_and_handed_over() {
        let (mut spans, ended) = open();
        for _ in 0..=UNDER_WAY_MAX {
            send(&mut spans, None);
        }
        let ended = ended.lock().expect("not poisoned");
        assert_eq!((ended.len(), spans.under_way.len()), (UNDER_WAY_MAX, 1));
        assert!(ended.iter().all(|it| it.error == Some("unknown")));
    }
}
