use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use async_nats::HeaderMap;
use bytes::Bytes;
use jiff::Timestamp;
use outbox::{Event, wire};
use uuid::Uuid;

use crate::store::Key;

/// A message of the stream, understood as far as it can be.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) key: Key,
    /// What it says, or why it cannot be read.
    pub(crate) event: Result<Event, String>,
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
    pub(crate) stream_seq: u64,
}

impl Message {
    /// `stored_at` stands in for the event's time if the message has none that can be read: it is
    /// the stream's, and so the same at every delivery.
    pub(crate) fn new(
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        stream: &str,
        stream_seq: u64,
        stored_at: Timestamp,
    ) -> Self {
        let pairs = headers.iter().flat_map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(move |value| (name, value.as_str()))
        });
        let event = wire::parse_event(pairs, payload.clone()).map_err(|error| error.to_string());
        let key = match &event {
            Ok(event) => Key { id: event.id, event_time: event.occurred_at },
            Err(_) => Key { id: place_id(stream, stream_seq), event_time: stored_at },
        };
        Self { key, event, subject, headers, payload, stream_seq }
    }

    /// Events of one lane are handled one after the other. A collision of hashes makes two
    /// aggregates wait for each other, nothing worse.
    pub(crate) fn lane(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match &self.event {
            Ok(event) => (&*event.aggregate_type, &*event.aggregate_id).hash(&mut hasher),
            Err(_) => self.stream_seq.hash(&mut hasher),
        }
        hasher.finish()
    }

    /// The headers as an object of arrays of strings.
    pub(crate) fn headers_json(&self) -> String {
        let headers: BTreeMap<&str, Vec<&str>> = self
            .headers
            .iter()
            .map(|(name, values)| (name.as_ref(), values.iter().map(|it| it.as_str()).collect()))
            .collect();
        // PostgreSQL's JSON has no NUL.
        serde_json::to_string(&headers).expect("strings are valid json").replace("\\u0000", "")
    }

    /// What it takes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        const OVERHEAD: usize = 1024;
        self.payload.len() + OVERHEAD
    }
}

/// The key of a message that has no id of its own: made of its place in the stream, which is the
/// same at every delivery. Version 8, so that it cannot be taken for an event's.
fn place_id(stream: &str, stream_seq: u64) -> Uuid {
    let hash = stream.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
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
        Message::new("outbox.x".into(), map, Bytes::new(), "OUTBOX", seq, Timestamp::UNIX_EPOCH)
    }

    const ID: &str = "0198c0f4-98a5-7b9c-9d9e-3d1e0d6f4a11";

    #[test]
    fn an_events_key_comes_from_the_envelope() {
        let whole = message(
            &[
                ("Nats-Msg-Id", ID),
                ("Event-Type", "OrderPlaced"),
                ("Aggregate-Type", "order"),
                ("Aggregate-Id", "o-1"),
                ("Occurred-At", "2026-01-02T03:04:05Z"),
            ],
            7,
        );
        assert_eq!(whole.key.id.to_string(), ID);
        assert_eq!(whole.key.event_time.to_string(), "2026-01-02T03:04:05Z");
    }

    /// R-INB-08.
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
}
