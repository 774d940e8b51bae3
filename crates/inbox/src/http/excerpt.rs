//! What of an answer may be kept and shown.

use std::collections::HashSet;

use hyper::header::HeaderMap;
use serde_json::Value;

/// Characters of an excerpt.
const LENGTH_MAX: usize = 300;
/// Looking for the payload's words in an answer is not worth more than this.
const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// Shorter words tell nothing about anybody, and are in every sentence.
const WORD_MIN: usize = 3;
const MASK: &str = "…";

/// What an answer must not repeat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent<'a> {
    pub(super) payload: &'a [u8],
    /// What the request proved itself with.
    pub(super) credentials: &'a HeaderMap,
}

/// The beginning of `body` as one line of text, with every word replaced that also stands in a
/// value of the payload or of a credential.
///
/// Services like to repeat what they refuse, and the excerpt ends up in tables, logs and terminals
/// that have no business with payloads. Empty if the body is not text, or the payload not JSON.
pub(super) fn excerpt(body: &[u8], sent: Sent<'_>) -> String {
    // A character cut in two at the end is no reason to drop the rest.
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&body[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return String::new(),
    };
    let text = text.trim();
    if text.is_empty() {
        return String::new();
    }
    let Some(mut secret) = words_of(sent.payload) else { return String::new() };
    for value in sent.credentials.values() {
        secret.add(value.to_str().unwrap_or_default());
    }
    let mut shown = String::new();
    let mut length = 0;
    for piece in pieces(text) {
        let hidden = piece.chars().count() >= WORD_MIN && secret.holds(piece);
        for character in (if hidden { MASK } else { piece }).chars() {
            if length == LENGTH_MAX {
                shown.push_str(MASK);
                return shown;
            }
            // Line breaks and terminal escapes become spaces.
            shown.push(if character.is_control() { ' ' } else { character });
            length += 1;
        }
    }
    shown
}

/// Cuts text into words and what is between them.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let word = first.is_alphanumeric();
        let end = rest.find(|it: char| it.is_alphanumeric() != word).unwrap_or(rest.len());
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        Some(piece)
    })
}

/// Words, whatever their case.
#[derive(Default)]
struct Words {
    lower_case: HashSet<String>,
    beyond_ascii: bool,
}

impl Words {
    fn add(&mut self, text: &str) {
        self.lower_case.extend(pieces(text).map(str::to_lowercase));
        self.beyond_ascii |= !text.is_ascii();
    }

    /// Not every script puts spaces between words: beyond ASCII, one is taken for the other.
    fn holds(&self, piece: &str) -> bool {
        (self.beyond_ascii && !piece.is_ascii()) || self.lower_case.contains(&piece.to_lowercase())
    }
}

/// The words in all values of a JSON text, or `None` if that cannot be told.
fn words_of(payload: &[u8]) -> Option<Words> {
    let mut words = Words::default();
    if payload.is_empty() {
        return Some(words);
    }
    if payload.len() > PAYLOAD_BYTES_MAX {
        return None;
    }
    let value = serde_json::from_slice::<Value>(payload).ok()?;
    // A JWE: the service can read it, and Tailpost cannot (RFC 7516, 7.2).
    if value.get("ciphertext").is_some() {
        return None;
    }
    let mut values = vec![value];
    while let Some(value) = values.pop() {
        let text = match value {
            Value::Array(items) => {
                values.extend(items);
                continue;
            }
            Value::Object(fields) => {
                values.extend(fields.into_iter().map(|(_, value)| value));
                continue;
            }
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Null | Value::Bool(_) => continue,
        };
        words.add(&text);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAYLOAD: &[u8] =
        br#"{"name": "Ada Lovelace", "card": 4111111111111111, "of": ["ada@math.example", true], "no": "a"}"#;

    fn of(payload: &[u8]) -> impl Fn(&[u8]) -> String {
        move |body| excerpt(body, Sent { payload, credentials: &HeaderMap::new() })
    }

    #[test]
    fn a_credential_is_masked_where_it_is_repeated() {
        let value = "Bearer s3cret-t0ken".parse().expect("a value");
        let credentials = [(hyper::header::AUTHORIZATION, value)].into_iter().collect();
        let sent = Sent { payload: b"{}", credentials: &credentials };
        assert_eq!(excerpt(b"invalid token s3cret-t0ken", sent), "invalid token \u{2026}-\u{2026}");
    }

    #[test]
    fn what_was_sent_is_masked_wherever_it_is_repeated() {
        for (body, shown) in [
            ("name is missing", "name is missing"),
            ("unknown ADA LOVELACE", "unknown … …"),
            (r#"{"input": "Lovelace", "msg": "too old"}"#, r#"{"input": "…", "msg": "too old"}"#),
            ("card 4111111111111111: a true fraud", "card …: a true fraud"),
            ("mail to ada@math.example", "mail to …@….…"),
        ] {
            assert_eq!(of(PAYLOAD)(body.as_bytes()), shown, "{body}");
        }
    }

    #[test]
    fn it_is_one_short_line() {
        assert_eq!(of(b"{}")(b" a\r\nb\x1b[31mc\n"), "a  b [31mc");
        let long = of(b"{}")("ü".repeat(1000).as_bytes());
        assert_eq!(long.chars().count(), LENGTH_MAX + 1);
        assert!(long.ends_with(MASK));
        assert_eq!(of(b"{}")("aü".as_bytes().split_last().expect("bytes").1), "a");
    }

    #[test]
    fn what_cannot_be_judged_is_not_shown() {
        assert_eq!(of(b"{}")(b"\xff\xfe binary"), "");
        assert_eq!(of(b"not json")(b"text"), "");
        assert_eq!(of(b"eyJhbGciOiJkaXIifQ..iv.ciphertext.tag")(b"text"), "");
        assert_eq!(of(br#"{"protected": "eyJ", "ciphertext": "c2Vj"}"#)(b"text"), "");
        assert_eq!(of("1".repeat(PAYLOAD_BYTES_MAX + 1).as_bytes())(b"text"), "");
    }

    proptest! {
        #[test]
        fn no_word_of_the_payload_gets_through(
            words in prop::collection::vec("[a-z0-9]{3,9}|[äöü]{3,9}", 1..6),
            cut in 0_usize..9,
        ) {
            let payload = serde_json::to_vec(&words).expect("json");
            let body = format!("CANNOT TAKE {}", words.join(", "));
            let shown = of(&payload)(body.as_bytes());
            for word in &words {
                prop_assert!(!shown.contains(word.as_str()), "{shown}");
            }
            // Without a payload all of it is shown, whatever character the end cuts in two.
            let read = &body.as_bytes()[..body.len() - cut];
            prop_assert!(body.starts_with(&of(b"")(read)));
        }
    }
}
