//! Reads messages from the stream one by one, whatever their bytes.
//!
//! A header block that is no UTF-8, has a lone carriage return or a line without a colon breaks the
//! client's connection when it is delivered, or ends the client's task. `STREAM.MSG.GET` answers in
//! JSON with the block in base64, so it can be looked at here.

use async_nats::{Client, HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;
use jiff::Timestamp;
use outbox::wire::StoredMessage;

use crate::Error;
use crate::message::{Message, Origin};
use crate::record::rounded;

/// A message as the stream has it.
pub(crate) struct Stored {
    pub(crate) seq: u64,
    pub(crate) subject: String,
    /// Empty if it has no headers.
    headers: Vec<u8>,
    payload: Bytes,
    pub(crate) stored_at: Timestamp,
}

const READING: &str = "read a message from the stream";

/// The message with this sequence, if the stream has it.
pub(crate) async fn get(nats: &Client, stream: &str, seq: u64) -> Result<Option<Stored>, Error> {
    ask(nats, stream, StoredMessage::request(seq)).await
}

/// When the message with this sequence was stored, if the stream has it.
pub(crate) async fn at(nats: &Client, stream: &str, seq: u64) -> Result<Option<Timestamp>, Error> {
    // No message has it, and the server refuses it.
    if seq == 0 {
        return Ok(None);
    }
    Ok(get(nats, stream, seq).await?.map(|it| it.stored_at))
}

/// The first message from this sequence on, whatever its subject, if the stream has one.
pub(crate) async fn next(nats: &Client, stream: &str, seq: u64) -> Result<Option<Stored>, Error> {
    ask(nats, stream, StoredMessage::request_from(seq)).await
}

/// Bounded by the client's time-out for requests.
async fn ask(nats: &Client, stream: &str, request: String) -> Result<Option<Stored>, Error> {
    let answer = nats.request(StoredMessage::api_subject(stream), request.into()).await;
    let answer = answer.map_err(Error::jetstream(READING))?;
    let message = StoredMessage::parse(&answer.payload).map_err(Error::jetstream(READING))?;
    message.as_ref().map(Stored::of).transpose()
}

impl Stored {
    fn of(message: &StoredMessage<'_>) -> Result<Self, Error> {
        Ok(Self {
            seq: message.sequence,
            subject: message.subject.clone().into_owned(),
            headers: message.headers().as_bytes().to_vec(),
            payload: message.payload().map_err(Error::jetstream(READING))?.into(),
            stored_at: rounded(message.time),
        })
    }

    /// The message, as it would have been understood if it had been delivered.
    pub(crate) fn understood(self, origin: &Origin) -> Message {
        let Self { seq, subject, headers, payload, stored_at } = self;
        match parse_headers(&headers) {
            Ok(map) => Message::new(subject, map, payload, origin, seq, stored_at),
            Err(reason) => {
                let reason = format!("the headers cannot be read: {reason}");
                let mut message =
                    Message::new(subject, HeaderMap::new(), payload, origin, seq, stored_at);
                message.raw_headers = Some(headers.into());
                message.event = Err(reason);
                message
            }
        }
    }

    /// A subject on which the consumer takes an acknowledgement of this message. It goes by the
    /// message's sequence; the counts that a delivery has besides are not looked at.
    pub(crate) fn ack_subject(&self, stream: &str, consumer: &str) -> Subject {
        ack_subject(stream, consumer, self.seq)
    }
}

/// As [`Stored::ack_subject`], for the message with this sequence.
pub(crate) fn ack_subject(stream: &str, consumer: &str, seq: u64) -> Subject {
    format!("$JS.ACK.{stream}.{consumer}.1.{seq}.1.0.0").into()
}

/// Reads a header block exactly as the client does: what it makes a map of has the same map here,
/// and what it cannot read, or takes for an answer of the server's, is an error.
pub(crate) fn parse_headers(block: &[u8]) -> Result<HeaderMap, &'static str> {
    let mut headers = HeaderMap::new();
    if block.is_empty() {
        return Ok(headers);
    }
    let text = std::str::from_utf8(block).map_err(|_| "they are not UTF-8")?;
    let mut lines = text.lines().peekable();
    let version = lines.next().and_then(|line| line.strip_prefix("NATS/1.0"));
    match version.map(str::trim) {
        // The client lets this status pass, and says nothing of it.
        Some("" | "200") => {}
        Some(status) if status.starts_with("200 ") => {}
        Some(_) => return Err("the first line has a status, as only the server's answers have"),
        None => return Err("they do not begin with NATS/1.0"),
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or("a line has no colon")?;
        let name: HeaderName = name.parse().map_err(|_| "a name has illegal characters")?;
        let mut value = value.trim_start().to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        value.truncate(value.trim_end().len());
        let value: HeaderValue = value.parse().map_err(|_| "a value has a carriage return")?;
        headers.append(name, value);
    }
    Ok(headers)
}
