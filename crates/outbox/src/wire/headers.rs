use std::borrow::Cow;
use std::fmt::{self, Write};

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::attribute_names::Added;
use super::escape::unescape;
use super::header;
use super::name::{is_brokers, name_from_wire, name_to_wire, without_brokers};
use crate::{Event, Malformed};

/// What is escaped in a header value that cannot travel as it is; bytes beyond ASCII always are.
const VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Emits an event's headers, names and values ready for the wire: the event's own, then the user's.
///
/// The headers that depend on the stream and the log (`Nats-Expected-*`, `Tailpost-Position`) are
/// not the event's; the publisher adds them.
///
/// - A value with control characters, anything beyond ASCII, or a space at either end is
///   percent-escaped, and its name listed in [`header::ESCAPED`]. All others, `traceparent` and
///   `baggage` among them, are untouched.
/// - A user header whose name is invalid, begins with `Nats-` or `Tailpost-` (in any case) or is
///   one of ours gets the prefix `X-`, with invalid characters escaped.
/// - User headers that are not strings are emitted as their JSON text.
///
/// # Errors
///
/// If the event's headers are neither a JSON object nor `null`. What was emitted until then is
/// incomplete.
pub fn event_headers(event: &Event, mut emit: impl FnMut(&str, &str)) -> Result<(), Malformed> {
    let mut escaped = String::new();
    let mut emit_text = |name: &str, value: &str| {
        let travels = value_to_wire(value);
        emit(name, &travels);
        if matches!(travels, Cow::Owned(_)) {
            if !escaped.is_empty() {
                escaped.push(',');
            }
            escaped.push_str(name);
        }
    };
    let mut scratch = Scratch::new();
    emit_text(header::MSG_ID, scratch.print(&event.id));
    emit_text(header::EVENT_TYPE, &event.event_type);
    emit_text(header::EVENT_VERSION, scratch.print(&event.event_version));
    emit_text(header::AGGREGATE_TYPE, &event.aggregate_type);
    emit_text(header::AGGREGATE_ID, &event.aggregate_id);
    emit_text(header::OCCURRED_AT, scratch.print(&event.occurred_at));
    if let Some(id) = &event.correlation_id {
        emit_text(header::CORRELATION_ID, scratch.print(id));
    }
    if let Some(id) = &event.causation_id {
        emit_text(header::CAUSATION_ID, scratch.print(id));
    }
    if let Some(headers) = &event.headers {
        for_each_header(headers, |name, value| emit_text(&name_to_wire(name), &value))?;
    }
    if !escaped.is_empty() {
        emit(header::ESCAPED, &escaped);
    }
    Ok(())
}

/// Puts an event together again from what [`event_headers`] emitted.
///
/// Other `Nats-` and `Tailpost-` headers are ignored, and with [`header::CLOUDEVENTS`] the attributes
/// that a relay adds; all else becomes a user header. If there is
/// a [`header::EVENT_ID`] it is the id, otherwise `Nats-Msg-Id`.
///
/// # Errors
///
/// If a header that every event has is missing, or one cannot be understood.
pub fn parse_event<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    payload: Bytes,
) -> Result<Event, Malformed> {
    let mut found = Vec::with_capacity(16); // as many as there are, mostly
    found.extend(headers);
    let headers = found;
    let escaped = headers.iter().find(|(name, _)| *name == header::ESCAPED).map_or("", |it| it.1);
    let fields = Fields { headers: &headers, escaped };

    let id_header =
        if fields.raw(header::EVENT_ID).is_some() { header::EVENT_ID } else { header::MSG_ID };
    Ok(Event {
        id: fields.parsed(id_header)?.ok_or_else(|| missing(id_header))?,
        aggregate_type: fields.text(header::AGGREGATE_TYPE)?,
        aggregate_id: fields.text(header::AGGREGATE_ID)?,
        event_type: fields.text(header::EVENT_TYPE)?,
        event_version: fields.parsed(header::EVENT_VERSION)?.unwrap_or(1),
        payload,
        occurred_at: fields
            .parsed::<Timestamp>(header::OCCURRED_AT)?
            .ok_or_else(|| missing(header::OCCURRED_AT))?,
        correlation_id: fields.parsed::<Uuid>(header::CORRELATION_ID)?,
        causation_id: fields.parsed::<Uuid>(header::CAUSATION_ID)?,
        headers: fields.user()?,
    })
}

/// A header's value as it travels: as it is, or escaped as [`event_headers`] does it.
#[must_use]
pub fn value_to_wire(value: &str) -> Cow<'_, str> {
    if travels_untouched(value) {
        Cow::Borrowed(value)
    } else {
        Cow::Owned(without_brokers(utf8_percent_encode(value, VALUE).to_string()))
    }
}

