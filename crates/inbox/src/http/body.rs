//! What of an event is sent as the body of a request, and what is said beside it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use outbox::wire::cloudevents::{PREFIX, attribute_to_wire};
use outbox::wire::{CloudEvents, value_from_wire};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::response::is_json_type;
use crate::Delivery;

/// What is sent of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BodyForm {
    /// The payload as it is.
    #[default]
    Payload,
    /// `{"type", "timestamp", "data"}`, as Standard Webhooks recommend it. The payload has to be JSON.
    Standard,
    /// The payload as it is, and the attributes of a CloudEvent as headers.
    #[serde(rename = "cloudevents")]
    CloudEvents,
    /// A CloudEvent as JSON.
    #[serde(rename = "cloudevents-structured")]
    CloudEventsStructured,
}

/// The body of an event's request. Sets the headers that belong to it.
///
/// # Errors
///
/// Why the event cannot be sent in this form.
pub(super) fn body(
    (form, names): (BodyForm, &CloudEvents),
    delivery: &Delivery<'_>,
    headers: &mut HeaderMap,
) -> Result<Bytes, String> {
    let event = delivery.event;
    let payload = || event.payload.clone();
    let json = HeaderValue::from_static("application/json");
    match form {
        BodyForm::Payload => {
            headers.entry(CONTENT_TYPE).or_insert(json);
            Ok(payload())
        }
        BodyForm::Standard => {
            if !is_json(&event.payload) {
                return Err("the payload is no JSON, which body = \"standard\" needs".into());
            }
            headers.insert(CONTENT_TYPE, json);
            let fields = json!({ "type": &*event.event_type, "timestamp": event.occurred_at });
            Ok(object(&fields, "data", &event.payload))
        }
        BodyForm::CloudEvents => {
            for (name, value) in attributes(names, delivery)? {
                let name = HeaderName::from_bytes(format!("{PREFIX}{name}").as_bytes());
                let value = HeaderValue::from_str(&attribute_to_wire(&value));
                if let (Ok(name), Ok(value)) = (name, value) {
                    headers.insert(name, value);
                }
            }
            // The type of the data is that of the body.
            let of_data = headers.remove(DATA_CONTENT_TYPE).unwrap_or(json);
            headers.entry(CONTENT_TYPE).or_insert(of_data);
            Ok(payload())
        }
        BodyForm::CloudEventsStructured => {
            let of_body = "application/cloudevents+json; charset=utf-8";
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(of_body));
            Ok(structured(&attributes(names, delivery)?, &event.payload))
        }
    }
}

const DATA_CONTENT_TYPE: HeaderName = HeaderName::from_static("ce-datacontenttype");

/// The attributes of an event, by name: as its message has them, or else as they are made of it.
fn attributes(
    names: &CloudEvents,
    delivery: &Delivery<'_>,
) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    let emit = |name: &'static str, value: &str| {
        found.insert(name[PREFIX.len()..].to_owned(), value.to_owned());
    };
    names.attributes(delivery.event, None, emit).map_err(|it| it.to_string())?;
    for (name, values) in delivery.headers.iter() {
        let name: &str = name.as_ref();
        let Some(attribute) = name.strip_prefix(PREFIX) else { continue };
        let value = values.first().and_then(|it| value_from_wire(name, it.as_str(), name));
        if let Some(value) = value.filter(|_| is_attribute(attribute)) {
            found.insert(attribute.to_owned(), value.into_owned());
        }
    }
    Ok(found)
}

/// Extensions of producers are attributes too, if they are called so.
fn is_attribute(name: &str) -> bool {
    let is_fit = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
    !name.is_empty() && name != "data" && name.bytes().all(is_fit)
}

fn structured(attributes: &BTreeMap<String, String>, payload: &[u8]) -> Bytes {
    let media_type = attributes.get("datacontenttype").map_or("", String::as_str);
    let string = |text: &str| Json::from(text).to_string().into_bytes();
    match std::str::from_utf8(payload) {
        _ if is_json_type(media_type) && is_json(payload) => object(attributes, "data", payload),
        Ok(text) if media_type.starts_with("text/") => object(attributes, "data", &string(text)),
        _ => object(attributes, "data_base64", &string(&STANDARD.encode(payload))),
    }
}

/// A JSON object of some fields and one whose value is written already, and stays as it is.
fn object(fields: &impl Serialize, last: &str, value: &[u8]) -> Bytes {
    let mut text = serde_json::to_vec(fields).expect("strings are valid json");
    text.pop();
    text.extend(format!(",\"{last}\":").bytes());
    text.extend(value);
    text.push(b'}');
    text.into()
}

fn is_json(payload: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(payload).is_ok()
}
