//! `traceparent` by W3C's rules, and what is none of it.

use bytes::Bytes;
use outbox::Event;
use outbox::wire::{TraceContext, TraceParent, trace_id};
use proptest::prelude::*;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn event(headers: &str) -> Event {
    let mut event =
        Event::new("order", "o-1", "OrderPlaced", &serde_json::json!({})).expect("an event");
    event.headers = Some(Bytes::copy_from_slice(headers.as_bytes()));
    event
}

#[test]
fn a_traceparent_is_read_and_written_again() {
    let parent: TraceParent = PARENT.parse().expect("valid");
    assert_eq!(parent.to_string(), PARENT);
    assert_eq!(parent.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert!(parent.is_sampled);
    // Flags that are not known yet say nothing.
    let parent: TraceParent = PARENT.replace("-01", "-fe").parse().expect("valid");
    assert!(!parent.is_sampled);
}

#[test]
fn what_breaks_the_rules_is_no_traceparent() {
    let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
    let zero_parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16));
    let longer = format!("{PARENT}-more");
    let upper = PARENT.to_uppercase();
    let forbidden = PARENT.replacen("00", "ff", 1);
    let others = format!("cc{}.more", &PARENT[2..]);
    let cut = &PARENT[..54];
    for text in
        ["", "00", cut, &zero_trace, &zero_parent, &longer, &upper, &forbidden, &others, " "]
    {
        assert!(text.parse::<TraceParent>().is_err(), "{text}");
    }
    // A version to come may have more.
    for text in [format!("cc{}-more", &PARENT[2..]), format!("cc{}", &PARENT[2..])] {
        assert!(text.parse::<TraceParent>().is_ok(), "{text}");
    }
}

#[test]
fn the_context_is_found_among_the_headers() {
    let found = TraceContext::of(&event(&format!(
        r#"{{"a": 1, "TraceParent": "{PARENT}", "tracestate": "x=1,y=2"}}"#
    )));
    let found = found.expect("a context");
    assert_eq!((found.parent.to_string(), &*found.state), (PARENT.to_owned(), "x=1,y=2"));
    let long = format!(r#"{{"traceparent": "{PARENT}", "tracestate": "{}"}}"#, "x".repeat(513));
    assert_eq!(TraceContext::of(&event(&long)).expect("a context").state, "");
    for none in [
        "null".to_owned(),
        "[]".to_owned(),
        r#"{"traceparent": 7}"#.to_owned(),
        r#"{"traceparent": "00-af-01"}"#.to_owned(),
        format!(r#"{{"traceparent": "{PARENT}", "Traceparent": "{PARENT}"}}"#),
    ] {
        assert_eq!(TraceContext::of(&event(&none)), None, "{none}");
    }
}

#[test]
fn only_recorded_traces_are_sampled() {
    let unsampled = event(&format!(r#"{{"traceparent": "{}"}}"#, PARENT.replace("-01", "-00")));
    assert_eq!(TraceContext::sampled(&unsampled), None);
    assert!(trace_id(&unsampled).is_some(), "a log line names the trace all the same");
    let sampled = event(&format!(r#"{{"traceparent": "{PARENT}"}}"#));
    assert!(TraceContext::sampled(&sampled).is_some());
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in any::<String>()) {
        let _ = text.parse::<TraceParent>();
    }

    /// The rules as the specification writes them, against any text that looks like one.
    #[test]
    fn the_rules_are_those_of_the_specification(
        text in "([0f]{2}|[0-9a-fF]{2})-(0{32}|[0-9a-f]{31}[0-9a-fA-Fg])-(0{16}|[0-9a-f]{16})-[0-9a-fB]{2}(|-|-x|x)"
    ) {
        let (version, trace, parent) = (&text[..2], &text[3..35], &text[36..52]);
        let flags = &text[53..55];
        let is_lower_hex =
            |it: &str| it.bytes().all(|it| it.is_ascii_digit() || (b'a'..=b'f').contains(&it));
        let is_valid = [version, trace, parent, flags].into_iter().all(is_lower_hex)
            && version != "ff"
            && trace.bytes().any(|it| it != b'0')
            && parent.bytes().any(|it| it != b'0')
            && (text.len() == 55 || version != "00" && text.as_bytes()[55] == b'-');
        let parsed = text.parse::<TraceParent>();
        prop_assert_eq!(parsed.is_ok(), is_valid, "{}", text);
        if let Ok(parsed) = parsed {
            prop_assert_eq!(parsed.trace_id.to_string(), trace);
            prop_assert_eq!(parsed.parent_id.to_string(), parent);
            let sampled = u8::from_str_radix(flags, 16).expect("hex") & 1 == 1;
            prop_assert_eq!(parsed.is_sampled, sampled);
        }
    }
}
