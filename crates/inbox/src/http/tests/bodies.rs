//! What is sent of an event.

use super::*;

fn of(body: BodyForm, service: &Service) -> HttpHandler {
    HttpHandler::new(HttpOptions { body, ..options(&service.url()) }).expect("valid options")
}

fn message(event: &outbox::Event) -> async_nats::HeaderMap {
    let mut headers = async_nats::HeaderMap::new();
    outbox::wire::event_headers(event, |name, value| headers.append(name, value)).expect("valid");
    headers
}

async fn sent(body: BodyForm, event: &outbox::Event, headers: &async_nats::HeaderMap) -> Seen {
    let service = Service::status(200).await;
    let verdict = deliver_with(&of(body, &service), event, headers, LEASE).await;
    assert_eq!(kind(&verdict), Kind::Processed, "{verdict:?}");
    let seen = service.seen().pop().expect("a request");
    check_signature(&seen);
    seen
}

fn json(seen: &Seen) -> serde_json::Value {
    serde_json::from_slice(&seen.body).expect("JSON")
}

fn with_payload(payload: &'static [u8]) -> outbox::Event {
    outbox::Event { payload: Bytes::from_static(payload), ..event() }
}

#[tokio::test]
async fn a_standard_body_has_type_time_and_data_as_it_was_written() {
    let event = with_payload(br#" {"n": 12345678901234567890.10, "n": 1} "#);
    let seen = sent(BodyForm::Standard, &event, &message(&event)).await;
    let expected = format!(
        r#"{{"timestamp":"{}","type":"OrderPlaced","data": {{"n": 12345678901234567890.10, "n": 1}} }}"#,
        event.occurred_at
    );
    assert_eq!(seen.body, expected);
    assert_eq!(seen.headers["content-type"], "application/json");
}

/// It cannot be sent so, and is not to blame for that.
#[tokio::test]
async fn a_payload_that_is_no_json_has_no_standard_body() {
    let service = Service::status(200).await;
    let event = with_payload(b"<a/>");
    let (handler, headers) = (of(BodyForm::Standard, &service), message(&event));
    let verdict = deliver_with(&handler, &event, &headers, LEASE).await;
    assert_eq!(kind(&verdict), Kind::Misconfigured);
    assert!(service.seen().is_empty());
}

#[tokio::test]
async fn a_cloudevent_has_attributes_beside_the_payload() {
    let event = event().with_header("content-type", "application/vnd.x+json");
    let event = outbox::Event { aggregate_id: "é \"1\"".into(), ..event };
    let seen = sent(BodyForm::CloudEvents, &event, &message(&event)).await;
    let id = event.id.to_string();
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", &*id),
        ("ce-source", "/order"),
        ("ce-type", "OrderPlaced"),
        ("ce-subject", "%C3%A9%20%221%22"),
        ("ce-partitionkey", "order:%C3%A9%20%221%22"),
        ("content-type", "application/vnd.x+json"),
    ] {
        assert_eq!(seen.headers[name], value, "{name}");
    }
    assert_eq!(seen.body, event.payload);
    assert!(!seen.headers.contains_key("ce-datacontenttype"), "it is Content-Type");
}

/// What the relay said wins, and extensions of producers are attributes.
#[tokio::test]
async fn attributes_of_the_message_are_those_of_the_event() {
    let event = event().with_header("ce-region", "eu").with_header("ce-bad_name", "x");
    let mut headers = message(&event);
    for (name, value) in [
        ("Tailpost-Cloudevents", "104"),
        ("ce-source", "/shop/a%20b"),
        ("ce-sequence", "0001.0000000000000001.00000000"),
    ] {
        headers.insert(name, value);
    }
    let seen = json(&sent(BodyForm::CloudEventsStructured, &event, &headers).await);
    assert_eq!((&seen["source"], &seen["region"]), (&"/shop/a b".into(), &"eu".into()));
    assert_eq!(seen["sequence"], "0001.0000000000000001.00000000");
    assert!(seen.get("bad_name").is_none());
    let seen = sent(BodyForm::CloudEvents, &event, &headers).await;
    assert_eq!(
        (&seen.headers["ce-source"], &seen.headers["ce-region"]),
        (&"/shop/a%20b".parse().expect("it"), &"eu".parse().expect("it"))
    );
    let seen = sent(BodyForm::Payload, &event, &headers).await;
    assert!(!seen.headers.iter().any(|(name, _)| name.as_str().contains("ce-source")));
    assert_eq!(seen.headers["tailpost-header-ce-region"], "eu", "the producer's own");
}

#[tokio::test]
async fn a_structured_cloudevent_has_the_payload_in_the_form_of_its_type() {
    for (content_type, payload, name, value) in [
        (
            "application/json; charset=utf-8",
            &br#"{"n": 1}"#[..],
            "data",
            serde_json::json!({ "n": 1 }),
        ),
        ("text/plain", b"gr\xc3\xbc\xc3\x9fe", "data", "grüße".into()),
        ("application/octet-stream", b"\xff\0", "data_base64", "/wA=".into()),
        // It is not what it says.
        ("application/json", b"{", "data_base64", "ew==".into()),
    ] {
        let event = with_payload(payload).with_header("Content-Type", content_type);
        let seen = sent(BodyForm::CloudEventsStructured, &event, &message(&event)).await;
        assert_eq!(seen.headers["content-type"], "application/cloudevents+json; charset=utf-8");
        let sent = json(&seen);
        assert_eq!((&sent[name], &sent["datacontenttype"]), (&value, &content_type.into()));
        assert_eq!(sent["subject"], "o-17");
    }
}
