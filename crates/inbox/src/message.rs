use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use jiff::Timestamp;
use outbox::wire::{Position, TraceId};
use outbox::{Event, wire};
use uuid::Uuid;

use crate::config::Config;
use crate::nats::durable_consumer;
use crate::record::{Key, truncated};

/// An event is not taken for one if its time is later than this after its message was stored.
/// Clocks of producers may be ahead by less.
const AHEAD_MAX: Duration = Duration::from_hours(48);

/// The year -4712. PostgreSQL keeps no time before it.
const FIRST_TIME: Timestamp = Timestamp::constant(-210_863_520_000, 0);

/// Which stream. One that is deleted and created again under its name has other messages of the
/// same sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Its name.
    pub stream: String,
    /// When the stream was created; `None` in what was kept by versions that did not write it down.
    pub created: Option<Timestamp>,
}

impl Origin {
    /// The stream of a consumer.
    #[must_use]
    pub fn of(config: &Config, stream: &Stream) -> Self {
        Self { stream: config.stream.clone(), created: durable_consumer::created(stream) }
    }
}

/// Which message: identifies it among all that ever were in streams of one name. Later ones are
/// greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MessageId {
    pub(crate) stream_created: Option<Timestamp>,
    pub(crate) seq: u64,
    /// A stream that comes back without its end has other messages of the same sequences.
    pub(crate) key: Key,
}

/// Few messages that are held at a time have the same sequence, and nobody chooses it.
impl Hash for MessageId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.seq.hash(state);
    }
}

/// A message of the stream, understood as far as it can be.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) key: Key,
    /// What it says, or why it cannot be read.
    pub(crate) event: Result<Event, String>,
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    /// The header block, if it does not make headers.
    pub(crate) raw_headers: Option<Bytes>,
    pub(crate) payload: Bytes,
    pub(crate) stream_seq: u64,
    pub(crate) stream_created: Option<Timestamp>,
    pub(crate) whence: Whence,
    /// What the headers take in memory, about.
    pub(crate) header_bytes: usize,
}

/// Where a message was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whence {
    Stream,
    /// It was requeued, so it has a record, however old it is.
    Letter,
    /// Nowhere: there is a record of it, and the stream has it no more.
    Record,
}