/// What the value of a header stands for, where `escaped` is that of [`header::ESCAPED`], empty if
/// there is none. `None` if it cannot be understood.
#[must_use]
pub fn value_from_wire<'a>(name: &str, value: &'a str, escaped: &str) -> Option<Cow<'a, str>> {
    if escaped.split(',').any(|it| it == name) { unescape(value) } else { Some(value.into()) }
}

/// The value of one user header, if there is one.
pub(super) fn user_header<'a>(
    event: &'a Event,
    name: &str,
) -> Result<Option<Cow<'a, str>>, Malformed> {
    let mut found = None;
    if let Some(headers) = &event.headers {
        for_each_header(headers, |key, value| {
            if key == name {
                found = Some(value);
            }
        })?;
    }
    Ok(found)
}

/// The headers of an event are neither a JSON object nor `null`.
const NO_OBJECT: Malformed = Malformed::because("the event's headers are not a json object");

fn missing(name: &str) -> Malformed {
    format!("the header {name} is missing").into()
}

fn invalid(name: &str) -> Malformed {
    format!("the header {name} cannot be understood").into()
}

struct Fields<'a> {
    headers: &'a [(&'a str, &'a str)],
    escaped: &'a str,
}

impl<'a> Fields<'a> {
    fn raw(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|it| it.0 == name).map(|it| it.1)
    }

    fn unescaped(&self, name: &str, value: &'a str) -> Result<Cow<'a, str>, Malformed> {
        let value = value_from_wire(name, value, self.escaped);
        value.ok_or_else(|| invalid(name))
    }

    fn text(&self, name: &str) -> Result<ByteString, Malformed> {
        let value = self.raw(name).ok_or_else(|| missing(name))?;
        Ok(self.unescaped(name, value)?.into_owned().into())
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Malformed> {
        self.raw(name).map(|value| value.parse().map_err(|_| invalid(name))).transpose()
    }

    /// The user's headers as the text of a JSON object, if there are any.
    fn user(&self) -> Result<Option<Bytes>, Malformed> {
        let mut user = serde_json::Map::new();
        let added = Added::parse(self.raw(header::CLOUDEVENTS).unwrap_or_default());
        for (name, value) in self.headers {
            if added.has(name) {
                continue;
            }
            if let Some(user_name) = name_from_wire(name) {
                user.insert(user_name.into_owned(), self.unescaped(name, value)?.into());
            }
        }
        if user.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::to_vec(&user).expect("a map of strings is valid json").into()))
    }
}

fn travels_untouched(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && !value.starts_with(' ')
        && !value.ends_with(' ')
        && !is_brokers(value)
}

/// Calls `visit` with each name and value of a JSON object; without copying, mostly.
pub(super) fn for_each_header<'a>(
    headers: &'a [u8],
    visit: impl FnMut(&str, Cow<'a, str>),
) -> Result<(), Malformed> {
    let mut json = serde_json::Deserializer::from_slice(headers);
    json.deserialize_any(HeaderVisitor { visit }).map_err(|_| NO_OBJECT)?;
    json.end().map_err(|_| NO_OBJECT)
}

struct HeaderVisitor<F> {
    visit: F,
}

impl<'de, F: FnMut(&str, Cow<'de, str>)> Visitor<'de> for HeaderVisitor<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
            (self.visit)(&name.0, json_text(value));
        }
        Ok(())
    }
}

/// A JSON string, borrowed from the input where it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn json_text(value: &RawValue) -> Cow<'_, str> {
    // Fails for everything but strings, which stays as it is written.
    match serde_json::from_str::<Text<'_>>(value.get()) {
        Ok(text) => text.0,
        Err(_) => Cow::Borrowed(value.get()),
    }
}

/// Prints short values without allocating; this runs for every event.
pub(super) struct Scratch {
    bytes: [u8; Self::BYTES],
    length: usize,
}

impl Scratch {
    /// The longest is a timestamp with sign, six-digit year and nanoseconds.
    const BYTES: usize = 40;

    pub(super) fn new() -> Self {
        Self { bytes: [0; Self::BYTES], length: 0 }
    }

    pub(super) fn print(&mut self, value: &impl fmt::Display) -> &str {
        self.length = 0;
        write!(self, "{value}").expect("ids, numbers and times fit");
        std::str::from_utf8(&self.bytes[..self.length]).expect("only whole strings are written")
    }
}

impl Write for Scratch {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
