//! Whatever a row holds arrives as it is, or is parked with a reason; nothing breaks on the way.

use std::collections::BTreeMap;

use outbox::Event;
use support::TestEnv;
use tokio_postgres::Client;
use uuid::Uuid;

/// Ids that mean something to NATS, to its protocol or to nobody, and the subject tokens they become.
const HOSTILE: [(&str, &str); 16] = [
    ("plain_Id-7", "plain_Id-7"),
    ("a.b.c", "a%2Eb%2Ec"),
    (".", "%2E"),
    ("*", "%2A"),
    (">", "%3E"),
    ("a >", "a%20%3E"),
    (" ", "%20"),
    ("  two  ", "%20%20two%20%20"),
    ("", "%"),
    ("%", "%25"),
    ("%2E", "%252E"),
    ("Zürich", "Z%C3%BCrich"),
    ("注文🦀", "%E6%B3%A8%E6%96%87%F0%9F%A6%80"),
    ("a\r\nPUB x 0\r\n", "a%0D%0APUB%20x%200%0D%0A"),
    ("\t\u{1}\u{7f}\u{85}", "%09%01%7F%C2%85"),
    ("$JS.API", "%24JS%2EAPI"),
];

async fn insert(client: &Client, aggregate_id: &str, headers: Option<&str>, payload: &str) -> Uuid {
    let sql = "INSERT INTO outbox_events
                   (id, aggregate_type, aggregate_id, event_type, headers, payload)
               VALUES (gen_random_uuid(), 'order', $1, 'Placed', $2::TEXT::JSONB, $3::TEXT::JSONB)
               RETURNING id";
    let row = client.query_one(sql, &[&aggregate_id, &headers, &payload]).await;
    row.expect("insert an event").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_ids_arrive_exactly_under_an_escaped_subject() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SUBJECT", "outbox.{aggregate_type}.{aggregate_id}.{event_type}");
    env.setup().await;
    let _relay = env.relay();
    let client = env.client().await;
    for (id, _) in HOSTILE {
        insert(&client, id, None, "{}").await;
    }
    let sql = "SELECT outbox_emit($1, 'o-1', $1, '{}')"; // types as hostile as ids
    for (id, _) in HOSTILE {
        client.execute(sql, &[&id]).await.expect("emit");
    }

    let count = HOSTILE.len();
    env.wait_stored(2 * count as u64).await;
    env.wait_marked().await;
    let stored = env.stored().await;
    for ((id, token), message) in HOSTILE.iter().zip(&stored) {
        assert_eq!(message.subject, format!("outbox.order.{token}.Placed"), "{id:?}");
        assert_eq!(message.event().aggregate_id, **id);
    }
    for ((id, token), message) in HOSTILE.iter().zip(&stored[count..]) {
        assert_eq!(message.subject, format!("outbox.{token}.o-1.{token}"), "{id:?}");
        let event = message.event();
        assert_eq!((&*event.aggregate_type, &*event.event_type), (*id, *id));
    }
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_dead_letter").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_subject_would_be_too_long_is_parked_and_the_others_pass() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SUBJECT", "outbox.{aggregate_type}.{aggregate_id}.{event_type}");
    env.setup().await;
    let _relay = env.relay();
    let client = env.client().await;
    let first = insert(&client, "o-1", None, "{}").await;
    let long = insert(&client, &"x".repeat(1024), None, "{}").await;
    let last = insert(&client, "o-1", None, "{}").await;

    env.wait_stored(2).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, [first, last]);
    assert_eq!(env.query::<Uuid>("SELECT id FROM outbox_dead_letter").await, long);
    let reason: String = env.query("SELECT reason FROM outbox_dead_letter").await;
    assert!(reason.contains("aggregate_id") && reason.contains("1024"), "{reason}");
    assert!(reason.contains("255"), "does not say how long it may be: {reason}");
}

/// An id of a kilobyte is no trouble where it is not part of the subject.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_id_travels_in_its_header() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let long = "ü.".repeat(512);
    insert(&env.client().await, &long, None, "{}").await;
    env.wait_stored(1).await;
    let event = env.stored().await[0].event();
    assert_eq!(event.aggregate_id, long);
}

