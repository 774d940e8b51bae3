//! Subjects: what templates make of hostile events, and which templates are refused.

use bytes::Bytes;
use outbox::Event;
use outbox::wire::{SubjectTemplate, subject_matches, subjects_overlap, unescape_token};
use proptest::prelude::*;

fn event(aggregate_type: &str, aggregate_id: &str, event_type: &str) -> Event {
    Event::new(aggregate_type, aggregate_id, event_type, &()).expect("a unit is valid json")
}

fn template(text: &str) -> SubjectTemplate {
    text.parse().expect("a valid template")
}

#[test]
fn the_default_reads_well() {
    let subject = SubjectTemplate::default().render(&event("order", "o-1", "OrderPlaced"));
    assert_eq!(subject.unwrap(), "outbox.order.OrderPlaced");
}

#[test]
fn every_field_can_be_used() {
    let all = template("a.{aggregate_id}.v{event_version}-{event_type}.{header:region}");
    let event = event("order", "o.1", "Placed").with_version(3).with_header("region", "eu west");
    assert_eq!(all.render(&event).unwrap(), "a.o%2E1.v3-Placed.eu%20west");
}

#[test]
fn a_shard_has_its_number_in_its_subjects() {
    let template = template("a.{shard}.{aggregate_type}");
    assert!(template.names_shard() && !SubjectTemplate::default().names_shard());
    let of_two = template.in_shard(2);
    assert_eq!(of_two.pattern(), "a.2.*");
    assert_eq!(of_two.to_string(), "a.2.{aggregate_type}");
    let event = event("order", "o-1", "Placed");
    assert_eq!(of_two.render(&event).unwrap(), "a.2.order");
    assert_eq!(template.render(&event).unwrap(), "a.0.order", "the only one there is");
    assert_eq!(template.pattern(), "a.0.*");
}

#[test]
fn all_events_of_an_aggregate_have_the_number_of_its_partition() {
    let template = template("{partition}.a.{event_type}");
    assert!(template.names_partition() && !SubjectTemplate::default().names_partition());
    assert_eq!(template.pattern(), "*.a.*");
    let [first, second] = ["Placed", "Paid"].map(|it| event("order", "o-2", it));
    assert_eq!(template.render(&first).unwrap(), "0.a.Placed", "the only one there is");
    let of_sixteen = template.of_partitions(16.try_into().unwrap());
    assert_eq!(of_sixteen.render(&first).unwrap(), "1.a.Placed");
    assert_eq!(of_sixteen.render(&second).unwrap(), "1.a.Paid");
    assert_eq!(of_sixteen.patterns()[1..3], ["1.a.*", "2.a.*"]);
    assert_eq!(of_sixteen.patterns().len(), 16);
    assert_eq!(of_sixteen.to_string(), "{partition}.a.{event_type}");
}

#[test]
fn patterns_overlap_if_any_subject_fits_both() {
    for (one, other, overlap) in [
        ("a.0.*", "a.1.*", false),
        ("a.0.*", "a.*.1", true),
        ("a.>", "a.0.*", true),
        ("a.>", "a", false),
        ("a.*", "a.*.*", false),
        (">", "x", true),
        ("a.*.b", "a.>", true),
        ("a.*.b", "*.0.c", false),
    ] {
        assert_eq!(subjects_overlap(one, other), overlap, "{one} {other}");
        assert_eq!(subjects_overlap(other, one), overlap, "{other} {one}");
    }
}

#[test]
fn a_header_that_is_missing_is_an_empty_token() {
    let by_region = template("a.{header:region}");
    assert_eq!(by_region.render(&event("a", "b", "c")).unwrap(), "a.%");
    let broken = Event { headers: Some(Bytes::from_static(b"[1]")), ..event("a", "b", "c") };
    let refused = by_region.render(&broken).unwrap_err().to_string();
    assert_eq!(refused, "the event's headers are not a json object");
}

#[test]
fn hostile_ids_stay_in_their_token() {
    let by_id = template("t.{aggregate_id}");
    for (id, subject) in [
        ("a.b", "t.a%2Eb"),
        ("*", "t.%2A"),
        (">", "t.%3E"),
        ("", "t.%"),
        ("$SYS", "t.%24SYS"),
        ("\r\nPUB x 0", "t.%0D%0APUB%20x%200"),
        ("\u{fc}", "t.%C3%BC"),
    ] {
        assert_eq!(by_id.render(&event("a", id, "c")).unwrap(), subject);
    }
}

