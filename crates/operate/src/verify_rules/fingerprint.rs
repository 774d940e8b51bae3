//! What a message and the row that it comes from have in common, as numbers.

use std::hash::{DefaultHasher, Hasher};

use outbox::wire::cloudevents::{Added, NAMES};
use outbox::wire::{self, Position, header};
use outbox::{Event, Malformed};
use postcard::fixint;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Names that begin so, in any case, are the broker's and the relay's.
const RESERVED: [&str; 2] = ["Nats-", "Tailpost-"];

/// Hashes of the parts of a message. They are the same in one process only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    #[serde(with = "fixint::le")]
    pub(crate) payload: u64,
    /// All headers that are made of the row, without `Occurred-At`: a sum, because the client of
    /// NATS keeps no order among headers of different names.
    #[serde(with = "fixint::le")]
    pub(crate) headers: u64,
    /// A row may have no time: then the relay sends that of the commit, which the row does not tell.
    #[serde(with = "fixint::le")]
    pub(crate) occurred_at: u64,
    #[serde(with = "fixint::le")]
    pub(crate) subject: u64,
    /// Type and id of the aggregate.
    #[serde(with = "fixint::le")]
    pub(crate) aggregate: u64,
}

/// The headers of a message, added up one by one.
#[derive(Debug, Default)]
struct Sum {
    headers: u64,
    occurred_at: u64,
    aggregate_type: u64,
    aggregate_id: u64,
}

impl Sum {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        let sum = hash(&[name, value]);
        if name == header::OCCURRED_AT.as_bytes() {
            self.occurred_at = sum;
            return;
        }
        self.headers = self.headers.wrapping_add(sum);
        if name == header::AGGREGATE_TYPE.as_bytes() {
            self.aggregate_type = sum;
        } else if name == header::AGGREGATE_ID.as_bytes() {
            self.aggregate_id = sum;
        }
    }

    fn finish(self, subject: Option<&str>, payload: &[u8]) -> Fingerprint {
        let Self { headers, occurred_at, aggregate_type, aggregate_id } = self;
        Fingerprint {
            payload: hash(&[payload]),
            headers,
            occurred_at,
            subject: subject.map_or(0, |it| hash(&[it.as_bytes()])),
            aggregate: hash(&[&aggregate_type.to_le_bytes(), &aggregate_id.to_le_bytes()]),
        }
    }
}

impl Fingerprint {
    /// That of the message which the relay makes of an event.
    ///
    /// # Errors
    ///
    /// If the relay can make none.
    pub(crate) fn of_event(event: &Event, subject: Option<&str>) -> Result<Self, Malformed> {
        let mut sum = Sum::default();
        wire::event_headers(event, |name, value| {
            if name != header::MSG_ID {
                sum.add(name.as_bytes(), value.as_bytes());
            }
        })?;
        Ok(sum.finish(subject, &event.payload))
    }
}

/// A message of the stream, header by header.
#[derive(Debug, Default)]
pub(crate) struct MessageReading {
    message: ReadMessage,
    msg_id: Option<Uuid>,
    names_position_event: bool,
    /// Headers that every event has, as far as they came.
    of_every_event: u32,
    sum: Sum,
    /// What may be attributes that the relay added, or headers of the row that are called so.
    attributes: Vec<(&'static str, u64)>,
    added: Added,
}

/// What is kept of a message.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadMessage {
    /// The event's id, as consumers read it.
    pub(crate) id: Option<Uuid>,
    /// Where the event came in the log, if the message says that of this event.
    pub(crate) position: Option<Position>,
    /// The message named the sequence that it must follow.
    pub(crate) is_fenced: bool,
    /// It has the headers of a relay.
    pub(crate) is_ours: bool,
    /// Its event never had a row.
    pub(crate) is_emitted: bool,
    /// The broker stored it itself.
    pub(crate) is_marker: bool,
    /// The replay that stored it.
    pub(crate) replay: Option<Uuid>,
    pub(crate) print: Fingerprint,
}

impl MessageReading {
    /// Takes in a header, in any order. The first of a name counts.
    pub(crate) fn header(&mut self, name: &[u8], value: &[u8]) {
        let text = || std::str::from_utf8(value).ok();
        if !is_reserved(name) {
            if [header::EVENT_TYPE, header::AGGREGATE_TYPE, header::AGGREGATE_ID]
                .iter()
                .any(|it| it.as_bytes() == name)
            {
                self.of_every_event += 1;
            }
            match NAMES.iter().find(|it| it.as_bytes() == name) {
                Some(attribute) => self.attributes.push((attribute, hash(&[name, value]))),
                None => self.sum.add(name, value),
            }
            return;
        }
        let is = |of: &str| of.as_bytes() == name;
        let message = &mut self.message;
        if is(header::MSG_ID) {
            self.msg_id = self.msg_id.or_else(|| text()?.parse().ok());
        } else if is(header::EVENT_ID) {
            message.id = message.id.or_else(|| text()?.parse().ok());
        } else if is(header::POSITION) {
            message.position = message.position.or_else(|| text()?.parse().ok());
        } else if is(header::REPLAY) {
            message.replay = message.replay.or_else(|| text()?.parse().ok());
        } else if is(header::POSITION_EVENT) {
            self.names_position_event = true;
        } else if is(header::SOURCE) {
            message.is_emitted |= value == header::SOURCE_WAL.as_bytes();
        } else if is(header::MARKER_REASON) {
            message.is_marker = true;
        } else if is(header::EXPECTED_LAST_SEQUENCE) {
            message.is_fenced = true;
        } else if is(header::CLOUDEVENTS) {
            self.added = Added::parse(text().unwrap_or_default());
        } else if is(header::ESCAPED) {
            self.sum.add(name, value);
        }
    }

