//! The forms that values take. Each says what is wanted instead of something else.

use std::fmt::Display;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use inbox::Pauses;
use inbox::http::Headers;
use jiff::{SignedDuration, Span, SpanRelativeTo};
use outbox::wire::CloudEvents;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde_json::Value as Json;
use servers::{SecretCommand, SslMode};

/// What a setting wants, from the message about something else. Never has the value: it may be a
/// secret.
pub(super) fn wanted(message: &str) -> &str {
    match message.rsplit_once(", expected ").map_or(message, |(_, expected)| expected) {
        "path string" => "a string",
        "a boolean" => "true or false",
        "a sequence" => "a list of strings",
        "socket address" | "invalid socket address syntax" => {
            "an address with a port such as \"127.0.0.1:9464\""
        }
        other => other,
    }
}

/// A duration of at least so many milliseconds.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct Time<const LEAST: i64 = 0>(pub(crate) Duration);

/// Parses a duration as the configuration writes them, or says what is wanted.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let days = SpanRelativeTo::days_are_24_hours();
    let duration = text.parse::<Span>().and_then(|it| it.to_duration(days));
    duration.ok().and_then(|it| it.try_into().ok()).ok_or(DURATION)
}

pub(super) const DURATION: &str =
    "a duration such as \"500ms\", \"30s\", \"2m\", \"12h\" or \"7d\"";

impl<const LEAST: i64> TryFrom<Json> for Time<LEAST> {
    type Error = String;

    fn try_from(value: Json) -> Result<Self, String> {
        let least = SignedDuration::from_millis(LEAST);
        let read = value.as_str().and_then(|it| parse_duration(it).ok());
        read.filter(|it| *it >= least.unsigned_abs()).map(Self).ok_or_else(|| match LEAST {
            0 => DURATION.into(),
            _ => format!("{DURATION}, at least \"{least:#}\""),
        })
    }
}

/// A number of bytes within these bounds.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct Size<const LEAST: u64, const MOST: u64 = { u64::MAX }>(pub(crate) u64);

pub(super) const SIZE: &str = "a size such as \"512KiB\", \"64MiB\" or \"10GiB\"";
const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|it: char| !it.is_ascii_digit())?);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn shown_size(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, factor)| bytes.is_multiple_of(*factor));
    unit.map_or_else(String::new, |(name, factor)| format!("\"{}{name}\"", bytes / factor))
}

impl<const LEAST: u64, const MOST: u64> TryFrom<Json> for Size<LEAST, MOST> {
    type Error = String;

    fn try_from(value: Json) -> Result<Self, String> {
        let read = value.as_str().and_then(parse_size);
        read.filter(|it| (LEAST..=MOST).contains(it)).map(Self).ok_or_else(|| {
            let most = (MOST < u64::MAX).then(|| format!(", at most {}", shown_size(MOST)));
            let (least, most) = (shown_size(LEAST), most.unwrap_or_default());
            format!("{SIZE}, at least {least}{most}")
        })
    }
}

/// A whole number within these bounds.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct Count<const LEAST: u32, const MOST: u32 = { u32::MAX }>(pub(crate) u32);

impl<const LEAST: u32, const MOST: u32> Count<LEAST, MOST> {
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}

impl<const LEAST: u32, const MOST: u32> TryFrom<Json> for Count<LEAST, MOST> {
    type Error = String;

    fn try_from(value: Json) -> Result<Self, String> {
        let read = value.as_u64().and_then(|it| u32::try_from(it).ok());
        read.filter(|it| (LEAST..=MOST).contains(it)).map(Self).ok_or_else(|| match MOST {
            u32::MAX => format!("a whole number from {LEAST}"),
            _ => format!("a whole number from {LEAST} to {MOST}"),
        })
    }
}

/// Nothing if the value is the word "off".
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Json", bound = "T: DeserializeOwned")]
pub(crate) struct OrOff<T>(pub(crate) Option<T>);

impl<T: DeserializeOwned> TryFrom<Json> for OrOff<T> {
    type Error = String;

    fn try_from(value: Json) -> Result<Self, String> {
        if value == "off" {
            return Ok(Self(None));
        }
        let read = serde_json::from_value(value).map(|it| Self(Some(it)));
        read.map_err(|error| format!("{}, or \"off\"", wanted(&error.to_string())))
    }
}

impl<T> Deref for OrOff<T> {
    type Target = Option<T>;

    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

/// One of the words that an enum's variants are.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Json", bound = "T: DeserializeOwned")]
pub(crate) struct Word<T>(pub(crate) T);

impl<T: DeserializeOwned> TryFrom<Json> for Word<T> {
    type Error = serde::de::value::Error;

    fn try_from(value: Json) -> Result<Self, Self::Error> {
        T::deserialize(value.as_str().unwrap_or_default().into_deserializer()).map(Self)
    }
}

/// A text that says what is wrong with it.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String", bound = "T: FromStr, T::Err: Display")]
pub(crate) struct Parsed<T>(pub(crate) T);

impl<T: FromStr<Err: Display>> TryFrom<String> for Parsed<T> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error| format!("valid: {error}"))
    }
}

