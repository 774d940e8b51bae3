use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use bytestring::ByteString;
use jiff::{Timestamp, Unit};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::Error;

/// A fact about an aggregate: one row of the outbox.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// Minted once, when the event is made; every delivery of it carries this id.
    pub id: Uuid,
    /// What kind of thing changed, such as `order`.
    pub aggregate_type: ByteString,
    /// Which one changed. Events of one aggregate stay in order.
    pub aggregate_id: ByteString,
    /// What happened, such as `OrderPlaced`.
    pub event_type: ByteString,
    /// The version of the payload's schema, from 1.
    pub event_version: i32,
    /// JSON text, exactly as PostgreSQL prints it when the event comes from the outbox.
    pub payload: Bytes,
    /// When it happened, by the producer's clock, to the microsecond.
    pub occurred_at: Timestamp,
    /// Ties together the events of one business process.
    pub correlation_id: Option<Uuid>,
    /// The event or command that caused this one.
    pub causation_id: Option<Uuid>,
    /// Further headers: the text of a JSON object. The values are meant to be strings; others
    /// travel as their JSON text.
    pub headers: Option<Bytes>,
}

impl Event {
    /// Makes an event of version 1 that happened now, with a new time-ordered id.
    ///
    /// # Errors
    ///
    /// [`Error::Payload`] if `payload` cannot be written as JSON.
    pub fn new(
        aggregate_type: impl Into<ByteString>,
        aggregate_id: impl Into<ByteString>,
        event_type: impl Into<ByteString>,
        payload: &impl Serialize,
    ) -> Result<Self, Error> {
        Ok(Self {
            id: Uuid::now_v7(),
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
            event_version: 1,
            payload: serde_json::to_vec(payload).map_err(Error::Payload)?.into(),
            occurred_at: now_micros(),
            correlation_id: None,
            causation_id: None,
            headers: None,
        })
    }

    /// Sets the version of the payload's schema.
    #[must_use]
    pub fn with_version(mut self, event_version: i32) -> Self {
        self.event_version = event_version;
        self
    }

    /// Sets the id of the business process that the event belongs to.
    #[must_use]
    pub fn with_correlation(mut self, correlation_id: Uuid) -> Self {
        self.correlation_id = Some(correlation_id);
        self
    }

    /// Sets the id of the event or command that caused this one.
    #[must_use]
    pub fn with_causation(mut self, causation_id: Uuid) -> Self {
        self.causation_id = Some(causation_id);
        self
    }

    /// Adds a header, or replaces it. Existing headers keep their values byte for byte.
    ///
    /// Headers that are not a JSON object (only possible if the field was set by hand) are dropped.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let mut headers: BTreeMap<String, Box<RawValue>> = self
            .headers
            .take()
            .and_then(|headers| serde_json::from_slice(&headers).ok())
            .unwrap_or_default();
        let value = serde_json::value::to_raw_value(value).expect("a string is valid json");
        headers.insert(name.to_owned(), value);
        let headers = serde_json::to_vec(&headers).expect("a map of strings is valid json");
        self.headers = Some(headers.into());
        self
    }
}

impl fmt::Debug for Event {
    /// Leaves out payload and headers: they carry what must not end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("event_type", &self.event_type)
            .field("event_version", &self.event_version)
            .field("payload_bytes", &self.payload.len())
            .field("occurred_at", &self.occurred_at)
            .finish_non_exhaustive()
    }
}

/// The column keeps microseconds; rounding here keeps the event equal to its row.
fn now_micros() -> Timestamp {
    Timestamp::now().round(Unit::Microsecond).expect("the present is within jiff's range")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::new("order", "o-1", "OrderPlaced", &serde_json::json!({"secret": 1})).unwrap()
    }

    #[test]
    fn ids_are_time_ordered_and_times_fit_the_column() {
        let (a, b) = (event(), event());
        assert!(a.id < b.id);
        assert_eq!(a.occurred_at.subsec_nanosecond() % 1000, 0);
    }

    #[test]
    fn headers_are_added_replaced_and_otherwise_untouched() {
        let mut event = event();
        event.headers = Some(Bytes::from_static(br#"{"amount": 1.10, "a": "old"}"#));
        let event = event.with_header("a", "new \"quoted\"").with_header("b", "2");
        assert_eq!(
            event.headers.unwrap(),
            r#"{"a":"new \"quoted\"","amount":1.10,"b":"2"}"#.as_bytes()
        );
    }

    #[test]
    fn debug_output_hides_payload_and_headers() {
        let text = format!("{:?}", event().with_header("token", "hunter2"));
        assert!(text.contains("OrderPlaced"), "{text}");
        assert!(!text.contains("secret") && !text.contains("hunter2"), "{text}");
    }
}
