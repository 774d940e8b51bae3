//! Messages that may be others': under an event's id everybody may publish.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use outbox::Malformed;
use outbox::wire::{RawHeaders, StoredMessage, header};
use uuid::Uuid;

use crate::error::Error;

/// The headers that every event has, besides its id.
const OF_EVERY_EVENT: [&str; 4] =
    [header::EVENT_TYPE, header::AGGREGATE_TYPE, header::AGGREGATE_ID, header::OCCURRED_AT];

/// Those of which a relay's message has one at least: a stream that was filled from another one lacks
/// the first, and poll mode writes no other.
const OF_A_RELAY: [&str; 2] = [header::EXPECTED_STREAM, header::POSITION];

/// A message without what a relay writes, to be compared with the event whose id it has.
#[derive(Debug)]
pub(crate) struct Suspect {
    pub(crate) seq: u64,
    pub(crate) id: Uuid,
    pub(crate) subject: String,
    pub(crate) payload: Vec<u8>,
}

/// Says which of these messages, by sequence, are not the events' whose ids they have.
pub(crate) type Judge =
    Arc<dyn Fn(Vec<Suspect>) -> BoxFuture<'static, Result<HashSet<u64>, Error>> + Send + Sync>;

impl Suspect {
    pub(super) fn new(message: &StoredMessage<'_>, id: Uuid) -> Result<Self, Error> {
        let payload = message.payload();
        Ok(Self {
            seq: message.sequence,
            id,
            subject: message.subject.clone().into_owned(),
            payload: payload
                .map_err(Error::jetstream::<Malformed>("read a message of the stream"))?,
        })
    }
}

/// Whether a message has what a relay writes.
pub(super) fn is_relays(message: &StoredMessage<'_>) -> bool {
    has_a_relays(message.headers())
}

fn has_a_relays(headers: RawHeaders<'_>) -> bool {
    let has = |name: &&str| headers.get(name).is_some();
    OF_EVERY_EVENT.iter().all(has) && OF_A_RELAY.iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_relays_if_it_has_what_a_relay_writes() {
        let event = "Nats-Msg-Id: x\r\nEvent-Type: t\r\nAggregate-Type: o\r\nAggregate-Id: 1\r\n\
                     Occurred-At: 2026-01-02T03:04:05Z\r\n";
        for (more, expected) in [
            ("Nats-Expected-Stream: OUTBOX\r\n", true),
            ("Tailpost-Position: 1/1/0-1/0\r\n", true),
            ("", false),
        ] {
            assert_eq!(is_relays_headers(&format!("NATS/1.0\r\n{event}{more}\r\n")), expected);
        }
        assert!(!is_relays_headers("NATS/1.0\r\nNats-Expected-Stream: OUTBOX\r\n\r\n"));
    }

    fn is_relays_headers(headers: &str) -> bool {
        has_a_relays(RawHeaders::new(headers.as_bytes()))
    }
}