impl<T> Deref for Parsed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A form with one way to say what is wanted.
macro_rules! form {
    ($(#[$doc:meta])* $name:ident($inner:ty), $wanted:literal, $read:expr) => {
        $(#[$doc])*
        #[derive(Clone, serde::Deserialize)]
        #[serde(try_from = "serde_json::Value")]
        pub(crate) struct $name(pub(crate) $inner);

        impl TryFrom<serde_json::Value> for $name {
            type Error = &'static str;

            fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
                let read: fn(&serde_json::Value) -> Option<$inner> = $read;
                read(&value).map(Self).ok_or($wanted)
            }
        }
    };
}
pub(super) use form;

/// The name and the port of an API. It has no TLS.
pub(crate) fn authority(text: &str) -> Result<String, String> {
    let wanted = || "expected http://HOST:PORT".to_owned();
    if text.starts_with("https://") {
        return Err("the relay and the inbox serve http; reach a proxy's backend itself".into());
    }
    let rest = text.strip_prefix("http://").unwrap_or(text);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = rest.rsplit_once(':').ok_or_else(wanted)?;
    let is_fit = !host.is_empty() && !rest.contains(['/', '@', ' ']) && port.parse::<u16>().is_ok();
    is_fit.then(|| rest.to_owned()).ok_or_else(wanted)
}

form!(
    /// Where an API is.
    ApiAddress(String),
    "addresses such as \"http://127.0.0.1:9465\"",
    |it| it.as_str().and_then(|it| authority(it).ok())
);

form!(
    /// A password, or the like. An empty one is a mistake: it would let everybody in, or nobody.
    Secret(String),
    "a secret, not an empty one",
    |it| it.as_str().filter(|it| !it.trim().is_empty()).map(str::to_owned)
);

form!(
    /// A secret that can be given as `Authorization: Bearer SECRET` (RFC 6750).
    BearerToken(String),
    "a secret of visible ASCII characters, without spaces",
    |it| {
        let is_visible = |it: &&str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_graphic());
        it.as_str().filter(is_visible).map(str::to_owned)
    }
);

form!(
    /// A program that writes a secret.
    Command(SecretCommand),
    "a program and its arguments, such as [\"/usr/local/bin/token\", \"--short\"]",
    |it| SecretCommand::new(Vec::deserialize(it).ok()?)
);

form!(
    /// See [`SslMode`].
    TlsMode(SslMode),
    "disable, prefer, require, verify-ca, or verify-full",
    |it| it.as_str()?.parse().ok()
);

form!(
    /// How long an event waits after each attempt that failed.
    PauseList(Pauses),
    "pauses such as [\"5s\", \"1m\", \"30m\"], at least one",
    |it| {
        let pauses = it.as_array()?.iter().map(|it| parse_duration(it.as_str()?).ok());
        Pauses::new(pauses.collect::<Option<_>>()?)
    }
);

form!(
    /// A secret that requests are signed with.
    SigningSecret(inbox::http::Secret),
    "secrets: whsec_ and 24 to 64 bytes in Base64, or whsk_ and an Ed25519 key in Base64",
    |it| it.as_str()?.parse().ok()
);

/// Headers of requests to a handler: their values are secrets.
#[derive(Clone, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct HandlerHeaders(pub(crate) Headers);

impl TryFrom<Json> for HandlerHeaders {
    type Error = String;

    fn try_from(value: Json) -> Result<Self, String> {
        const WANTED: &str = "a secret: headers such as { X-Api-Key = \"...\" }";
        let mut headers = Headers::default();
        for (name, value) in value.as_object().ok_or(WANTED)? {
            let added = headers.add(name, value.as_str().unwrap_or_default());
            added.map_err(|wrong| format!("{WANTED}; {wrong}"))?;
        }
        Ok(Self(headers))
    }
}

/// Templates of the attributes of CloudEvents.
#[derive(Clone, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct AttributeTemplates(pub(crate) CloudEvents);

impl TryFrom<Json> for AttributeTemplates {
    type Error = String;

    fn try_from(value: Json) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Templates {
            source: String,
            r#type: String,
        }
        const WANTED: &str = "templates: { source = \"/shop\", type = \"{event_type}\" }";
        let Templates { source, r#type } = Templates::deserialize(value).map_err(|_| WANTED)?;
        let read = CloudEvents::new(&source, &r#type);
        read.map(Self).map_err(|wrong| format!("{WANTED}; {wrong}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_has_a_name_and_a_port() {
        for text in ["http://relay:9464", "relay:9464", "http://relay:9464/"] {
            assert_eq!(authority(text).as_deref(), Ok("relay:9464"), "{text}");
        }
        assert_eq!(authority("http://[::1]:9464").as_deref(), Ok("[::1]:9464"));
        for text in ["https://relay:443", "http://a@b:1", "relay", "http://h:1/x", ":1", "h:x"] {
            assert!(authority(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in
            [("0s", 0), ("250ms", 250), ("30s", 30_000), ("2 m", 120_000), ("7d", 604_800_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "30", "s", "-1s", "2mo", "1y", "99999999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_a_unit() {
        for (text, bytes) in [("1B", 1), ("512KiB", 524_288), ("64MiB", 67_108_864)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "64", "64MB", "16777216TiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_wanted_names_the_bounds_and_never_the_value() {
        let refused = |it: Result<(), serde_json::Error>| {
            wanted(&it.expect_err("out of bounds").to_string()).to_owned()
        };
        let time = serde_json::from_value::<OrOff<Time<60_000>>>("59s".into()).map(|_| ());
        assert!(refused(time).ends_with("at least \"1m\", or \"off\""));
        let size = serde_json::from_value::<Size<1024, 4096>>("1B".into()).map(|_| ());
        assert!(refused(size).ends_with("at least \"1KiB\", at most \"4KiB\""));
        let count = serde_json::from_value::<Count<1, 64>>(65.into()).map(|_| ());
        assert_eq!(refused(count), "a whole number from 1 to 64");
        let flag = serde_json::from_value::<bool>("x, expected s3cret".into()).map(|_| ());
        assert_eq!(refused(flag), "true or false");
    }
}
