//! A dead letter of the inbox, whole, as JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use inbox::{DeadLetter, Original};
use serde::Serialize;
use serde_json::value::RawValue;

/// A dead letter, with what it carried if that was asked for.
#[derive(Serialize)]
pub(crate) struct Letter<'a> {
    #[serde(flatten)]
    letter: &'a DeadLetter,
    /// They may be about people as much as the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<&'a serde_json::Value>,
    /// The payload, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// The payload in Base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl<'a> Letter<'a> {
    pub(crate) fn of(original: &'a Original, with_payload: bool) -> Self {
        let payload = &original.payload;
        let json = std::str::from_utf8(payload).ok();
        let json = json.and_then(|it| RawValue::from_string(it.trim().to_owned()).ok());
        let other = json.is_none().then(|| STANDARD.encode(payload));
        Self {
            letter: &original.letter,
            headers: with_payload.then_some(&original.headers),
            payload: json.filter(|_| with_payload),
            payload_base64: other.filter(|_| with_payload),
        }
    }
}
