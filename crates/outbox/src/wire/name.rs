//! User header names. Some cannot travel as they are: invalid ones, and ones that would be taken
//! for ours or the server's. They are escaped behind `X-`; so is every name that looks as if it had
//! been, which makes the way back exact.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::escape::unescape;
use super::header;

const PREFIX: &str = "X-";

/// Longer names are escaped like invalid ones; the bound keeps `must_be_escaped` cheap.
const NAME_BYTES_MAX: usize = 256;

/// All but the characters of a token in HTTP (RFC 9110, 5.6.2), and `%`. NATS allows more, its
/// clients and bridges do not; without commas, lists of names stay unambiguous.
const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// Versions of nats-server before 2.12.2 find the broker's own headers by these bytes, wherever they are.
const BROKERS: &str = "Nats-";

/// Hides [`BROKERS`] in what is percent-encoded.
pub(super) fn without_brokers(encoded: String) -> String {
    encoded.replace(BROKERS, "%4Eats-")
}

/// Whether a name or a value may be taken for a header of the broker's.
pub(super) fn is_brokers(text: &str) -> bool {
    text.contains(BROKERS)
}

const RESERVED_PREFIXES: [&str; 2] = ["Nats-", "Tailpost-"];

/// Escapes what the name of a header cannot have, in NATS and in HTTP.
#[must_use]
pub fn escape_name(name: &str) -> String {
    utf8_percent_encode(name, NAME).to_string()
}

/// The name under which a user header travels. No two names give the same.
pub(super) fn name_to_wire(name: &str) -> Cow<'_, str> {
    if must_be_escaped(name) {
        Cow::Owned(format!("{PREFIX}{}", without_brokers(escape_name(name))))
    } else {
        Cow::Borrowed(name)
    }
}

/// What a user header was called before it travelled under this name; `None` for headers that are
/// not the user's.
///
/// ```
/// use outbox::wire::name_from_wire;
///
/// assert_eq!(name_from_wire("X-a%20b").as_deref(), Some("a b"));
/// assert_eq!(name_from_wire("Event-Type"), None);
/// ```
#[must_use]
pub fn name_from_wire(name: &str) -> Option<Cow<'_, str>> {
    if is_reserved(name) {
        return None;
    }
    Some(escaped_original(name).filter(|it| must_be_escaped(it)).unwrap_or(Cow::Borrowed(name)))
}

fn must_be_escaped(name: &str) -> bool {
    let mut name = Cow::Borrowed(name);
    loop {
        if !is_valid(&name) || is_reserved(&name) || is_brokers(&name) {
            return true;
        }
        // Valid, but does it read like the escaped form of a name that must be escaped?
        match escaped_original(&name) {
            Some(original) => name = Cow::Owned(original.into_owned()),
            None => return false,
        }
    }
}

/// What `name` would stand for if it were an escaped name.
fn escaped_original(name: &str) -> Option<Cow<'_, str>> {
    unescape(name.strip_prefix(PREFIX)?)
}

fn is_valid(name: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(token)
}

fn is_reserved(name: &str) -> bool {
    let has_prefix = |prefix: &str| {
        name.as_bytes()
            .get(..prefix.len())
            .is_some_and(|it| it.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    RESERVED_PREFIXES.into_iter().any(has_prefix)
        || header::OF_THE_EVENT.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_travel_untouched_unless_they_would_be_mistaken() {
        for (name, wire) in [
            ("traceparent", "traceparent"),
            ("baggage", "baggage"),
            ("X-Request-Id", "X-Request-Id"),
            ("100%", "100%"),
            ("Nats-Msg-Id", "X-%4Eats-Msg-Id"),
            ("My-Nats-Msg-Id", "X-My-%4Eats-Msg-Id"),
            ("nats-rollup", "X-nats-rollup"),
            ("TAILPOST-POSITION", "X-TAILPOST-POSITION"),
            ("event-type", "X-event-type"),
            ("", "X-"),
            ("a b", "X-a%20b"),
            ("a,b:c\r\n", "X-a%2Cb%3Ac%0D%0A"),
            ("é%", "X-%C3%A9%25"),
            // Would read like an escaped name.
            ("X-Nats-Msg-Id", "X-X-%4Eats-Msg-Id"),
            ("X-%4Eats-", "X-X-%254Eats-"),
            ("X-a%20b", "X-X-a%2520b"),
            ("X-", "X-X-"),
        ] {
            assert_eq!(name_to_wire(name), wire);
            assert_eq!(name_from_wire(wire).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_was_stored_before_they_were_hidden_is_read() {
        for (wire, name) in [("X-Nats-Msg-Id", "Nats-Msg-Id"), ("My-Nats-Id", "My-Nats-Id")] {
            assert_eq!(name_from_wire(wire).as_deref(), Some(name));
        }
    }

    #[test]
    fn our_own_and_the_servers_headers_are_not_the_users() {
        for name in ["Nats-Msg-Id", "Nats-Expected-Stream", "Tailpost-Position", "Event-Type"] {
            assert_eq!(name_from_wire(name), None);
        }
    }

    #[test]
    fn very_long_hostile_names_are_cheap() {
        let name = "X-".repeat(500_000);
        let wire = name_to_wire(&name).into_owned();
        assert_eq!(name_from_wire(&wire).as_deref(), Some(&*name));
    }

    /// Made of the pieces that matter, so that prefixes and escapes nest.
    fn tricky() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("X-".to_owned()),
            Just("Nats-".to_owned()),
            Just("event-type".to_owned()),
            Just("%".to_owned()),
            Just("%20".to_owned()),
            Just("%25".to_owned()),
            Just("%58-".to_owned()),
            ".{0,3}",
        ];
        proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn names_are_reversible_hence_injective(name in tricky()) {
            let wire = name_to_wire(&name).into_owned();
            prop_assert!(!wire.is_empty() && !is_reserved(&wire) && !is_brokers(&wire));
            prop_assert!(wire.bytes().all(|b| b.is_ascii_graphic() && !b":,".contains(&b)));
            let back = name_from_wire(&wire);
            prop_assert_eq!(back.as_deref(), Some(&*name));
        }

        #[test]
        fn foreign_names_are_safe(name in tricky()) {
            let _ = name_from_wire(&name);
        }
    }
}
