//! The attributes of an event as CloudEvents 1.0 names them.

use std::borrow::Cow;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Position;
pub use super::attribute_names::{Added, NAMES, PREFIX, attribute_to_wire};
use super::headers::{Scratch, for_each_header};
use super::subject::Field;
use crate::{Event, Malformed};

/// What a value must not have in a segment of a URI's path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// How events become those of [CloudEvents](https://cloudevents.io) 1.0: the templates of `source`
/// and `type`.
///
/// Fields are those of a [`SubjectTemplate`](super::SubjectTemplate) without `{shard}`. In a source,
/// which is a URI reference, values are percent-encoded; in a type they are as they are.
///
/// ```
/// use outbox::wire::CloudEvents;
///
/// let names = CloudEvents::new("/shop/{aggregate_type}", "com.example.{event_type}.v{event_version}")?;
/// let event = outbox::Event::new("order line", "o-1", "Placed", &"{}")?;
/// let mut source = String::new();
/// names.attributes(&event, None, |name, value| {
///     if name == "ce-source" {
///         source = value.to_owned();
///     }
/// })?;
/// assert_eq!(source, "/shop/order%20line");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    source: Template,
    event_type: Template,
}

/// Each literal with the field behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Template(Vec<(String, Option<Field>)>);

impl Default for CloudEvents {
    /// `/{aggregate_type}` and `{event_type}`.
    fn default() -> Self {
        Self::new("/{aggregate_type}", "{event_type}").expect("valid templates")
    }
}

impl CloudEvents {
    /// With these templates of `source` and `type`.
    ///
    /// # Errors
    ///
    /// If a template is empty, has an unknown field, or has characters that the attribute cannot have.
    pub fn new(source: &str, event_type: &str) -> Result<Self, Malformed> {
        let is_uri = |it: char| it.is_ascii_graphic() && !"\"<>\\^`|%".contains(it);
        if !source.chars().all(is_uri) {
            return Err(Malformed::because("the template of a source is no URI reference"));
        }
        if event_type.chars().any(char::is_control) {
            return Err(Malformed::because("the template of a type has a control character"));
        }
        Ok(Self { source: source.parse()?, event_type: event_type.parse()? })
    }

    /// Emits the attributes of an event: each as a header's name, and its value as it is, which
    /// [`attribute_to_wire`] makes ready for a header.
    ///
    /// # Errors
    ///
    /// If the event's headers are neither a JSON object nor `null`.
    pub fn attributes(
        &self,
        event: &Event,
        sequence: Option<&str>,
        mut emit: impl FnMut(&'static str, &str),
    ) -> Result<(), Malformed> {
        let mut scratch = Scratch::new();
        emit("ce-specversion", "1.0");
        emit("ce-id", scratch.print(&event.id));
        emit("ce-source", &self.source.render(event, Some(SEGMENT))?);
        emit("ce-type", &self.event_type.render(event, None)?);
        if !event.aggregate_id.is_empty() {
            emit("ce-subject", &event.aggregate_id);
        }
        let time = scratch.print(&event.occurred_at);
        // RFC 3339 has four digits for a year, and no sign.
        if time.starts_with(|it: char| it.is_ascii_digit()) {
            emit("ce-time", time);
        }
        emit("ce-partitionkey", &format!("{}:{}", event.aggregate_type, event.aggregate_id));
        if let Some(sequence) = sequence {
            emit("ce-sequence", sequence);
        }
        if let Some(id) = &event.correlation_id {
            emit("ce-correlationid", scratch.print(id));
        }
        if let Some(id) = &event.causation_id {
            emit("ce-causationid", scratch.print(id));
        }
        let mut has_type = false;
        if let Some(headers) = &event.headers {
            for_each_header(headers, |name, value| match name {
                "traceparent" => emit("ce-traceparent", &value),
                "tracestate" => emit("ce-tracestate", &value),
                _ if name.eq_ignore_ascii_case("content-type") && !has_type => {
                    has_type = true;
                    emit("ce-datacontenttype", &value);
                }
                _ => {}
            })?;
        }
        if !has_type {
            emit("ce-datacontenttype", "application/json");
        }
        Ok(())
    }
}

/// What compares as text as events of one `source` come in the log: `epoch` counts the histories of
/// the database, of which later ones have greater numbers.
#[must_use]
pub fn sequence(epoch: u32, position: &Position) -> String {
    let Position { lsn, ordinal, .. } = position;
    format!("{epoch:04X}.{lsn:016X}.{ordinal:08X}")
}

impl Template {
    fn render<'a>(
        &'a self,
        event: &'a Event,
        escape: Option<&'static AsciiSet>,
    ) -> Result<Cow<'a, str>, Malformed> {
        let mut text = Cow::Borrowed("");
        for (literal, field) in &self.0 {
            text += literal.as_str();
            let Some(field) = field else { continue };
            match (field.value(event)?, escape) {
                (value, Some(set)) => text.to_mut().extend(utf8_percent_encode(&value, set)),
                (value, None) if text.is_empty() => text = value,
                (value, None) => text.to_mut().push_str(&value),
            }
        }
        Ok(text)
    }
}