impl Message {
    /// `stored_at` stands in for the event's time if the message has none that can be read: it is
    /// the stream's, and so the same at every delivery.
    pub(crate) fn new(
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        origin: &Origin,
        stream_seq: u64,
        stored_at: Timestamp,
    ) -> Self {
        let pairs = headers.iter().flat_map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(move |value| (name, value.as_str()))
        });
        let event = wire::parse_event(pairs, payload.clone()).map_err(|error| error.to_string());
        let event = event.and_then(|event| recordable(event, &subject, stored_at));
        let event = event.map(|it| Event { occurred_at: truncated(it.occurred_at), ..it });
        let key = match &event {
            Ok(event) => Key { id: event.id, event_time: event.occurred_at },
            Err(_) => Key { id: place_id(origin, stream_seq), event_time: stored_at },
        };
        Self {
            key,
            event,
            // PostgreSQL's texts have no NUL.
            subject: if subject.contains('\0') {
                subject.replace('\0', "\u{fffd}")
            } else {
                subject
            },
            header_bytes: header_bytes(&headers),
            headers,
            raw_headers: None,
            payload,
            stream_seq,
            stream_created: origin.created,
            whence: Whence::Stream,
        }
    }

    /// Stands for a message that left the stream after it was begun.
    pub(crate) fn gone(key: Key, subject: String, origin: &Origin, stream_seq: u64) -> Self {
        let (headers, payload, at) = (HeaderMap::new(), Bytes::new(), key.event_time);
        Self {
            key,
            event: Err("its message left the stream before it was handled".into()),
            whence: Whence::Record,
            ..Self::new(subject, headers, payload, origin, stream_seq, at)
        }
    }

    /// Whether the broker itself stored it, in place of a message that is gone.
    pub(crate) fn is_marker(&self) -> bool {
        // Looked up, the name would be made anew.
        self.headers.iter().any(|(name, _)| {
            let name: &str = name.as_ref();
            name == wire::header::MARKER_REASON
        })
    }

    pub(crate) fn id(&self) -> MessageId {
        MessageId { stream_created: self.stream_created, seq: self.stream_seq, key: self.key }
    }

    /// Events of one lane are handled one after the other. A collision of hashes makes two
    /// aggregates wait for each other, nothing worse.
    pub(crate) fn lane(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match &self.event {
            Ok(event) => (&*event.aggregate_type, &*event.aggregate_id).hash(&mut hasher),
            Err(_) => (self.stream_created, self.stream_seq, self.key).hash(&mut hasher),
        }
        hasher.finish()
    }

    /// The headers as an object of arrays of strings. PostgreSQL's JSON has no NUL: a replacement
    /// character stands for it.
    pub(crate) fn headers_json(&self) -> String {
        let text = |it: &HeaderValue| it.as_str().replace('\0', "\u{fffd}");
        let headers: BTreeMap<&str, Vec<String>> = self
            .headers
            .iter()
            .map(|(name, values)| (name.as_ref(), values.iter().map(text).collect()))
            .collect();
        serde_json::to_string(&headers).expect("strings are valid json")
    }

    /// The header block: as it travelled if it was kept, else made of the headers.
    pub(crate) fn header_block(&self) -> Bytes {
        if let Some(raw) = &self.raw_headers {
            return raw.clone();
        }
        let mut block = String::from("NATS/1.0\r\n");
        for (name, values) in self.headers.iter() {
            for value in values {
                let name: &str = name.as_ref();
                block.extend([name, ": ", value.as_str(), "\r\n"]);
            }
        }
        block.push_str("\r\n");
        block.into()
    }

    /// Where in the log the event's transaction committed, if the message says it.
    pub(crate) fn lsn(&self) -> Option<String> {
        let is_anothers = self.headers.get(wire::header::POSITION_EVENT).is_some();
        let position = self.headers.get(wire::header::POSITION).filter(|_| !is_anothers)?;
        let Position { lsn, .. } = position.as_str().parse().ok()?;
        Some(format!("{:X}/{:X}", lsn >> 32, lsn & u64::from(u32::MAX)))
    }

    /// The trace that the event belongs to, for log lines.
    pub(crate) fn trace_id(&self) -> Option<TraceId> {
        wire::trace_id(self.event.as_ref().ok()?)
    }

    /// What it takes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        const OVERHEAD: usize = 1024;
        let raw_headers = self.raw_headers.as_ref().map_or(0, Bytes::len);
        self.payload.len() + self.header_bytes + raw_headers + OVERHEAD
    }
}

/// What headers take in memory, about: twice, as the event has a copy of them.
fn header_bytes(headers: &HeaderMap) -> usize {
    const OVERHEAD: usize = 200;
    let values = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values.iter().map(|value| name.len() + value.as_str().len() + OVERHEAD)
    });
    2 * values.sum::<usize>()
}

/// An event whose record can be written, or why it cannot. By the message alone and not the clock:
/// the same at every delivery.
fn recordable(event: Event, subject: &str, stored_at: Timestamp) -> Result<Event, String> {
    if subject.contains('\0') {
        return Err("its subject has a NUL character".into());
    }
    let time = event.occurred_at;
    if time < FIRST_TIME {
        return Err(format!("its time {time} is earlier than PostgreSQL can keep"));
    }
    if stored_at.checked_add(AHEAD_MAX).is_ok_and(|latest| time > latest) {
        return Err(format!("its time {time} is days after it was stored ({stored_at})"));
    }
    Ok(event)
}

