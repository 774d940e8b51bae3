//! Event to headers and back: the round-trip law, and what it must survive.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use outbox::wire::{event_headers, header, parse_event};
use outbox::{Event, Malformed};
use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use uuid::Uuid;

fn event() -> Event {
    Event {
        id: Uuid::from_u128(0x0190_1234_5678_7abc_8def_0123_4567_89ab),
        aggregate_type: "order".into(),
        aggregate_id: "o-17".into(),
        event_type: "OrderPlaced".into(),
        event_version: 2,
        payload: Bytes::from_static(br#"{"total": 4200}"#),
        occurred_at: "2025-03-01T12:00:00.123456Z".parse().expect("a time"),
        correlation_id: Some(Uuid::from_u128(1)),
        causation_id: None,
        headers: None,
    }
}

fn emitted(event: &Event) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    event_headers(event, |name, value| headers.push((name.to_owned(), value.to_owned())))
        .expect("headers are an object");
    headers
}

fn parsed(headers: &[(String, String)], payload: &Bytes) -> Result<Event, Malformed> {
    parse_event(headers.iter().map(|(name, value)| (&**name, &**value)), payload.clone())
}

fn with_headers(json: &str) -> Event {
    Event { headers: Some(Bytes::copy_from_slice(json.as_bytes())), ..event() }
}

fn value<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|it| it.0 == name).map(|it| &*it.1)
}

