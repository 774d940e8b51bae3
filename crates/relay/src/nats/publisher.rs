//! Publishing on a core connection, with one inbox for all answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::client::{PublishErrorKind, Statistics};
use async_nats::connection::State;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use async_nats::message::OutboundMessage;
use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use outbox::wire::{self, Position};
use pgoutput::Lsn;
use serde_json::Value as Json;
use servers::NatsLink;
use tokio::sync::watch;

use super::attributes::Attributes;
use super::limits::Limits;
use super::permission_violations::PermissionViolations;
use super::pub_ack::{self, Answerer};
use super::reply_subject::Replies;
use super::stream_check::check_server;
use super::subjects::Subjects;
use crate::engine::{BrokerInput, LastPosition, Part, Refusal, Replayed, Send};
use crate::error::Error;

/// Answers taken at a time, so that sending and reading get their turns.
const ANSWERS_AT_ONCE: usize = 512;

/// How often a message that is too large for the server has the client connect once more, at most.
const CONNECTED_ANEW_EVERY: Duration = Duration::from_secs(10);

/// Headers besides [`OURS`], without those that the event brings.
const OTHERS: usize = 4;

const EXPECTED_STREAM: HeaderName = HeaderName::from_static(wire::header::EXPECTED_STREAM);
const EXPECTED_LAST_SEQUENCE: HeaderName =
    HeaderName::from_static(wire::header::EXPECTED_LAST_SEQUENCE);
const MSG_ID: HeaderName = HeaderName::from_static(wire::header::MSG_ID);
const REPLAY: HeaderName = HeaderName::from_static(wire::header::REPLAY);
const REPLAY_AFTER: HeaderName = HeaderName::from_static(wire::header::REPLAY_AFTER);
const EVENT_ID: HeaderName = HeaderName::from_static(wire::header::EVENT_ID);
const SOURCE: HeaderName = HeaderName::from_static(wire::header::SOURCE);
const POSITION: HeaderName = HeaderName::from_static(wire::header::POSITION);
const POSITION_EVENT: HeaderName = HeaderName::from_static(wire::header::POSITION_EVENT);

/// The names that every event has, in the order in which they are emitted: neither checked nor
/// copied again for each of them.
static OURS: [(&str, HeaderName); 8] = [
    ours(wire::header::MSG_ID),
    ours(wire::header::EVENT_TYPE),
    ours(wire::header::EVENT_VERSION),
    ours(wire::header::AGGREGATE_TYPE),
    ours(wire::header::AGGREGATE_ID),
    ours(wire::header::OCCURRED_AT),
    ours(wire::header::CORRELATION_ID),
    ours(wire::header::CAUSATION_ID),
];

const fn ours(name: &'static str) -> (&'static str, HeaderName) {
    (name, HeaderName::from_static(name))
}

/// Sends messages without waiting for their answers.
///
/// `jetstream::Context::publish` would cost a semaphore permit, a random inbox, a oneshot channel
/// and a map entry for each message, and throws the answer of a dropped future away. Here the
/// [reply subject](super::reply_subject) says what an answer is about and one subscription brings all.
pub(crate) struct Publisher {
    client: Client,
    replies: Replies,
    subjects: Subjects,
    /// What the headers of every message begin with.
    headers: HeaderMap,
    /// Whether messages have a `Nats-Msg-Id`; otherwise the id is in `Tailpost-Event-Id`.
    has_ids: bool,
    /// How messages become CloudEvents, if they do.
    attributes: Option<Attributes>,
    /// Positions of the transaction that was sent last.
    position: PositionPrefix,
    statistics: Arc<Statistics>,
    connects: u64,
    /// Because a message was too large for the server.
    connected_anew_at: Option<Instant>,
    limits: watch::Receiver<Limits>,
    permission_violations: PermissionViolations,
}

/// The broker's answers, whatever was asked on the publisher's inbox.
pub(crate) struct Answers {
    messages: Subscriber,
    from: Answerer,
    /// They tell the stream's domain.
    limits: watch::Receiver<Limits>,
}

