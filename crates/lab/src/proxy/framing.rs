//! Where messages of PostgreSQL's and NATS' protocols end in a stream of bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a connection speaks, without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// PostgreSQL's frontend/backend protocol, version 3, replication included.
    Postgres,
    /// The protocol of NATS clients.
    Nats,
}

/// Requests for encryption have these numbers in the place of a version.
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// Lines of NATS are shorter; an INFO may be long.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// What both directions of a connection share.
#[derive(Default)]
pub(super) struct Conversation {
    /// Messages that were passed on, both ways.
    passed: AtomicU64,
    /// A request for encryption was sent and is not answered.
    asked: AtomicBool,
    /// The connection is encrypted, or speaks something else: nothing more is understood.
    opaque: AtomicBool,
    /// Since when messages are counted: which limit that was, and the last message it lets pass.
    limit: Mutex<(u64, u64)>,
}

impl Conversation {
    pub(super) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    /// The number of the last message that limit number `limit` lets pass, which lets `count`
    /// messages pass since the connection came to know it.
    pub(super) fn last(&self, limit: u64, count: u64) -> u64 {
        let mut known = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != limit {
            *known = (limit, self.passed().saturating_add(count));
        }
        known.1
    }

    fn pass(&self) {
        self.passed.fetch_add(1, Ordering::AcqRel);
    }
}

/// Finds the ends of messages in one direction of a connection.
pub(super) struct Framer {
    protocol: Protocol,
    from_client: bool,
    conversation: Arc<Conversation>,
    // The first message of a client of PostgreSQL has no type.
    started: bool,
    // Of the current message: its first bytes, as long as they do not say its length.
    head: Vec<u8>,
    // Of the current message: what is still to come, once that is known.
    rest: usize,
}

impl Framer {
    pub(super) fn new(
        protocol: Protocol,
        from_client: bool,
        conversation: &Arc<Conversation>,
    ) -> Self {
        Self {
            protocol,
            from_client,
            conversation: Arc::clone(conversation),
            started: false,
            head: Vec::new(),
            rest: 0,
        }
    }

    /// How much of `chunk` may pass if the connection is to stop after message number `last`: all
    /// of it, or what is before the end of that message.
    pub(super) fn pass(&mut self, chunk: &[u8], last: u64) -> usize {
        let mut at = 0;
        while at < chunk.len() {
            if self.conversation.passed() >= last {
                return at;
            }
            if self.conversation.opaque.load(Ordering::Acquire) {
                return chunk.len();
            }
            at += self.step(&chunk[at..]);
        }
        at
    }

    /// Takes the next bytes up to the end of a message at most; returns how many it took.
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.rest > 0 {
            let taken = self.rest.min(bytes.len());
            self.rest -= taken;
            if self.rest == 0 {
                self.conversation.pass();
            }
            return taken;
        }
        self.head.push(bytes[0]);
        let length = match self.protocol {
            Protocol::Postgres => self.postgres_length(),
            Protocol::Nats => self.nats_length(),
        };
        if let Some(length) = length {
            self.rest = length.saturating_sub(self.head.len());
            self.head.clear();
            if self.rest == 0 {
                self.conversation.pass();
            }
        }
        1
    }

    /// The length of the message that `head` begins, if that is known.
    fn postgres_length(&mut self) -> Option<usize> {
        let conversation = &self.conversation;
        if !self.from_client && conversation.asked.swap(false, Ordering::AcqRel) {
            // One byte: S or G for yes, N for no.
            conversation.opaque.fetch_or(self.head[0] != b'N', Ordering::AcqRel);
            return Some(1);
        }
        if self.from_client && !self.started {
            let length = number(self.head.get(..4)?);
            let code = number(self.head.get(4..8)?);
            if matches!(code, SSL_REQUEST | GSS_REQUEST) {
                conversation.asked.store(true, Ordering::Release);
            } else {
                self.started = true;
            }
            return Some(length as usize);
        }
        Some(1 + number(self.head.get(1..5)?) as usize)
    }

    fn nats_length(&self) -> Option<usize> {
        if self.head.len() > LINE_BYTES_MAX {
            self.conversation.opaque.store(true, Ordering::Release);
        }
        let line = self.head.strip_suffix(b"\r\n")?;
        let text = String::from_utf8_lossy(line);
        let mut words = text.split_ascii_whitespace();
        let operation = words.next().unwrap_or_default().to_ascii_uppercase();
        let has_payload = matches!(operation.as_str(), "PUB" | "HPUB" | "MSG" | "HMSG");
        let payload = words.next_back().filter(|_| has_payload);
        let payload = payload.and_then(|it| it.parse::<usize>().ok()).map_or(0, |it| it + 2);
        Some(self.head.len() + payload)
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum, byte| (sum << 8) | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(protocol: Protocol, from_client: bool, stream: &[u8]) -> Vec<usize> {
        let conversation = Arc::default();
        let mut framer = Framer::new(protocol, from_client, &conversation);
        let mut ends = Vec::new();
        for (index, byte) in stream.iter().enumerate() {
            let before = conversation.passed();
            framer.pass(&[*byte], u64::MAX);
            if conversation.passed() > before {
                ends.push(index + 1);
            }
        }
        // In one piece it is the same.
        for (count, end) in (1..).zip(&ends) {
            let conversation = Arc::default();
            let mut framer = Framer::new(protocol, from_client, &conversation);
            assert_eq!(framer.pass(stream, count), *end);
        }
        ends
    }

    #[test]
    fn messages_of_nats_end_after_their_payload() {
        let stream = b"CONNECT {}\r\nPING\r\nPUB a.b 5\r\nPING\n\r\nHPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n+OK\r\n";
        assert_eq!(ends(Protocol::Nats, true, stream), [12, 18, 36, 68, 73]);
        assert_eq!(ends(Protocol::Nats, false, b"MSG a 1 0\r\n\r\nPONG\r\n"), [13, 19]);
    }

    #[test]
    fn messages_of_postgres_begin_with_their_length_or_type() {
        let ssl = [0, 0, 0, 8, 4, 210, 22, 47];
        let startup = [0, 0, 0, 9, 0, 3, 0, 0, 0];
        let query = *b"Q\0\0\0\x06;\0";
        let sync = *b"S\0\0\0\x04";
        let stream = [&ssl[..], &startup, &query, &sync].concat();
        assert_eq!(ends(Protocol::Postgres, true, &stream), [8, 17, 24, 29]);
        assert_eq!(ends(Protocol::Postgres, false, b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I"), [9, 15]);
    }

    #[test]
    fn what_is_encrypted_is_passed_on() {
        let conversation = Arc::default();
        let mut client = Framer::new(Protocol::Postgres, true, &conversation);
        let mut server = Framer::new(Protocol::Postgres, false, &conversation);
        assert_eq!(client.pass(&[0, 0, 0, 8, 4, 210, 22, 47], 9), 8);
        assert_eq!(server.pass(b"S", 9), 1);
        assert_eq!(client.pass(&[0; 100], 9), 100);
        assert_eq!(conversation.passed(), 2);
    }
}
