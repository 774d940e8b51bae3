//! Messages as the stream's own API returns them.
//!
//! Anybody who may publish decides about the bytes of a message's headers, and the broker stores
//! them as they are. The NATS client refuses some of them: it drops the connection on which they
//! arrive. The stream's API returns them as base64 in a JSON object instead, so that a reader can
//! take any bytes.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Deserialize;

use crate::Malformed;

/// JetStream's `err_code` where the stream has no message with the sequence.
const NO_MESSAGE_FOUND: u64 = 10_037;

/// A message of a stream, read by its sequence through `$JS.API.STREAM.MSG.GET`.
///
/// To read a message, send [`request`](Self::request) to [`subject`](Self::api_subject) as a core
/// NATS request, and give the payload of the answer to [`parse`](Self::parse). The stream's leader
/// answers.
///
/// ```
/// use outbox::wire::StoredMessage;
///
/// // Headers that are no UTF-8: "NATS/1.0\r\nX: \xff\r\n\r\n" in base64.
/// let answer = br#"{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{
///     "subject":"outbox.order.created","seq":7,"time":"2026-01-02T03:04:05.6Z",
///     "hdrs":"TkFUUy8xLjANClg6IP8NCg0K","data":"e30="}}"#;
/// let message = StoredMessage::parse(answer)?.expect("there is one");
/// assert_eq!(message.sequence, 7);
/// assert_eq!(message.headers().get("X"), Some(&b"\xff"[..]));
/// assert!(message.headers().to_text().is_err());
/// assert_eq!(message.payload()?, b"{}");
/// # Ok::<(), outbox::Malformed>(())
/// ```
#[derive(Debug, Clone)]
pub struct StoredMessage<'a> {
    /// The subject. The server replaces bytes that are no UTF-8.
    pub subject: Cow<'a, str>,
    /// The sequence in the stream.
    pub sequence: u64,
    /// When the stream stored it.
    pub time: Timestamp,
    headers: Vec<u8>,
    data: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow)]
    error: Option<ApiError<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    subject: Cow<'a, str>,
    seq: u64,
    time: Timestamp,
    #[serde(borrow, default)]
    hdrs: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ApiError<'a> {
    #[serde(default)]
    err_code: u64,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
}

impl<'a> StoredMessage<'a> {
    /// Where to send the request for a message of `stream`.
    #[must_use]
    pub fn api_subject(stream: &str) -> String {
        format!("{}.STREAM.MSG.GET.{stream}", crate::jetstream_api::prefix())
    }

    /// What to send there.
    #[must_use]
    pub fn request(sequence: u64) -> String {
        format!("{{\"seq\":{sequence}}}")
    }

    /// As [`request`](Self::request), for the first message from this sequence on.
    #[must_use]
    pub fn request_from(sequence: u64) -> String {
        format!("{{\"seq\":{sequence},\"next_by_subj\":\">\"}}")
    }

    /// As [`request`](Self::request), for the last message of a subject.
    #[must_use]
    pub fn request_last(subject: &str) -> String {
        format!("{{\"last_by_subj\":{}}}", serde_json::Value::from(subject))
    }

    /// Reads the answer. `None` if the stream has no message with the sequence.
    ///
    /// The payload stays encoded until [`payload`](Self::payload) is called.
    ///
    /// # Errors
    ///
    /// If the broker refused the request, or it is no answer to such a request.
    pub fn parse(answer: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let answer: Answer<'a> = serde_json::from_slice(answer).map_err(unreadable)?;
        if let Some(ApiError { err_code, description }) = answer.error {
            if err_code == NO_MESSAGE_FOUND {
                return Ok(None);
            }
            return Err(format!("{description} ({err_code})").into());
        }
        let Some(Message { subject, seq: sequence, time, hdrs, data }) = answer.message else {
            return Err(unreadable("neither a message nor an error"));
        };
        let headers = STANDARD.decode(&*hdrs).map_err(unreadable)?;
        Ok(Some(Self { subject, sequence, time, headers, data }))
    }

    /// The headers, as they were published.
    #[must_use]
    pub fn headers(&self) -> RawHeaders<'_> {
        RawHeaders::new(&self.headers)
    }

    /// The payload, as it was published.
    ///
    /// # Errors
    ///
    /// If the broker did not encode it as base64.
    pub fn payload(&self) -> Result<Vec<u8>, Malformed> {
        STANDARD.decode(&*self.data).map_err(unreadable)
    }
}

/// The answer is none of JetStream's.
fn unreadable(why: impl fmt::Display) -> Malformed {
    format!("the answer is not one of the stream's API: {why}").into()
}

/// The bytes of a message's headers, from `NATS/1.0` to the empty line. They may be any bytes.
///
/// Lines end with LF, with or without a CR before it. A line is a header if it has a colon behind
/// a name; all other lines, the first one among them, are skipped. Spaces and tabs around a value
/// are not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawHeaders<'a> {
    bytes: &'a [u8],
}

/// `NATS/1.0`, which may have a status behind it.
const VERSION: &[u8] = b"NATS/1.0";

impl<'a> RawHeaders<'a> {
    /// Takes the bytes as they are. No bytes at all are no headers.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The bytes as they are.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The value of the first header with this name, whose case matters.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.iter().find(|it| it.0 == name.as_bytes()).map(|it| it.1)
    }

    /// As [`get`](Self::get). `None` also if the value is not UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'a str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// All headers, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        lines(self.bytes).filter_map(header)
    }

    /// All headers as text, in their order, if the NATS client would have received them.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the first line that the client would refuse.
    pub fn to_text(&self) -> Result<Vec<(&'a str, &'a str)>, Malformed> {
        let mut lines = lines(self.bytes);
        match lines.next() {
            None => return Ok(Vec::new()),
            Some(first) if first.starts_with(VERSION) => {}
            Some(_) => return Err(Malformed::because("the headers do not begin with NATS/1.0")),
        }
        let text = |line: &'a [u8]| {
            let (name, value) =
                header(line).ok_or(Malformed::because("a line of the headers is no header"))?;
            let utf8 = |it| {
                std::str::from_utf8(it).map_err(|_| Malformed::because("a header is not UTF-8"))
            };
            match line.contains(&b'\r') {
                true => Err(Malformed::because("a header has a carriage return in it")),
                false => Ok((utf8(name)?, utf8(value)?)),
            }
        };
        lines.filter(|line| !line.is_empty()).map(text).collect()
    }
}

/// Without their ends. What is behind the last end of a line is a line if it is not empty.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    })
}

fn header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let to = value.iter().rposition(|byte| !blank(byte)).map_or(from, |last| last + 1);
    (!name.is_empty()).then_some((name, &value[from..to]))
}
