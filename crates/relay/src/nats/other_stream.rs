//! A stream that is not the relay's, and to which a replay publishes copies.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use async_nats::{Client, Message};
use outbox::wire::{self, StoredMessage, header, replayed_id, replayed_msg_id};
use tokio::time::timeout;
use uuid::Uuid;

use super::{TailReader, direct_get, pub_ack};
use crate::describe;
use crate::engine::{CopyAnswer, Outgoing, Refusal, Replayed};
use crate::error::Error;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Subjects of which the last sequence is remembered.
const SUBJECTS_MAX: usize = 1_024;

/// Messages of others that are passed in looking for one copy.
const PASSED_MAX: usize = 10_000;

/// Another stream.
pub(crate) struct OtherStream {
    client: Client,
    name: String,
    /// Of the subjects that were published to last.
    last: Mutex<HashMap<String, u64>>,
}

/// What stands in the way of a copy, or was found in its place.
enum Place {
    /// It is stored there.
    Stored(u64),
    /// It is not, and this is the last sequence of its subject.
    After(u64),
}

impl TailReader {
    /// Another stream of the same account.
    pub(crate) fn other(&self, name: String) -> OtherStream {
        OtherStream { client: self.client.clone(), name, last: Mutex::default() }
    }
}

impl OtherStream {
    /// The sequence of its last message.
    pub(crate) async fn last_sequence(&self) -> Result<u64, Error> {
        TailReader::new(&self.client, &self.name).await?.last_sequence().await
    }

    /// The copies that `replay` stored under `subjects` from sequence `from` on.
    pub(crate) async fn stored(
        &self,
        mut from: u64,
        subjects: &str,
        replay: Uuid,
    ) -> Result<HashSet<Uuid>, Error> {
        let mut copies = HashSet::new();
        // Others may publish as fast as this reads. What comes later is seen when it is in the way.
        let last = self.last_sequence().await?;
        loop {
            let answer = direct_get::read_next(&self.client, &self.name, from, subjects).await?;
            let message = answer.message()?.filter(|it| it.sequence <= last);
            let Some(message) = message else { return Ok(copies) };
            let headers = message.headers();
            let id = |name| headers.text(name).and_then(|it| it.parse::<Uuid>().ok());
            if id(header::REPLAY) == Some(replay) {
                copies.extend(id(header::EVENT_ID).map(|it| replayed_id(it, replay)));
            }
            from = message.sequence + 1;
        }
    }

    /// Whether there is a connection to the broker.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Sends a copy, unless it is there, which it can be only behind `after`.
    pub(crate) async fn send(&self, copy: &Outgoing, after: u64) -> CopyAnswer {
        match self.try_to_send(copy, after).await {
            CopyAnswer::Unknown(why) if !self.is_connected() => CopyAnswer::Disconnected(why),
            answer => answer,
        }
    }

    async fn try_to_send(&self, copy: &Outgoing, after: u64) -> CopyAnswer {
        let (Some(of), Ok(subject)) = (copy.replayed.as_deref(), &copy.subject) else {
            return CopyAnswer::Refused("it has no subject".into());
        };
        let expected = match self.place(subject, *of, after).await {
            Ok(Place::Stored(seq)) => return CopyAnswer::Stored(seq),
            Ok(Place::After(seq)) => seq,
            Err(error) => return CopyAnswer::Unknown(describe(&error)),
        };
        self.remember(subject, None);
        let headers = match self.headers(copy, *of, expected) {
            Ok(headers) => headers,
            Err(why) => return CopyAnswer::Refused(why),
        };
        let payload = copy.event.payload.clone();
        let request = self.client.request_with_headers(subject.clone(), headers, payload);
        let answer = match timeout(ANSWER_MAX, request).await {
            Err(_) => {
                let why = format!("stream \"{}\" does not answer", self.name);
                return CopyAnswer::Unknown(why);
            }
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                return CopyAnswer::Unknown(format!("no stream answers on {subject}"));
            }
            Ok(Err(error)) if error.to_string().contains("max payload") => {
                return CopyAnswer::Refused(error.to_string());
            }
            Ok(Err(error)) => return CopyAnswer::Unknown(error.to_string()),
            Ok(Ok(answer)) => answer,
        };
        self.understand(&answer, subject)
    }

    fn understand(&self, answer: &Message, subject: &str) -> CopyAnswer {
        match pub_ack::answer(answer, &self.name) {
            Ok(seq) => {
                self.remember(subject, Some(seq));
                CopyAnswer::Stored(seq)
            }
            Err(Refusal::Message(why) | Refusal::OverLimit(why) | Refusal::Unwelcome(why)) => {
                CopyAnswer::Refused(why)
            }
            Err(Refusal::ExpectedLastSequence) => {
                CopyAnswer::Unknown(format!("somebody else publishes to {subject}"))
            }
            Err(Refusal::Outage(why) | Refusal::Configuration(why) | Refusal::NoBatches(why)) => {
                CopyAnswer::Unknown(format!("stream \"{}\": {why}", self.name))
            }
        }
    }

    /// Where the copy is, or would be.
    async fn place(&self, subject: &str, of: Replayed, after: u64) -> Result<Place, Error> {
        if let Some(known) = self.remembered(subject) {
            return Ok(Place::After(known)); // if it is not that any more, the copy is refused
        }
        let id = replayed_msg_id(of.event, of.replay);
        let is_it = |it: &StoredMessage<'_>| it.headers().text(header::MSG_ID) == Some(&*id);
        let mut last = after;
        for _ in 0..PASSED_MAX {
            let next = direct_get::read_next(&self.client, &self.name, last + 1, subject).await?;
            match next.message()? {
                Some(it) if is_it(&it) => return Ok(Place::Stored(it.sequence)),
                Some(it) => last = it.sequence,
                None => {
                    let end = direct_get::read_last(&self.client, &self.name, subject).await?;
                    match end.message()? {
                        Some(it) if is_it(&it) => return Ok(Place::Stored(it.sequence)),
                        Some(it) if it.sequence > last => {} // it came meanwhile: it is read, too
                        end => return Ok(Place::After(end.map_or(0, |it| it.sequence))),
                    }
                }
            }
        }
        Err(Error::Conflict(format!("others publish too much to {subject}")))
    }

    fn remembered(&self, subject: &str) -> Option<u64> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).get(subject).copied()
    }

    /// `None` while nobody knows.
    fn remember(&self, subject: &str, seq: Option<u64>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= SUBJECTS_MAX {
            last.clear();
        }
        match seq {
            Some(seq) => _ = last.insert(subject.to_owned(), seq),
            None => _ = last.remove(subject),
        }
    }

    fn headers(&self, copy: &Outgoing, of: Replayed, expected: u64) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        let mut illegal = None;
        wire::event_headers(&copy.event, |name, value| {
            match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                (Ok(name), Ok(value)) => headers.append(name, value),
                _ => illegal = Some(format!("header \"{name}\" cannot be sent")),
            }
        })
        .map_err(|error| error.to_string())?;
        // Without the position: a relay whose stream that is would take it for its own.
        let ours = [
            (header::MSG_ID, replayed_msg_id(of.event, of.replay)),
            (header::EVENT_ID, of.event.to_string()),
            (header::REPLAY, of.replay.to_string()),
            (header::EXPECTED_STREAM, self.name.clone()),
            (header::EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string()),
        ];
        for (name, value) in ours {
            let value: Result<HeaderValue, _> = value.parse();
            headers.insert(HeaderName::from_static(name), value.map_err(|it| format!("{it:?}"))?);
        }
        illegal.map_or(Ok(headers), Err)
    }
}
