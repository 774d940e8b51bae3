//! Messages as the stream's API returns them, whatever their bytes are.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outbox::wire::{RawHeaders, StoredMessage};
use proptest::collection::vec;
use proptest::prelude::*;

fn answer(headers: Option<&[u8]>, payload: &[u8]) -> String {
    let headers = headers.map(|it| format!(r#","hdrs":"{}""#, STANDARD.encode(it)));
    format!(
        r#"{{"type":"x","message":{{"subject":"a.b","seq":3{},"data":"{}","time":"2026-01-02T03:04:05.678912345Z"}}}}"#,
        headers.unwrap_or_default(),
        STANDARD.encode(payload)
    )
}

#[test]
fn headers_are_found_among_lines_that_are_none() {
    let headers = RawHeaders::new(
        b"NATS/1.0 100 Idle\r\nno colon\r\n: no name\r\nA:1\r\nX: \xff\xfe\r\nLone: a\rb\r\n  A : 2\r\nB: \t two words \t\r\nLast: 4",
    );
    assert_eq!(headers.text("A"), Some("1"));
    assert_eq!(headers.get("X"), Some(&b"\xff\xfe"[..]));
    assert_eq!(headers.text("X"), None);
    assert_eq!(headers.text("Lone"), Some("a\rb"));
    assert_eq!(headers.text("B"), Some("two words"));
    assert_eq!(headers.text("Last"), Some("4"));
    assert_eq!(headers.text("a"), None);
}

#[test]
fn what_the_client_would_refuse_is_told_from_the_rest() {
    let refused =
        |bytes: &'static [u8]| RawHeaders::new(bytes).to_text().expect_err("malformed").to_string();
    assert_eq!(refused(b"NATS/1.0\r\nA: \xff\r\n\r\n"), "a header is not UTF-8");
    assert_eq!(refused(b"NATS/1.0\r\nA: a\rb\r\n\r\n"), "a header has a carriage return in it");
    assert_eq!(refused(b"NATS/1.0\r\nno colon\r\n\r\n"), "a line of the headers is no header");
    assert_eq!(refused(b"HTTP/1.1\r\n\r\n"), "the headers do not begin with NATS/1.0");
    let text = RawHeaders::new(b"NATS/1.0\r\nA: 1\r\nB:2\r\nA: 3\r\n\r\n").to_text();
    assert_eq!(text, Ok(vec![("A", "1"), ("B", "2"), ("A", "3")]));
    assert_eq!(RawHeaders::new(b"").to_text(), Ok(Vec::new()));
}

#[test]
fn a_missing_message_is_no_error_and_a_refusal_is_one() {
    let refusal = |code: u64| {
        format!(r#"{{"type":"x","error":{{"code":404,"err_code":{code},"description":"why"}}}}"#)
    };
    assert!(StoredMessage::parse(refusal(10037).as_bytes()).expect("no error").is_none());
    let refused = StoredMessage::parse(refusal(10059).as_bytes()).expect_err("an error");
    assert_eq!(refused.to_string(), "why (10059)");
    for answer in ["", "{}", "null", "[]", r#"{"message":{"seq":1}}"#] {
        let unreadable = StoredMessage::parse(answer.as_bytes()).expect_err(answer);
        let is_no_answer = unreadable.to_string().starts_with("the answer is not one of");
        assert!(is_no_answer, "{answer}: {unreadable:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_of_headers_and_payload_come_back(
        headers in proptest::option::of(vec(any::<u8>(), 0..200)),
        payload in vec(any::<u8>(), 0..200),
    ) {
        let answer = answer(headers.as_deref(), &payload);
        let message = StoredMessage::parse(answer.as_bytes()).unwrap().unwrap();
        prop_assert_eq!(message.sequence, 3);
        prop_assert_eq!(&*message.subject, "a.b");
        prop_assert_eq!(message.payload().unwrap(), payload);
        let headers = headers.unwrap_or_default();
        prop_assert_eq!(message.headers(), RawHeaders::new(&headers));
        let _ = message.headers().to_text();
    }

    /// Lines of garbage between them hide no header, and make none.
    #[test]
    fn well_formed_headers_survive_their_neighbours(
        wanted in vec(("[!-9;-~]{1,12}", "[!-~]{1,12}( [!-~]{1,12})?"), 0..6),
        garbage in vec(vec(any::<u8>().prop_filter("in a line", |it| !b"\n:".contains(it)), 0..12), 7),
    ) {
        let mut bytes = b"NATS/1.0\r\n".to_vec();
        for (at, (name, value)) in wanted.iter().enumerate() {
            bytes.extend(garbage[at].iter().chain(b"\r\n"));
            bytes.extend(format!("{name}: {value}\r\n").bytes());
        }
        bytes.extend(&garbage[6]);
        let found: Vec<_> = RawHeaders::new(&bytes).iter().collect();
        let wanted: Vec<_> = wanted.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn no_bytes_are_too_much_for_the_parser(bytes in vec(any::<u8>(), 0..300)) {
        let _ = StoredMessage::parse(&bytes);
        let headers = RawHeaders::new(&bytes);
        let strict = headers.to_text();
        if let Ok(strict) = strict {
            prop_assert!(strict.iter().all(|(name, _)| headers.get(name).is_some()));
        }
    }
}