    pub(crate) fn finish(mut self, subject: &str, payload: &[u8]) -> ReadMessage {
        for (_, sum) in self.attributes.iter().filter(|(name, _)| !self.added.has(name)) {
            self.sum.headers = self.sum.headers.wrapping_add(*sum);
        }
        let is_event = self.of_every_event >= 3 && self.msg_id.is_some();
        let own = |it: &Position| !self.names_position_event && it.lsn > 0;
        let read = self.message;
        ReadMessage {
            id: read.id.or(self.msg_id),
            position: read.position.filter(own),
            is_ours: is_event || read.position.is_some() || read.id.is_some(),
            print: self.sum.finish(Some(subject), payload),
            ..read
        }
    }
}

fn is_reserved(name: &[u8]) -> bool {
    RESERVED.iter().any(|it| {
        let start = name.get(..it.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(it.as_bytes()))
    })
}

/// Parts are told apart by their lengths.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        let event = Event::new("order", "o-1", "OrderPaid", &serde_json::json!({ "n": 1 }));
        event.expect("an event").with_header("b", "grün").with_header("a", "1")
    }

    /// The headers of an event as a message has them, sent so that the id is in `id_header`.
    fn message(event: &Event, id_header: &str) -> Vec<(String, String)> {
        let mut headers = vec![
            ("Nats-Expected-Last-Sequence".to_owned(), "7".to_owned()),
            ("Tailpost-Position".to_owned(), "7/1/0-A0/3".to_owned()),
        ];
        let emit = |name: &str, value: &str| {
            let name = if name == header::MSG_ID { id_header } else { name };
            headers.push((name.to_owned(), value.to_owned()));
        };
        wire::event_headers(event, emit).expect("an object");
        headers
    }

    fn read(headers: &[(String, String)], subject: &str, payload: &[u8]) -> ReadMessage {
        let mut reading = MessageReading::default();
        for (name, value) in headers {
            reading.header(name.as_bytes(), value.as_bytes());
        }
        reading.finish(subject, payload)
    }

    #[test]
    fn a_message_has_the_fingerprint_of_its_row_in_whatever_order_its_headers_come() {
        let event = event();
        let of_row = Fingerprint::of_event(&event, Some("a.b")).expect("an object");
        for id_header in [header::MSG_ID, header::EVENT_ID] {
            let mut headers = message(&event, id_header);
            for _ in 0..headers.len() {
                headers.rotate_left(1);
                let read = read(&headers, "a.b", &event.payload);
                assert_eq!(read.print, of_row);
                assert_eq!(read.id, Some(event.id));
                assert_eq!(read.position.map(|it| it.ordinal), Some(3));
                assert!(read.is_fenced && read.is_ours);
            }
        }
    }

    #[test]
    fn each_part_has_its_own_hash() {
        let event = event();
        let headers = message(&event, header::MSG_ID);
        let same = read(&headers, "a.b", &event.payload).print;
        assert_ne!(read(&headers, "a.c", &event.payload).print.subject, same.subject);
        assert_ne!(read(&headers, "a.b", b"{}").print.payload, same.payload);
        for at in 0..headers.len() {
            let mut other = headers.clone();
            other[at].1.push('x');
            let (name, print) = (&headers[at].0, read(&other, "a.b", &event.payload).print);
            let differs = print.headers != same.headers;
            assert_eq!(print.occurred_at != same.occurred_at, name == header::OCCURRED_AT);
            let is_made_of_row = !name.starts_with("Nats-") && name != header::POSITION;
            assert_eq!(differs, is_made_of_row && name != header::OCCURRED_AT, "{name}");
            assert_eq!(print.aggregate != same.aggregate, name.starts_with("Aggregate-"), "{name}");
        }
    }

    #[test]
    fn attributes_that_the_relay_added_are_not_the_rows() {
        let event = event().with_header("ce-type", "own");
        let mut headers = message(&event, header::MSG_ID);
        let plain = read(&headers, "a.b", &event.payload).print;
        assert_eq!(plain, Fingerprint::of_event(&event, Some("a.b")).expect("an object"));
        headers.push(("ce-id".to_owned(), event.id.to_string()));
        assert_ne!(read(&headers, "a.b", &event.payload).print, plain, "nobody says who added it");
        headers.push((header::CLOUDEVENTS.to_owned(), "2".to_owned()));
        assert_eq!(read(&headers, "a.b", &event.payload).print, plain);
        headers.retain(|(name, _)| name != "ce-type");
        assert_ne!(read(&headers, "a.b", &event.payload).print, plain, "it is the row's own");
    }

    #[test]
    fn what_others_wrote_is_foreign() {
        let foreign = [("Nats-Msg-Id".to_owned(), Uuid::nil().to_string())];
        assert!(!read(&foreign, "a.b", b"").is_ours);
        assert!(!read(&[], "a.b", b"").is_ours);
        let named = [("Tailpost-Event-Id".to_owned(), Uuid::nil().to_string())];
        assert!(read(&named, "a.b", b"").is_ours);
    }

    #[test]
    fn a_message_says_that_its_event_had_no_row() {
        let mut headers = message(&event(), header::MSG_ID);
        let with_row = read(&headers, "a.b", b"");
        headers.push((header::SOURCE.to_owned(), header::SOURCE_WAL.to_owned()));
        let without = read(&headers, "a.b", b"");
        assert_eq!((with_row.is_emitted, without.is_emitted), (false, true));
        assert_eq!(with_row.print, without.print);
    }

    #[test]
    fn the_position_of_another_event_is_none() {
        let mut headers = message(&event(), header::MSG_ID);
        headers.push((header::POSITION_EVENT.to_owned(), Uuid::nil().to_string()));
        assert_eq!(read(&headers, "a.b", b"").position, None);
    }
}
