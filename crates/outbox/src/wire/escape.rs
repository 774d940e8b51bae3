use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All that does not stay as it is in a subject token; bytes beyond ASCII never do.
const TOKEN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// Stands for the empty string, since NATS has no empty tokens. Not an escape of anything else.
const EMPTY_TOKEN: &str = "%";

/// The pieces of `value` escaped as a subject token: `[A-Za-z0-9_-]` stay, every other byte becomes
/// `%XX`, the empty string `%`. No two strings give the same token.
pub(super) fn escape_token_pieces(value: &str) -> impl Iterator<Item = &str> {
    let empty = value.is_empty().then_some(EMPTY_TOKEN);
    empty.into_iter().chain(utf8_percent_encode(value, TOKEN))
}

/// Escapes a string as one subject token: `[A-Za-z0-9_-]` stay, every other byte of its UTF-8
/// becomes `%XX`, the empty string `%`. No two strings give the same token.
///
/// ```
/// use outbox::wire::{escape_token, unescape_token};
///
/// assert_eq!(escape_token("eu.west/42"), "eu%2Ewest%2F42");
/// assert_eq!(unescape_token("eu%2Ewest%2F42").as_deref(), Some("eu.west/42"));
/// ```
#[must_use]
pub fn escape_token(value: &str) -> String {
    escape_token_pieces(value).collect()
}

/// The inverse of [`escape_token`]; `None` for what it never returns.
#[must_use]
pub fn unescape_token(token: &str) -> Option<String> {
    let value = if token == EMPTY_TOKEN { String::new() } else { unescape(token)?.into_owned() };
    (escape_token(&value) == token).then_some(value)
}

/// Removes percent-escapes; `None` if that does not give UTF-8.
pub(super) fn unescape(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_values_become_one_plain_token() {
        for (value, token) in [
            ("OrderPlaced", "OrderPlaced"),
            ("a-b_C9", "a-b_C9"),
            ("", "%"),
            ("%", "%25"),
            ("a.*.>", "a%2E%2A%2E%3E"),
            ("\r\n \t\0", "%0D%0A%20%09%00"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(escape_token(value), token);
            assert_eq!(unescape_token(token).as_deref(), Some(value));
        }
    }

    #[test]
    fn tokens_that_are_never_written_are_refused() {
        for token in ["", "a%", "%4", "%zz", "%41", "%2e", "%FF", "a.b", "é"] {
            assert_eq!(unescape_token(token), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn escaping_is_reversible_hence_injective(value: String) {
            let token = escape_token(&value);
            prop_assert!(!token.is_empty());
            prop_assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_%".contains(&b)));
            prop_assert_eq!(unescape_token(&token), Some(value));
        }

        #[test]
        fn each_token_has_one_value(token in "[a-z%0-9A-F.]{0,8}") {
            if let Some(value) = unescape_token(&token) {
                prop_assert_eq!(escape_token(&value), token);
            }
        }
    }
}