/// The history that positions belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct History {
    pub(crate) system_id: u64,
    pub(crate) timeline: u32,
}

impl Publisher {
    pub(crate) async fn new(
        client: Client,
        stream: &str,
        history: History,
        has_ids: bool,
        attributes: Option<Attributes>,
        limits: watch::Receiver<Limits>,
        link: watch::Receiver<NatsLink>,
    ) -> Result<(Self, Answers), Error> {
        let replies = Replies::new(client.new_inbox());
        let messages = client
            .subscribe(replies.subscription())
            .await
            .map_err(Error::jetstream("subscribe to the broker's answers"))?;
        let from = Answerer { stream: stream.to_owned(), domain: limits.borrow().domain.clone() };
        let answers = Answers { messages, from, limits: limits.clone() };
        let stream: HeaderValue =
            stream.parse().map_err(Error::jetstream("name the stream in a header"))?;
        let statistics = client.statistics();
        let connects = statistics.connects.load(Ordering::Relaxed);
        let publisher = Self {
            client,
            replies,
            subjects: Subjects::new(),
            headers: roomy(&EXPECTED_STREAM, &stream, attributes.is_some())?,
            has_ids,
            attributes,
            position: PositionPrefix::new(history),
            statistics,
            connects,
            connected_anew_at: None,
            limits,
            permission_violations: PermissionViolations::new(link),
        };
        Ok((publisher, answers))
    }

    /// Waits until one message can be handed over without blocking.
    ///
    /// Cancel safe. Pending while the client's queue is full.
    pub(crate) async fn ready(&mut self) -> Result<(), Error> {
        std::future::poll_fn(|cx| self.client.poll_ready_unpin(cx))
            .await
            .map_err(Error::jetstream("reach the connection to the broker"))
    }