/// Headers as JSON, and what arrives: strings as they are, all else as PostgreSQL prints it.
const HARMLESS: [(&str, &[(&str, &str)]); 8] = [
    (
        r#"{"split": "a\r\nNats-Msg-Id: x\r\n\r\nbody", "lf": "\n"}"#,
        &[("split", "a\r\nNats-Msg-Id: x\r\n\r\nbody"), ("lf", "\n")],
    ),
    (
        r#"{"Nats-Msg-Id": "forged", "nats-rollup": "all", "Nats-Expected-Last-Sequence": "1"}"#,
        &[("Nats-Msg-Id", "forged"), ("nats-rollup", "all"), ("Nats-Expected-Last-Sequence", "1")],
    ),
    (
        r#"{"Aggregate-Id": "forged", "Tailpost-Position": "1/1/0-1/0"}"#,
        &[("Aggregate-Id", "forged"), ("Tailpost-Position", "1/1/0-1/0")],
    ),
    (
        r#"{"Größe": "größer", "a b:c\r\n": "x", "": "nameless", "crab": " 🦀 100% "}"#,
        &[("Größe", "größer"), ("a b:c\r\n", "x"), ("", "nameless"), ("crab", " 🦀 100% ")],
    ),
    (
        r#"{"number": 1.50, "object": {"a": [null,true]}, "null": null}"#,
        &[("number", "1.50"), ("object", r#"{"a": [null, true]}"#), ("null", "null")],
    ),
    (
        r#"{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#,
        &[("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")],
    ),
    ("{}", &[]),
    ("null", &[]),
];

#[tokio::test(flavor = "multi_thread")]
async fn hostile_headers_arrive_in_a_harmless_form_and_what_is_no_object_is_parked() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let client = env.client().await;
    let mut expected = Vec::new();
    for (headers, _) in HARMLESS {
        expected.push(insert(&client, "o-1", Some(headers), "{}").await);
    }
    let mut parked = Vec::new();
    for headers in ["[1, 2]", "\"text\"", "7", "true"] {
        parked.push(insert(&client, "o-1", Some(headers), "{}").await);
    }
    expected.push(insert(&client, "o-1", None, "{}").await);

    env.wait_stored(expected.len() as u64).await;
    env.wait_marked().await;
    let stored = env.stored().await;
    let ids: Vec<Uuid> = stored.iter().map(|it| it.id).collect();
    assert_eq!(ids, expected);
    for (message, (headers, arrive)) in stored.iter().zip(HARMLESS) {
        let event = message.event();
        assert_eq!(event.aggregate_id, "o-1", "{headers}");
        let arrive = arrive.iter().map(|(name, it)| ((*name).to_owned(), (*it).to_owned()));
        assert_eq!(user_headers(&event), arrive.collect(), "{headers}");
    }
    let untouched = stored[5].header("traceparent");
    assert_eq!(untouched, Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));

    let dead = client.query("SELECT id, reason FROM outbox_dead_letter ORDER BY dead_at", &[]);
    let dead = dead.await.expect("dead letters");
    let ids: Vec<Uuid> = dead.iter().map(|row| row.get(0)).collect();
    assert_eq!(ids, parked);
    let reasons: Vec<String> = dead.iter().map(|row| row.get(1)).collect();
    assert!(reasons.iter().all(|it| it.contains("not a json object")), "{reasons:?}");
}

fn user_headers(event: &Event) -> BTreeMap<String, String> {
    let headers = event.headers.as_deref().map(serde_json::from_slice);
    headers.unwrap_or_else(|| Ok(BTreeMap::new())).expect("an object of strings")
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_arrive_byte_for_byte_as_postgresql_prints_them() {
    let env = TestEnv::new().await;
    env.setup().await;
    let payloads = [
        r#"{"b": 1.00, "a": 1e400, "long key": 12345678901234567890, "tiny": 1e-20}"#,
        "1.00",
        "-0.0",
        "9007199254740993.000000000000000001",
        r#""crab 🦀 \u00fc \ud83e\udd80 \\ \" \/ \b \f \n \r \t \u0001 \u007f \u2028""#,
        r#"{"": "", "Größe": "注文", "\"": "\\", "dup": 1, "dup": 2}"#,
        "null",
        "[]",
        r#"[[], {}, [null, true, false, {"deep": [[["x"]]]}]]"#,
        "  {  \"spaces\"  :  [ 1 ,2 ]  }  ",
    ];
    let client = env.client().await;
    insert(&client, "old", None, payloads[0]).await;
    let _relay = env.relay();
    for payload in payloads {
        insert(&client, "o-1", None, payload).await;
    }
    insert(&client, "large", None, &format!("\"{}\"", "ü\\n".repeat(100_000))).await;

    env.wait_stored(payloads.len() as u64 + 2).await;
    let sql = "SELECT payload::TEXT FROM outbox_events ORDER BY seq";
    let printed = client.query(sql, &[]).await.expect("payloads");
    let printed: Vec<String> = printed.iter().map(|row| row.get(0)).collect();
    let arrived: Vec<String> = env.stored().await.into_iter().map(|it| it.payload).collect();
    assert!(printed[0].contains(r#""b": 1.00"#), "{}", printed[0]);
    assert!(printed[0].contains("12345678901234567890"), "{}", printed[0]);
    assert!(printed[0].contains(&format!("1{}", "0".repeat(400))), "{}", printed[0]);
    for (printed, arrived) in printed.iter().zip(&arrived) {
        assert!(printed == arrived, "{printed}\n{arrived}");
    }
    assert_eq!(arrived.len(), printed.len());
}