#[test]
fn a_subject_has_at_most_255_bytes() {
    let by_id = template("t.{aggregate_type}.{aggregate_id}");
    assert_eq!(by_id.render(&event("a", &"x".repeat(251), "c")).unwrap().len(), 255);
    let refused = by_id.render(&event("a", &"x".repeat(252), "c")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the subject would be 256 bytes long, the limit is 255; aggregate_id alone takes 252 \
         after escaping"
    );
    let refused = by_id.render(&event(&".".repeat(1_000_000), "x", "c")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the subject would be 3000004 bytes long, the limit is 255; aggregate_type alone takes \
         3000000 after escaping"
    );
    let literal = template(&"x".repeat(256)).render(&event("a", "b", "c")).unwrap_err();
    assert!(literal.to_string().starts_with("the subject would be 256 bytes long"), "{literal}");
}

#[test]
fn templates_that_could_not_work_are_refused() {
    let refused = |text: &str| text.parse::<SubjectTemplate>().unwrap_err().to_string();
    for text in ["", ".", "a.", ".a", "a..b", "{aggregate_id}."] {
        assert_eq!(refused(text), "the subject template has an empty token", "{text:?}");
    }
    for (text, character) in
        [("a b", ' '), ("a.*", '*'), ("a.>", '>'), ("a}", '}'), ("\u{e9}", '\u{e9}'), ("a%", '%')]
    {
        let expected = format!("the subject template contains {character:?}, which");
        assert!(refused(text).starts_with(&expected), "{text}");
    }
    assert!(refused("$JS.x").contains("begins with $"));
    assert_eq!(refused("a.{event_type"), "the subject template has a { without }");
    for name in ["type", "", "header:", "{event_type"] {
        let expected = format!("the template has an unknown field {{{name}}}; there are");
        assert!(refused(&format!("a.{{{name}}}")).starts_with(&expected), "{name}");
    }
    let hint = refused("{kind}");
    assert!(hint.contains("{kind}") && hint.contains("{aggregate_type}"), "{hint}");
}

#[test]
fn start_up_checks_learn_what_subjects_to_expect() {
    for (text, pattern) in [
        ("outbox.{aggregate_type}.{event_type}", "outbox.*.*"),
        ("{aggregate_type}.x", "*.x"),
        ("a.v{event_version}{event_type}.z", "a.*.z"),
        ("events", "events"),
    ] {
        let template = template(text);
        assert_eq!(template.pattern(), pattern);
        assert_eq!(template.to_string(), text);
    }
}

#[test]
fn patterns_match_as_the_server_does() {
    for (pattern, subject, expect) in [
        ("a.b", "a.b", true),
        ("a.b", "a.c", false),
        ("a.b", "a.b.c", false),
        ("a.b.c", "a.b", false),
        ("a.*", "a.b", true),
        ("a.*", "a.b.c", false),
        ("a.*", "a", false),
        ("*.b", "a.b", true),
        ("a.>", "a.b", true),
        ("a.>", "a.b.c", true),
        ("a.>", "a", false),
        (">", "a", true),
        ("a*", "ab", false),
        ("a.>.c", "a.b.c", false),
        ("outbox.>", "outbox.*.*", true),
        ("outbox.*.*", "outbox.*.*", true),
        ("outbox.order.*", "outbox.*.*", false),
        ("outbox.*", "outbox.*.*", false),
    ] {
        assert_eq!(subject_matches(pattern, subject), expect, "{pattern} {subject}");
    }
}

proptest! {
    #[test]
    fn subjects_tell_their_fields_and_fit_the_pattern(
        kind in ".{0,12}",
        id in ".{0,12}",
        name in ".{0,12}",
    ) {
        let template = template("outbox.{aggregate_type}.{aggregate_id}.{event_type}");
        if let Ok(subject) = template.render(&event(&kind, &id, &name)) {
            let fields: Option<Vec<_>> = subject.split('.').skip(1).map(unescape_token).collect();
            prop_assert_eq!(fields, Some(vec![kind, id, name]));
            prop_assert!(subject_matches(&template.pattern(), &subject));
            prop_assert!(subject_matches("outbox.>", &subject));
        }
    }

    #[test]
    fn any_template_is_safe_to_parse(text in "[a-z.{}:$ *>]{0,20}") {
        let _ = text.parse::<SubjectTemplate>();
    }
}