    /// Whether the connection is there, and the one that [`reconnected`](Self::reconnected) knows. What the
    /// client takes before goes over the next one, to a stream that may have lost its end meanwhile.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
            && self.statistics.connects.load(Ordering::Relaxed) == self.connects
    }

    /// Whether another message can be handed over right now.
    pub(crate) fn is_ready(&mut self) -> bool {
        matches!(self.ready().now_or_never(), Some(Ok(())))
    }

    /// Hands a message over; [`ready`](Self::ready) must have said so. Says why, if the message cannot
    /// be stored; then nothing left.
    ///
    /// # Errors
    ///
    /// If the connection takes no message at all: that says nothing against this one.
    pub(crate) fn send(&mut self, send: &Send<'_>) -> Result<Option<Refusal>, Error> {
        let headers = match self.headers(send) {
            Ok(headers) => headers,
            Err(reason) => return Ok(Some(Refusal::Message(reason))),
        };
        let refusal =
            self.limits.borrow().refusal(send.subject, &headers, send.event.payload.len());
        if refusal.is_some() {
            return Ok(refusal);
        }
        let reply = match send.part {
            Some(part) => self.replies.part(part),
            None => self.replies.message(send.epoch, send.index),
        };
        let message = OutboundMessage {
            subject: self.subjects.of(send.subject),
            reply: Some(reply),
            payload: send.event.payload.clone(),
            headers: Some(headers),
        };
        match self.client.start_send_unpin(message) {
            Ok(()) => Ok(None),
            Err(error) if matches!(error.kind(), PublishErrorKind::MaxPayloadExceeded) => {
                let max = self.client.max_payload();
                let reason =
                    format!("payload and headers exceed the broker's max_payload of {max} bytes");
                Ok(Some(match self.asks_anew() {
                    true => Refusal::OverLimit(reason),
                    false => Refusal::Message(reason),
                }))
            }
            Err(error) => Err(Error::jetstream("hand a message to the broker")(error)),
        }
    }

    /// The server tells its `max_payload` when a client connects, and not when it is configured anew:
    /// the client connects once more, before the stream is asked. False if it has done so lately.
    fn asks_anew(&mut self) -> bool {
        let is_recent = |at: Instant| at.elapsed() < CONNECTED_ANEW_EVERY;
        if self.connected_anew_at.is_some_and(is_recent) {
            return false;
        }
        self.connected_anew_at = Some(Instant::now());
        // There is room for a message, hence for this.
        self.client.force_reconnect().now_or_never().is_some_and(|it| it.is_ok())
    }

    /// Ends a batch; [`ready`](Self::ready) must have said that something can be handed over.
    ///
    /// # Errors
    ///
    /// If the connection takes no message at all.
    pub(crate) fn end(&mut self, end: Part) -> Result<(), Error> {
        let message = OutboundMessage {
            subject: self.subjects.last(),
            reply: Some(self.replies.end(end)),
            payload: Bytes::new(),
            headers: None,
        };
        let sent = self.client.start_send_unpin(message);
        sent.map_err(Error::jetstream("hand a message to the broker"))
    }

    /// Whether the connection was replaced since the last call: whatever had been handed over and
    /// not answered may be lost, in any combination.
    pub(crate) fn reconnected(&mut self) -> bool {
        let connects = self.statistics.connects.load(Ordering::Relaxed);
        std::mem::replace(&mut self.connects, connects) != connects
    }

    /// Whether the server that the connection leads to now can be used.
    pub(crate) fn check_server(&self) -> Result<(), Error> {
        check_server(&self.client)
    }

    /// A subject that the broker's user turned out not to be allowed to publish on, and the words of
    /// the broker. Each word of it is told once.
    ///
    /// # Errors
    ///
    /// [`Error::Unheard`] if the user may not hear answers.
    pub(crate) fn denied(&mut self) -> Result<Option<BrokerInput>, Error> {
        self.permission_violations.next()
    }

    fn headers(&mut self, send: &Send<'_>) -> Result<HeaderMap, String> {
        let mut headers = self.headers.clone();
        let mut illegal = None;
        let mut ours = OURS.iter();
        wire::event_headers(send.event, |name, value| {
            let known = ours.clone().position(|(known, _)| *known == name);
            let name_on_wire = match known.and_then(|at| ours.nth(at)) {
                Some((wire::header::MSG_ID, _)) if !self.has_ids => Ok(EVENT_ID),
                Some((_, name)) => Ok(name.clone()),
                None => name.parse(),
            };
            match (name_on_wire, value.parse::<HeaderValue>()) {
                (Ok(name), Ok(value)) if known.is_some() => headers.insert(name, value),
                (Ok(name), Ok(value)) => headers.append(name, value),
                _ => illegal = Some(format!("header \"{name}\" cannot be sent")),
            }
        })
        .map_err(|error| error.to_string())?;
        if let Some(reason) = illegal {
            return Err(reason);
        }
        if let Some(expected) = send.expected {
            headers.insert(EXPECTED_LAST_SEQUENCE, HeaderValue::from(expected));
        }
        if !send.has_row {
            headers.insert(SOURCE, HeaderValue::from(wire::header::SOURCE_WAL));
        }
        if let Some(copied) = send.replayed {
            self.name_replay(copied, send.position, &mut headers);
        } else if let Some(at) = send.position {
            headers.insert(POSITION, HeaderValue::from(self.position.text(at)));
            if at.event != send.event.id {
                headers.insert(POSITION_EVENT, HeaderValue::from(at.event.to_string()));
            }
        }
        if let Some(attributes) = &self.attributes {
            attributes.add(send.event, self.own_position(send), &mut headers)?;
        }
        Ok(headers)
    }

    /// Where the event itself came in the log that is read now.
    fn own_position(&self, send: &Send<'_>) -> Option<Position> {
        let History { system_id, timeline } = self.position.history;
        let position = match (send.replayed, send.position) {
            (Some(copied), _) => copied.position?,
            (None, Some(at)) if at.event == send.event.id => {
                Position { system_id, timeline, lsn: at.commit_lsn.0, ordinal: at.ordinal }
            }
            (None, _) => return None,
        };
        Some(position).filter(|it| it.system_id == system_id && it.timeline == timeline)
    }

    /// A copy has the event's own id and position; its message has another id.
    fn name_replay(
        &mut self,
        copied: &Replayed,
        after: Option<LastPosition>,
        headers: &mut HeaderMap,
    ) {
        let Replayed { event, replay, position } = *copied;
        headers.insert(MSG_ID, HeaderValue::from(wire::replayed_msg_id(event, replay)));
        headers.insert(EVENT_ID, HeaderValue::from(event.to_string()));
        headers.insert(REPLAY, HeaderValue::from(replay.to_string()));
        if let Some(position) = position {
            headers.insert(POSITION, HeaderValue::from(position.to_string()));
        }
        if let Some(at) = after {
            let after = format!("{} {}", self.position.text(at), at.event);
            headers.insert(REPLAY_AFTER, HeaderValue::from(after));
        }
    }
}

