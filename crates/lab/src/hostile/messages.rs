//! Messages with odd bytes, each of which NATS stores.

use outbox::wire::header;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

/// What one client can publish and another may be unable to read.
#[derive(Debug, Clone)]
pub struct HostileMessage {
    /// What is odd about it.
    pub about: String,
    /// The last token of its subject, to be put behind a prefix that the stream takes, and a dot.
    pub token: Vec<u8>,
    /// The block of headers as it goes over the wire; `None` for a message without.
    pub headers: Option<Vec<u8>>,
    /// Its payload.
    pub body: Vec<u8>,
    /// The id of the event that it looks like.
    pub id: Option<Uuid>,
}

impl HostileMessage {
    /// The whole subject.
    pub fn subject(&self, prefix: &str) -> Vec<u8> {
        [prefix.as_bytes(), b".", &self.token].concat()
    }
}

/// Draws messages.
pub struct Messages {
    random: StdRng,
}

impl Messages {
    /// Fixes what [`Messages::draw`] returns, but for the time in it.
    pub fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed) }
    }

    /// One of those that [`Messages::every`] returns, or random bytes in its place.
    pub fn draw(&mut self) -> HostileMessage {
        let mut message = match self.random.random_range(0..4) {
            0 => self.random_block(),
            1 => {
                let (name, value) = *FIELDS.choose(&mut self.random).expect("there are some");
                self.event(name, value)
            }
            2 => self.random_field(),
            _ => of_block(BLOCKS.choose(&mut self.random).expect("there are some")),
        };
        if self.random.random_bool(0.2) {
            message.token = TOKENS.choose(&mut self.random).expect("there are some").to_vec();
        }
        if self.random.random_bool(0.2) {
            message.body = self.bytes(200);
        }
        message
    }

    /// A message for each thing that is odd by itself.
    pub fn every(&mut self) -> Vec<HostileMessage> {
        let blocks = BLOCKS.iter().map(of_block);
        let tokens = TOKENS.iter().map(|token| HostileMessage {
            about: format!("subject {:?}", String::from_utf8_lossy(&token[..token.len().min(40)])),
            token: token.to_vec(),
            headers: None,
            body: b"{}".to_vec(),
            id: None,
        });
        let mut all: Vec<_> = blocks.chain(tokens).collect();
        all.extend(FIELDS.iter().map(|(name, value)| self.event(name, *value)));
        all.push(plain("a large block of headers", large_block()));
        all.push(plain("many headers", many_headers()));
        all
    }

    /// An event that is right in everything but one header, which is left out where `value` is
    /// `None`. It may be an event all the same.
    fn event(&mut self, name: &'static str, value: Option<&'static [u8]>) -> HostileMessage {
        let mut block = b"NATS/1.0\r\n".to_vec();
        let (id, right) = self.right_headers();
        for (known, right) in right {
            if known != name {
                push(&mut block, known.as_bytes(), right.as_bytes());
            }
        }
        if let Some(value) = value {
            push(&mut block, name.as_bytes(), value);
        }
        block.extend_from_slice(b"\r\n");
        let value = value.map(|it| String::from_utf8_lossy(&it[..it.len().min(40)]).into_owned());
        let about = format!("an event with {name} = {value:?}");
        let (token, body) = (b"Odd".to_vec(), b"{\"n\": 1}".to_vec());
        HostileMessage { about, token, headers: Some(block), body, id: Some(id) }
    }

    /// As an event, with a header of random bytes.
    fn random_field(&mut self) -> HostileMessage {
        let mut message = self.event("Any", None);
        let (name, value) = (self.bytes(20), self.bytes(100));
        let block = message.headers.get_or_insert_default();
        block.truncate(block.len() - 2);
        push(block, &name, &value);
        block.extend_from_slice(b"\r\n");
        message.about = format!("an event with the header {name:?} = {value:?}");
        message
    }

    fn random_block(&mut self) -> HostileMessage {
        let mut block = b"NATS/1.0\r\n".to_vec();
        let random = self.bytes(100);
        block.extend_from_slice(&random);
        block.extend_from_slice(b"\r\n\r\n");
        plain(&format!("a block of headers {random:?}"), block)
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        // Bytes that mean something more often than others.
        const TELLING: &[u8] = b"\r\n: \0\xff\xc3\"\\%";
        let count = self.random.random_range(1..=max);
        let random = &mut self.random;
        let byte = |random: &mut StdRng| match random.random_bool(0.3) {
            true => *TELLING.choose(random).expect("there are some"),
            false => random.random(),
        };
        (0..count).map(|_| byte(random)).collect()
    }

    fn right_headers(&mut self) -> (Uuid, [(&'static str, String); 6]) {
        let id: Uuid = uuid::Builder::from_random_bytes(self.random.random()).into_uuid();
        let headers = [
            (header::MSG_ID, id.to_string()),
            (header::EVENT_TYPE, "Odd".to_owned()),
            (header::EVENT_VERSION, "1".to_owned()),
            (header::AGGREGATE_TYPE, "hostile".to_owned()),
            (header::AGGREGATE_ID, format!("h-{id}")),
            (header::OCCURRED_AT, now()),
        ];
        (id, headers)
    }
}

fn now() -> String {
    let seconds = jiff::Timestamp::now().as_second();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn push(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for bytes in [name, b": ", value, b"\r\n"] {
        block.extend_from_slice(bytes);
    }
}

fn plain(about: &str, block: Vec<u8>) -> HostileMessage {
    let (token, body) = (b"Odd".to_vec(), b"{}".to_vec());
    HostileMessage { about: about.to_owned(), token, headers: Some(block), body, id: None }
}

fn of_block((about, block): &(&str, &[u8])) -> HostileMessage {
    plain(about, block.to_vec())
}

fn large_block() -> Vec<u8> {
    [b"NATS/1.0\r\nLarge: ", vec![b'x'; 60_000].as_slice(), b"\r\n\r\n"].concat()
}

fn many_headers() -> Vec<u8> {
    let mut block = b"NATS/1.0\r\n".to_vec();
    for n in 0..5_000 {
        push(&mut block, format!("H-{n}").as_bytes(), b"v");
    }
    block.extend_from_slice(b"\r\n");
    block
}

/// Blocks of headers.
const BLOCKS: &[(&str, &[u8])] = &[
    ("no headers in the block", b"NATS/1.0\r\n\r\n"),
    ("a value that is no UTF-8", b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n"),
    ("a name that is no UTF-8", b"NATS/1.0\r\n\xff\xfe: a\r\n\r\n"),
    ("UTF-8 cut short", b"NATS/1.0\r\nA: \xc3\r\n\r\n"),
    ("a lone CR in a value", b"NATS/1.0\r\nA: b\rc\r\n\r\n"),
    ("a lone CR in a name", b"NATS/1.0\r\nA\rB: c\r\n\r\n"),
    ("a lone LF in a value", b"NATS/1.0\r\nA: b\nc\r\n\r\n"),
    ("lines that end with LF", b"NATS/1.0\nA: b\n\n"),
    ("a line without a colon", b"NATS/1.0\r\nno colon\r\n\r\n"),
    ("an empty name", b"NATS/1.0\r\n: a\r\n\r\n"),
    ("an empty value", b"NATS/1.0\r\nA:\r\n\r\n"),
    ("a name with spaces", b"NATS/1.0\r\n a b : c\r\n\r\n"),
    ("a folded line", b"NATS/1.0\r\nA: b\r\n c\r\n\r\n"),
    ("NUL in name and value", b"NATS/1.0\r\nA\0: \0\r\n\r\n"),
    ("control characters", b"NATS/1.0\r\nA: \x01\x1b[31m\x7f\r\n\r\n"),
    ("no empty line at the end", b"NATS/1.0\r\nA: b\r\n"),
    ("no end at all", b"NATS/1.0\r\nA: b"),
    ("only the beginning of a version", b"NATS/"),
    ("no version", b"A: b\r\n\r\n"),
    ("another version", b"NATS/9.9\r\nA: b\r\n\r\n"),
    ("one byte", b"\xff"),
    ("only line ends", b"\r\n\r\n"),
    ("a second block behind the first", b"NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n"),
    ("status 100", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"),
    ("status 100, flow control", b"NATS/1.0 100 FlowControl Request\r\n\r\n"),
    ("status 404", b"NATS/1.0 404 No Messages\r\n\r\n"),
    ("status 408", b"NATS/1.0 408 Request Timeout\r\n\r\n"),
    ("status 409", b"NATS/1.0 409 Consumer Deleted\r\n\r\n"),
    ("status 503", b"NATS/1.0 503\r\n\r\n"),
    ("status 999999", b"NATS/1.0 999999\r\n\r\n"),
    ("a status that is no number", b"NATS/1.0 abc \xff\r\n\r\n"),
    ("a status and headers", b"NATS/1.0 503 Away\r\nA: b\r\n\r\n"),
    ("the broker's own headers", b"NATS/1.0\r\nNats-Stream: S\r\nNats-Sequence: x\r\n\r\n"),
    ("a consumer that stalled", b"NATS/1.0\r\nNats-Consumer-Stalled: a.b\r\n\r\n"),
    ("a position that is none", b"NATS/1.0\r\nTailpost-Position: \xff\r\n\r\n"),
    ("a position far ahead", b"NATS/1.0\r\nTailpost-Position: 1/1/FFFFFFFF/FFFFFFFF/9\r\n\r\n"),
    ("an id that is none", b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n"),
    ("the same header often", b"NATS/1.0\r\nA: 1\r\nA: 2\r\na: 3\r\nA: \xff\r\n\r\n"),
];

/// Headers of an event that is otherwise right.
const FIELDS: &[(&str, Option<&[u8]>)] = &[
    (header::MSG_ID, None),
    (header::MSG_ID, Some(b"no uuid")),
    (header::EVENT_ID, Some(b"\xff")),
    (header::EVENT_ID, Some(b"")),
    (header::EVENT_TYPE, None),
    (header::EVENT_TYPE, Some(b"")),
    (header::EVENT_TYPE, Some(br"\u0000")),
    (header::EVENT_TYPE, Some(b"\0")),
    (header::AGGREGATE_TYPE, Some(b"\xc3\x28")),
    (header::AGGREGATE_ID, None),
    (header::AGGREGATE_ID, Some(b"")),
    (header::AGGREGATE_ID, Some(br"\u0000")),
    (header::AGGREGATE_ID, Some(b"a\rb")),
    (header::EVENT_VERSION, Some(b"99999999999999999999")),
    (header::EVENT_VERSION, Some(b"-1")),
    (header::EVENT_VERSION, Some(b"1.5")),
    (header::OCCURRED_AT, None),
    (header::OCCURRED_AT, Some(b"infinity")),
    (header::OCCURRED_AT, Some(b"-infinity")),
    (header::OCCURRED_AT, Some(b"-009999-01-02T01:59:59Z")),
    (header::OCCURRED_AT, Some(b"-004713-01-01T00:00:00Z")),
    (header::OCCURRED_AT, Some(b"0000-01-01T00:00:00Z")),
    (header::OCCURRED_AT, Some(b"0001-01-01T00:00:00Z")),
    (header::OCCURRED_AT, Some(b"1970-01-01T00:00:00Z")),
    (header::OCCURRED_AT, Some(b"1999-12-31T23:59:60Z")),
    (header::OCCURRED_AT, Some(b"2100-01-01T00:00:00Z")),
    (header::OCCURRED_AT, Some(b"9999-12-30T22:00:00.999999999Z")),
    (header::OCCURRED_AT, Some(b"+010000-01-01T00:00:00Z")),
    (header::CORRELATION_ID, Some(b"no uuid")),
    (header::CAUSATION_ID, Some(b"")),
    (header::ESCAPED, Some(b"Aggregate-Id,Any")),
    (header::ESCAPED, Some(b",,,\xff")),
    (header::POSITION, Some(b"a position")),
    ("Any", Some(br"\u0000")),
    ("Any", Some(b"\\u0000\0\\")),
    ("Any", Some(br"\ud800")),
    ("Any", Some(b"\0")),
    ("Any", Some(b"\xff\xfe")),
    ("Any", Some(b"b\rc")),
    ("Any", Some(b"b\nc")),
    ("Any", Some(b"%00")),
    (r"\u0000", Some(b"a")),
    ("a b", Some(b"c")),
    ("Host", Some(b"elsewhere")),
    ("Content-Length", Some(b"7")),
    ("Transfer-Encoding", Some(b"chunked")),
    ("Idempotency-Key", Some(b"other")),
];

/// Last tokens of subjects.
const TOKENS: &[&[u8]] = &[
    b"\xff\xfe",
    b"\xc3",
    b"a\0b",
    b"a\x01\x1b[31m\x7fb",
    b"%",
    b"%00",
    br"\u0000",
    "\u{1F600}".as_bytes(),
    b"'\");--",
    &[b'x'; 3000],
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Nats, NatsOptions, RawNats};

    /// Else it would test nothing.
    #[tokio::test]
    async fn nats_stores_every_message() {
        let nats = Nats::start(NatsOptions::default()).await.unwrap();
        let jetstream = nats.jetstream().await.unwrap();
        let config = async_nats::jetstream::stream::Config {
            name: "ANY".to_owned(),
            subjects: vec!["any.>".to_owned()],
            ..Default::default()
        };
        let mut stream = jetstream.create_stream(config).await.unwrap();
        let mut messages = Messages::new(1);
        let every = messages.every();
        let mut not_stored = Vec::new();
        for message in &every {
            let before = stream.info().await.unwrap().state.last_sequence;
            publish(&nats, message).await;
            // The server answers a flush before a large message is stored.
            let stored = async {
                while stream.info().await.unwrap().state.last_sequence == before {
                    tokio::task::yield_now().await;
                }
            };
            if tokio::time::timeout(Duration::from_secs(30), stored).await.is_err() {
                not_stored.push(&message.about);
            }
        }
        assert!(not_stored.is_empty(), "{not_stored:#?}");
        for _ in 0..200 {
            publish(&nats, &messages.draw()).await;
        }
        // Some have the id of one before, and are duplicates.
        let expected = 150 + every.len() as u64;
        let stored = async {
            while stream.info().await.unwrap().state.last_sequence <= expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), stored).await.expect("most are stored");
    }

    async fn publish(nats: &Nats, message: &HostileMessage) {
        let mut raw = RawNats::connect(&nats.url()).await.unwrap();
        let subject = message.subject("any");
        raw.publish(&subject, message.headers.as_deref(), &message.body).await.unwrap();
        raw.flush().await.unwrap_or_else(|error| panic!("{}: {error:#}", message.about));
    }
}