#[test]
fn an_event_travels_readably() {
    let headers: Vec<_> =
        emitted(&event().with_header("traceparent", "00-0af7-b7ad-01")).into_iter().collect();
    let expected = [
        ("Nats-Msg-Id", "01901234-5678-7abc-8def-0123456789ab"),
        ("Event-Type", "OrderPlaced"),
        ("Event-Version", "2"),
        ("Aggregate-Type", "order"),
        ("Aggregate-Id", "o-17"),
        ("Occurred-At", "2025-03-01T12:00:00.123456Z"),
        ("Correlation-Id", "00000000-0000-0000-0000-000000000001"),
        ("traceparent", "00-0af7-b7ad-01"),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn values_that_would_break_the_protocol_are_escaped_and_listed() {
    let event = Event { aggregate_id: "a\r\nNats-Rollup: all 100%".into(), ..event() }
        .with_header("city", "Z\u{fc}rich")
        .with_header("tag", "Nats-Msg-Id: 1")
        .with_header("a,b", " padded ")
        .with_header("baggage", "user=a%20b,plain=100%");
    let headers = emitted(&event);
    assert_eq!(value(&headers, "Aggregate-Id"), Some("a%0D%0A%4Eats-Rollup:%20all%20100%25"));
    assert_eq!(value(&headers, "city"), Some("Z%C3%BCrich"));
    assert_eq!(value(&headers, "tag"), Some("%4Eats-Msg-Id:%201"));
    assert_eq!(value(&headers, "X-a%2Cb"), Some("%20padded%20"));
    assert_eq!(value(&headers, "baggage"), Some("user=a%20b,plain=100%"));
    assert_eq!(value(&headers, "Tailpost-Escaped"), Some("Aggregate-Id,X-a%2Cb,city,tag"));
    let others = headers.iter().filter(|(name, _)| name != "Nats-Msg-Id");
    let mut texts = others.flat_map(|(name, value)| [name, value]);
    assert!(texts.all(|it| !it.contains("Nats-")), "{headers:?}");
    assert_eq!(parsed(&headers, &event.payload).unwrap(), event);
}

#[test]
fn user_headers_cannot_pass_for_ours() {
    let headers = emitted(&with_headers(
        r#"{"Nats-Expected-Last-Sequence": "0", "nats-ttl": "1s", "Aggregate-Id": "x"}"#,
    ));
    assert_eq!(value(&headers, "X-%4Eats-Expected-Last-Sequence"), Some("0"));
    assert_eq!(value(&headers, "X-nats-ttl"), Some("1s"));
    assert_eq!(value(&headers, "X-Aggregate-Id"), Some("x"));
    assert_eq!(value(&headers, "Aggregate-Id"), Some("o-17"));
}

#[test]
fn other_json_values_travel_as_their_text() {
    let headers = emitted(&with_headers(
        r#"{"n": 1.10, "big": 123456789012345678901234567890, "o": {"a": [1, null]}, "z": null, "s": "\u00e9\""}"#,
    ));
    assert_eq!(value(&headers, "n"), Some("1.10"));
    assert_eq!(value(&headers, "big"), Some("123456789012345678901234567890"));
    assert_eq!(value(&headers, "o"), Some(r#"{"a": [1, null]}"#));
    assert_eq!(value(&headers, "z"), Some("null"));
    assert_eq!(value(&headers, "s"), Some("%C3%A9\""));
}

#[test]
fn headers_must_be_an_object() {
    for json in ["[]", "1", "\"a\"", "true", "{\"a\":1", "{} {}", ""] {
        let refused = event_headers(&with_headers(json), |_, _| ());
        let refused = refused.unwrap_err().to_string();
        assert_eq!(refused, "the event's headers are not a json object", "{json}");
    }
    for json in ["null", "{}"] {
        assert_eq!(emitted(&with_headers(json)), emitted(&event()), "{json}");
    }
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
    assert_eq!(event_headers(&with_headers(&deep), |_, _| ()), Ok(()));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let headers = emitted(&event());
    for name in ["Nats-Msg-Id", "Event-Type", "Aggregate-Type", "Aggregate-Id", "Occurred-At"] {
        let rest: Vec<_> = headers.iter().filter(|it| it.0 != name).cloned().collect();
        let refused = parsed(&rest, &Bytes::new()).unwrap_err().to_string();
        assert_eq!(refused, format!("the header {name} is missing"));
    }
    for name in ["Nats-Msg-Id", "Event-Version", "Occurred-At", "Correlation-Id"] {
        let mut damaged = headers.clone();
        damaged.iter_mut().find(|it| it.0 == name).unwrap().1 = "?".to_owned();
        let refused = parsed(&damaged, &Bytes::new()).unwrap_err().to_string();
        assert_eq!(refused, format!("the header {name} cannot be understood"));
    }
}

#[test]
fn the_events_own_id_header_wins_and_the_publishers_headers_are_not_the_users() {
    let event = event();
    let mut headers = emitted(&event);
    headers[0].1.push_str("-replay-7");
    for (name, value) in [
        (header::EVENT_ID, event.id.to_string()),
        (header::EXPECTED_STREAM, "OUTBOX".to_owned()),
        (header::POSITION, "1/1/0-1/0".to_owned()),
    ] {
        headers.push((name.to_owned(), value));
    }
    assert_eq!(parsed(&headers, &event.payload).unwrap(), event);
}

/// Text made to hurt: line breaks, escapes, wide characters, ends that get trimmed.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\r\n".to_owned()),
        Just(" ".to_owned()),
        Just("\t".to_owned()),
        Just("%0D".to_owned()),
        Just("%".to_owned()),
        Just(",".to_owned()),
        Just("\u{1F4A9}".to_owned()),
        Just("\u{7f}".to_owned()),
        Just("Nats-".to_owned()),
        Just("X-".to_owned()),
        "[a-z]{1,4}",
        any::<String>(),
    ];
    proptest::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn any_event() -> impl Strategy<Value = Event> {
    let micros = Timestamp::MIN.as_microsecond()..=Timestamp::MAX.as_microsecond();
    let uuid = || any::<u128>().prop_map(Uuid::from_u128);
    (
        (uuid(), hostile(), hostile(), hostile(), any::<i32>(), any::<Vec<u8>>(), micros),
        (option::of(uuid()), option::of(uuid())),
        btree_map(hostile(), hostile(), 0..6),
    )
        .prop_map(
            |((id, kind, aggregate, event, event_version, payload, micros), ids, headers)| {
                let no_headers = headers.is_empty();
                Event {
                    id,
                    aggregate_type: kind.into(),
                    aggregate_id: aggregate.into(),
                    event_type: event.into(),
                    event_version,
                    payload: payload.into(),
                    occurred_at: Timestamp::from_microsecond(micros).expect("in range"),
                    correlation_id: ids.0,
                    causation_id: ids.1,
                    headers: (!no_headers)
                        .then(|| serde_json::to_vec(&headers).expect("json").into()),
                }
            },
        )
}

fn user_headers(event: &Event) -> Option<BTreeMap<String, String>> {
    event.headers.as_ref().map(|headers| serde_json::from_slice(headers).expect("json"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn parsing_inverts_emitting(event in any_event()) {
        let headers = emitted(&event);
        let mut back = parsed(&headers, &event.payload).unwrap();
        prop_assert_eq!(user_headers(&back), user_headers(&event));
        // Equal as JSON; the order of the members is not kept.
        back.headers.clone_from(&event.headers);
        prop_assert_eq!(back, event);
    }

    #[test]
    fn every_header_can_stand_in_the_protocol(event in any_event()) {
        let headers = emitted(&event);
        for (name, value) in &headers {
            prop_assert!(!name.is_empty());
            prop_assert!(name.bytes().all(|b| b.is_ascii_graphic() && b != b':'), "{name:?}");
            prop_assert!(value.bytes().all(|b| (b' '..=b'~').contains(&b)), "{value:?}");
            prop_assert_eq!(value.trim(), value);
        }
        let names: std::collections::BTreeSet<_> = headers.iter().map(|it| &it.0).collect();
        prop_assert_eq!(names.len(), headers.len());
    }

    #[test]
    fn any_headers_are_safe_to_parse(
        headers in proptest::collection::vec(any::<(String, String)>(), 0..8),
    ) {
        let mut all = emitted(&event());
        all.push((header::ESCAPED.to_owned(), "Aggregate-Id,Event-Type".to_owned()));
        all.extend(headers);
        let _ = parsed(&all, &Bytes::new());
    }
}