/// One header in a map with room for all that a message has: so its clones need not grow.
///
/// The client offers no `with_capacity`. But a map that is deserialized takes the room that its
/// entries would need if they had different names, and a clone has the room of its original.
fn roomy(name: &HeaderName, value: &HeaderValue, has_attributes: bool) -> Result<HeaderMap, Error> {
    let others = if has_attributes { OTHERS + wire::cloudevents::NAMES.len() } else { OTHERS };
    let entry = format!("{}:[{}]", Json::from(name.to_string()), Json::from(value.as_str()));
    let entries = vec![entry; OURS.len() + others].join(",");
    serde_json::from_str(&format!("{{{entries}}}"))
        .map_err(Error::jetstream("name the stream in a header"))
}

/// Prints positions. What a transaction's events have in common is printed once.
struct PositionPrefix {
    history: History,
    lsn: Lsn,
    text: String,
}

impl PositionPrefix {
    fn new(history: History) -> Self {
        Self { history, lsn: Lsn::ZERO, text: String::new() }
    }

    fn text(&mut self, at: LastPosition) -> String {
        let History { system_id, timeline } = self.history;
        if self.text.is_empty() || self.lsn != at.commit_lsn {
            self.lsn = at.commit_lsn;
            let first = Position { system_id, timeline, lsn: self.lsn.0, ordinal: 0 };
            self.text = first.to_string();
            self.text.pop();
        }
        let mut text = String::with_capacity(self.text.len() + 10);
        text.push_str(&self.text);
        text.push_str(itoa::Buffer::new().format(at.ordinal));
        text
    }
}

impl Answers {
    /// Waits for answers and appends what they mean, at least one and at most a bounded number.
    ///
    /// Cancel safe: an answer taken is an answer appended.
    pub(crate) async fn receive(&mut self, into: &mut Vec<BrokerInput>) -> Result<(), Error> {
        let mut next = self.messages.next().await;
        if self.limits.has_changed().unwrap_or(false) {
            self.from.domain.clone_from(&self.limits.borrow_and_update().domain);
        }
        for _ in 0..ANSWERS_AT_ONCE {
            let Some(message) = next else {
                let source = "the client has ended".into();
                return Err(Error::JetStream { doing: "receive the broker's answers", source });
            };
            into.extend(pub_ack::read(&message, &self.from));
            match self.messages.next().now_or_never() {
                Some(message) => next = message,
                None => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_printed_as_the_wire_module_prints_them() {
        let mut prefix = PositionPrefix::new(History { system_id: 7, timeline: 2 });
        for (lsn, ordinal) in
            [(0, 0), (0x16_B374_D848, 0), (0x16_B374_D848, 11), (0x17_0000_0000, 3)]
        {
            let at = LastPosition { commit_lsn: Lsn(lsn), ordinal, event: uuid::Uuid::nil() };
            let expected = Position { system_id: 7, timeline: 2, lsn, ordinal };
            assert_eq!(prefix.text(at), expected.to_string());
        }
    }
}
