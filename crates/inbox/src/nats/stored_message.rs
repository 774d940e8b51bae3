//! Reads messages from the stream one by one, whatever their bytes.
//!
//! A header block that is no UTF-8, has a lone carriage return or a line without a colon breaks the
//! client's connection when it is delivered, or ends the client's task. `STREAM.MSG.GET` answers in
//! JSON with the block in base64, so it can be looked at here.

use async_nats::{Client, HeaderMap, HeaderName, HeaderValue, Subject};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;

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
    stored_at: Timestamp,
}

#[derive(Deserialize)]
struct Answer {
    message: Option<Raw>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Raw {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    time: Timestamp,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// What JetStream says when there is no such message.
const NO_MESSAGE: u64 = 10037;

const READING: &str = "read a message from the stream";

/// The message with this sequence, if the stream has it.
pub(crate) async fn get(nats: &Client, stream: &str, seq: u64) -> Result<Option<Stored>, Error> {
    ask(nats, stream, format!("{{\"seq\":{seq}}}")).await
}

/// The first message from this sequence on, whatever its subject, if the stream has one.
pub(crate) async fn next(nats: &Client, stream: &str, seq: u64) -> Result<Option<Stored>, Error> {
    ask(nats, stream, format!("{{\"seq\":{seq},\"next_by_subj\":\">\"}}")).await
}

/// Bounded by the client's time-out for requests.
async fn ask(nats: &Client, stream: &str, request: String) -> Result<Option<Stored>, Error> {
    let subject = format!("$JS.API.STREAM.MSG.GET.{stream}");
    let answer = nats.request(subject, request.into()).await.map_err(Error::jetstream(READING))?;
    let answer: Answer =
        serde_json::from_slice(&answer.payload).map_err(Error::jetstream(READING))?;
    match (answer.message, answer.error) {
        (Some(raw), _) => Stored::of(raw).map(Some),
        (None, Some(refusal)) if refusal.err_code == NO_MESSAGE => Ok(None),
        (None, refusal) => {
            let reason = refusal.map_or_else(String::new, |it| it.description);
            Err(Error::jetstream(READING)(format!("the server says \"{reason}\"")))
        }
    }
}

impl Stored {
    fn of(raw: Raw) -> Result<Self, Error> {
        let bytes = |text: &str| STANDARD.decode(text).map_err(Error::jetstream(READING));
        Ok(Self {
            seq: raw.seq,
            subject: raw.subject,
            headers: bytes(&raw.hdrs)?,
            payload: bytes(&raw.data)?.into(),
            stored_at: rounded(raw.time),
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