/// The key of a message that has no id of its own: made of its place in the stream, which is the
/// same at every delivery. Version 8, so that it cannot be taken for an event's.
fn place_id(origin: &Origin, stream_seq: u64) -> Uuid {
    let created = origin.created.map_or(0, Timestamp::as_microsecond);
    let hash = outbox::fnv(origin.stream.bytes().chain(created.to_be_bytes()));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&hash.to_be_bytes());
    bytes[8..].copy_from_slice(&stream_seq.to_be_bytes());
    bytes[6] = bytes[6] & 0x0F | 0x80;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Uuid::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: &[(&str, &str)], seq: u64) -> Message {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, *value);
        }
        let stored_at = "2026-01-02T03:04:06Z".parse().unwrap();
        let origin = Origin { stream: "OUTBOX".into(), created: Some(Timestamp::UNIX_EPOCH) };
        Message::new("outbox.x".into(), map, Bytes::new(), &origin, seq, stored_at)
    }

    fn event_at(time: &str) -> Message {
        message(
            &[
                ("Nats-Msg-Id", ID),
                ("Event-Type", "OrderPlaced"),
                ("Aggregate-Type", "order"),
                ("Aggregate-Id", "o-1"),
                ("Occurred-At", time),
            ],
            7,
        )
    }

    const ID: &str = "0198c0f4-98a5-7b9c-9d9e-3d1e0d6f4a11";

    #[test]
    fn an_events_key_comes_from_the_envelope() {
        let whole = event_at("2026-01-02T03:04:05Z");
        assert_eq!(whole.key.id.to_string(), ID);
        assert_eq!(whole.key.event_time.to_string(), "2026-01-02T03:04:05Z");
    }

    /// Its record has microseconds, and is found by them.
    #[test]
    fn an_events_time_is_as_precise_as_its_record() {
        for (time, kept) in [
            ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456Z"),
            ("2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.123456Z"),
            // PostgreSQL's driver counts from 2000, in both directions.
            ("1999-12-31T23:59:59.123456789Z", "1999-12-31T23:59:59.123457Z"),
        ] {
            let message = event_at(time);
            assert_eq!(message.key.event_time.to_string(), kept);
            assert_eq!(message.event.expect("an event").occurred_at.to_string(), kept);
        }
    }

    #[test]
    fn headers_count_as_memory() {
        let bare = message(&[], 7).bytes();
        let value = "x".repeat(60_000);
        assert!(message(&[("Note", &value)], 7).bytes() > bare + 2 * 60_000);
        let names: Vec<String> = (0..1_000).map(|n| format!("N{n}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(message(&many, 7).bytes() > bare + 400_000, "each has an entry");
    }

    #[test]
    fn a_message_without_a_usable_id_is_keyed_by_its_place() {
        for headers in [&[][..], &[("Nats-Msg-Id", "not a uuid")]] {
            let (a, b) = (message(headers, 7), message(headers, 8));
            assert!(a.event.is_err());
            assert_eq!(a.key, message(headers, 7).key, "the same at every delivery");
            assert_ne!(a.key, b.key);
            assert_eq!(a.key.id.get_version_num(), 8);
        }
    }

    #[test]
    fn a_time_that_cannot_be_kept_makes_no_event() {
        let early = ["-009999-01-02T01:59:59Z", "-004713-12-31T23:59:59Z"];
        for time in early.into_iter().chain(["9999-12-30T22:00:00Z", "2026-01-05T00:00:00Z"]) {
            let message = event_at(time);
            assert!(message.event.is_err(), "{time}");
            assert_eq!(message.key.event_time.to_string(), "2026-01-02T03:04:06Z");
        }
        for time in [
            "-004712-01-01T00:00:00Z",
            "-000044-03-15T12:00:00Z",
            "1066-10-14T09:00:00Z",
            "2026-01-03T00:00:00Z",
        ] {
            assert!(event_at(time).event.is_ok(), "{time}");
        }
    }

    #[test]
    fn headers_are_json_that_postgresql_takes() {
        let odd = message(&[("X", r"\u0000"), ("Y", "a\0b")], 7);
        assert_eq!(odd.headers_json(), "{\"X\":[\"\\\\u0000\"],\"Y\":[\"a\u{fffd}b\"]}");
        assert!(odd.header_block().starts_with(b"NATS/1.0\r\n"));
    }

    #[test]
    fn a_stream_made_anew_has_other_messages() {
        let of = |created| {
            let origin = Origin { stream: "OUTBOX".into(), created };
            let (map, at) = (HeaderMap::new(), Timestamp::UNIX_EPOCH);
            Message::new("x".into(), map, Bytes::new(), &origin, 7, at)
        };
        let (old, new) = (of(Some(Timestamp::UNIX_EPOCH)), of(Some(Timestamp::MAX)));
        assert_ne!(old.key, new.key);
        assert_ne!(old.id(), new.id());
        assert_ne!(old.lane(), new.lane());
        assert!(of(None).id() < old.id() && old.id() < new.id());
    }

    // proves: G-REWIND-6
    #[test]
    fn another_event_in_the_place_of_one_is_another_message() {
        let (old, new) = (event_at("2026-01-02T03:04:05Z"), event_at("2026-01-02T03:04:06Z"));
        assert_eq!((old.stream_created, old.stream_seq), (new.stream_created, new.stream_seq));
        assert_ne!(old.id(), new.id());
        assert_eq!(old.id(), event_at("2026-01-02T03:04:05Z").id(), "the same at every delivery");
    }
}
