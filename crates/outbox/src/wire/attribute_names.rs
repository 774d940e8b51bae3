use std::borrow::Cow;
use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::name::{is_brokers, without_brokers};

/// What begins the names of attributes in headers, of NATS and of HTTP.
pub const PREFIX: &str = "ce-";

/// The names of attributes that are made of an event, as headers.
pub const NAMES: [&str; 13] = [
    "ce-specversion",
    "ce-id",
    "ce-source",
    "ce-type",
    "ce-subject",
    "ce-time",
    "ce-datacontenttype",
    "ce-partitionkey",
    "ce-sequence",
    "ce-correlationid",
    "ce-causationid",
    "ce-traceparent",
    "ce-tracestate",
];

/// What the value of an attribute must not have in a header: a space, `"`, `%`, and all that is not
/// visible ASCII.
const VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Which of [`NAMES`] somebody added, as a header says it ([`header::CLOUDEVENTS`](super::header::CLOUDEVENTS)):
/// all others are the producer's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Added(u16);

impl Added {
    /// What the header says; nothing if it cannot be understood.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(u16::from_str_radix(text, 16).unwrap_or_default())
    }

    /// Adds a name.
    pub fn add(&mut self, name: &str) {
        self.0 |= Self::bit(name);
    }

    /// Whether this header was added.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        self.0 & Self::bit(name) != 0
    }

    fn bit(name: &str) -> u16 {
        NAMES.iter().position(|it| *it == name).map_or(0, |at| 1 << at)
    }
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The value of an attribute as a header has it.
#[must_use]
pub fn attribute_to_wire(value: &str) -> Cow<'_, str> {
    let encoded: Cow<'_, str> = utf8_percent_encode(value, VALUE).into();
    if is_brokers(&encoded) { without_brokers(encoded.into_owned()).into() } else { encoded }
}