impl FromStr for Template {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        if text.is_empty() {
            return Err(Malformed::because("a template is empty"));
        }
        let parts = text.split_inclusive('}').map(|part| {
            let Some((literal, name)) = part.split_once('{') else {
                let is_stray = part.ends_with('}');
                let part = (part.to_owned(), None);
                return if is_stray {
                    Err(Malformed::because("a template has a } without {"))
                } else {
                    Ok(part)
                };
            };
            let name = name.strip_suffix('}');
            let name = name.ok_or(Malformed::because("a template has a { without }"))?;
            Ok((literal.to_owned(), Some(name.parse()?)))
        });
        parts.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::value_from_wire;

    fn event() -> Event {
        Event::new("order", "o 1", "Placed", &serde_json::json!({})).expect("an event")
    }

    fn attributes(names: &CloudEvents, event: &Event) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let emit = |name, value: &str| found.push((name, value.to_owned()));
        names.attributes(event, Some("0001.0.0"), emit).expect("an object");
        found
    }

    fn of(found: &[(&'static str, String)], name: &str) -> Option<String> {
        found.iter().find(|it| it.0 == name).map(|it| it.1.clone())
    }

    #[test]
    fn an_event_has_the_attributes_that_consumers_expect() {
        let names = CloudEvents::new("/shop/{aggregate_type}", "com.{event_type}.v{event_version}");
        let event =
            event().with_header("Content-type", "text/plain").with_header("traceparent", "t");
        let found = attributes(&names.expect("valid"), &event);
        let (id, time) = (event.id.to_string(), event.occurred_at.to_string());
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", &*id),
            ("ce-source", "/shop/order"),
            ("ce-type", "com.Placed.v1"),
            ("ce-subject", "o 1"),
            ("ce-time", &*time),
            ("ce-datacontenttype", "text/plain"),
            ("ce-partitionkey", "order:o 1"),
            ("ce-sequence", "0001.0.0"),
            ("ce-traceparent", "t"),
        ] {
            assert_eq!(of(&found, name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(found.len(), 10);
        assert!(found.iter().all(|(name, _)| NAMES.contains(name)));
    }

    #[test]
    fn what_an_attribute_cannot_say_is_left_out() {
        let mut event = event();
        event.aggregate_id = "".into();
        event.occurred_at = jiff::Timestamp::MIN;
        let found = attributes(&CloudEvents::default(), &event);
        assert_eq!((of(&found, "ce-subject"), of(&found, "ce-time")), (None, None));
        assert_eq!(of(&found, "ce-datacontenttype").as_deref(), Some("application/json"));
    }

    #[test]
    fn templates_that_make_no_attribute_are_refused() {
        for (source, event_type) in [
            ("", "a"),
            ("a b", "a"),
            ("/%", "a"),
            ("/é", "a"),
            ("/{nothing}", "a"),
            ("/{", "a"),
            ("/}", "a"),
            ("/a", ""),
            ("/a", "a\n"),
            ("/a", "{shard}"),
            ("/a", "{event_type"),
        ] {
            assert!(CloudEvents::new(source, event_type).is_err(), "{source:?} {event_type:?}");
        }
    }

    /// Whoever reads the message finds the event of the row, also if that has attributes of its own.
    #[test]
    fn what_was_added_is_told_from_what_the_producer_wrote() {
        let event = event().with_header("ce-type", "own").with_header("ce-region", "eu");
        let mut headers = Vec::new();
        let emit = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
        crate::wire::event_headers(&event, emit).expect("an object");
        let mut added = Added::default();
        for (name, value) in attributes(&CloudEvents::default(), &event) {
            if name != "ce-type" {
                added.add(name);
                headers.push((name.to_owned(), value));
            }
        }
        headers.push((crate::wire::header::CLOUDEVENTS.to_owned(), added.to_string()));
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let read = crate::wire::parse_event(pairs, event.payload.clone()).expect("an event");
        assert_eq!(read.headers, event.headers);
        assert!(added.has("ce-id") && !added.has("ce-type") && !added.has("ce-region"));
        assert_eq!(
            (Added::parse(&added.to_string()), Added::parse("?")),
            (added, Added::default())
        );
    }

    /// Of the draft's own list: a space, a quotation mark, a percent sign, and what is not ASCII.
    #[test]
    fn values_are_encoded_as_the_binding_says() {
        for (value, wire) in [
            ("a~!b", "a~!b"),
            ("Euro € \u{1f600}", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("\"100%\"\n", "%22100%25%22%0A"),
            ("Nats-Msg-Id", "%4Eats-Msg-Id"),
        ] {
            assert_eq!(attribute_to_wire(value), wire);
            assert_eq!(value_from_wire("a", wire, "a").as_deref(), Some(value));
        }
    }

    proptest! {
        #[test]
        fn sequences_compare_as_events_come(
            a: (u16, u64, u32),
            b: (u16, u64, u32),
        ) {
            let text = |(epoch, lsn, ordinal): (u16, u64, u32)| {
                sequence(epoch.into(), &Position { system_id: 1, timeline: 1, lsn, ordinal })
            };
            prop_assert_eq!(text(a).cmp(&text(b)), a.cmp(&b));
        }
    }
}
