//! Databases in other encodings than UTF-8: every row is published or parked, or they are refused.

use async_nats::HeaderMap;
use async_nats::jetstream::{Context, stream};
use lab::Postgres;
use outbox::{Event, wire};
use serde_json::json;
use support::{DEADLINE, TestEnv, until};
use tokio_postgres::Client;

use crate::inbox::service::Service;

const TABLE: &str = "CREATE TABLE outbox_events (
    id UUID PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
    event_type TEXT NOT NULL, payload JSONB NOT NULL)";

/// An expression for text, and what it is in UTF-8, if it is anything there.
type Text = (&'static str, Option<&'static str>);

async fn database(postgres: &Postgres, encoding: &str) -> Client {
    let client = postgres.client("postgres").await.expect("connect to PostgreSQL");
    let create = format!(
        "CREATE DATABASE other ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    );
    // The test's cluster has none, and no other template is converted.
    let template = "CREATE DATABASE template0 TEMPLATE template1";
    client.batch_execute(template).await.expect("create a template");
    client.batch_execute(&create).await.expect("create a database");
    postgres.client("other").await.expect("connect to the database")
}

/// Inserts an event with each text as its key, and one with it in its payload.
async fn insert(client: &Client, texts: &[Text]) {
    for (text, _) in texts {
        let sql = format!(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES (gen_random_uuid(), 'order', {text}, 'Placed', '{{}}'),
                    (gen_random_uuid(), 'order', 'o', 'Placed', jsonb_build_object('n', {text}))"
        );
        client.batch_execute(&sql).await.expect(&sql);
    }
}

async fn wait_done(client: &Client) {
    let left = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
    until(DEADLINE, "every row is published or parked", async || {
        client.query_one(left, &[]).await.expect("count").get::<_, i64>(0) == 0
    })
    .await;
}

async fn publishes_or_parks(encoding: &str, texts: &[Text]) {
    let mut env = TestEnv::new().await;
    let client = database(&env.postgres, encoding).await;
    env.set("DATABASE_URL", &env.postgres.url("other"));
    client.batch_execute(TABLE).await.expect("create the table");
    insert(&client, texts).await; // for the scanner
    env.setup().await;
    let relay = env.relay();
    relay.announce("");
    wait_done(&client).await;
    insert(&client, texts).await; // for the log
    wait_done(&client).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
    let (told, _) = env.ends_with(0, &["verify"]).await;
    assert!(told.contains("findings       none"), "{told}");
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    insert(&client, texts).await; // for poll mode
    env.ends_with(0, &["relay", "--once"]).await;
    wait_done(&client).await;

    const PATHS: usize = 3;
    let stored = env.stored().await;
    let known: Vec<_> = texts.iter().filter_map(|(_, it)| *it).collect();
    for text in &known {
        let keyed = stored.iter().filter(|it| it.event().aggregate_id == *text);
        assert_eq!(keyed.count(), PATHS, "{text}");
        let payload = format!("{{\"n\": \"{text}\"}}");
        assert_eq!(stored.iter().filter(|it| it.payload == payload).count(), PATHS, "{text}");
    }
    assert_eq!(stored.len(), 2 * PATHS * known.len());
    let parked =
        "SELECT count(*) FROM outbox_dead_letter WHERE reason LIKE '%no equivalent in UTF-8%'";
    let parked: i64 = client.query_one(parked, &[]).await.expect("count").get(0);
    assert_eq!(parked, i64::try_from(2 * PATHS * (texts.len() - known.len())).expect("few"));
    let (listed, _) = env.ends_with(0, &["outbox", "dlq", "list", "--direct"]).await;
    assert!(listed.contains("no equivalent in UTF-8"), "{listed}");
    env.ends_with(0, &["status"]).await;
    env.ends_with(0, &["doctor"]).await;
}

// proves: G-DEAD-5
#[tokio::test(flavor = "multi_thread")]
async fn any_row_of_a_database_in_win1252_is_published_or_parked() {
    publishes_or_parks(
        "WIN1252",
        &[
            ("'plain'", Some("plain")),
            ("'caf' || chr(233)", Some("café")),
            ("chr(128)", Some("€")),
            ("chr(129) || 'x'", None),
            ("'y' || chr(157)", None),
        ],
    )
    .await;
}

// proves: G-DEAD-5
#[tokio::test(flavor = "multi_thread")]
async fn any_row_of_a_database_without_an_encoding_is_published_or_parked() {
    publishes_or_parks(
        "SQL_ASCII",
        &[
            ("'plain'", Some("plain")),
            ("'caf' || chr(195) || chr(169)", Some("café")),
            ("'caf' || chr(233)", None),
            ("chr(255)", None),
        ],
    )
    .await;
}

/// Of those with characters of several bytes a relay does not know the characters.
#[tokio::test(flavor = "multi_thread")]
async fn an_encoding_that_a_relay_does_not_read_is_refused_by_name() {
    let mut env = TestEnv::new().await;
    let client = database(&env.postgres, "EUC_JP").await;
    env.set("DATABASE_URL", &env.postgres.url("other"));
    let refused = async |env: &TestEnv| {
        for command in ["setup", "relay"] {
            let (_, log) = env.ends_with(4, &[command]).await;
            assert!(log.contains("EUC_JP") && log.contains("pg_dump"), "{command}:\n{log}");
        }
        let (told, _) = env.ends_with(1, &["doctor", "--pre"]).await;
        assert!(told.contains("EUC_JP") && told.contains("pg_dump"), "{told}");
    };
    refused(&env).await;
    client.batch_execute(TABLE).await.expect("create the table");
    env.set("TAILPOST_RELAY__MODE", "poll");
    refused(&env).await;
}

async fn publish(jetstream: &Context, aggregate: &str, kind: &str) {
    let event = Event::new(kind, aggregate, "Placed", &json!({"n": "日本"})).expect("an event");
    let mut headers = HeaderMap::new();
    wire::event_headers(&event, |name, value| headers.append(name, value)).expect("headers");
    let subject = format!("outbox.{kind}.Placed");
    let ack = jetstream.publish_with_headers(subject, headers, event.payload);
    ack.await.expect("publish").await.expect("the stream takes it");
}

/// Events that come in UTF-8, and services that answer in it. A record has an event's subject:
/// only where that cannot be written the event becomes a dead letter.
async fn an_inbox_works(encoding: &str) {
    let mut env = TestEnv::new().await;
    let client = database(&env.postgres, encoding).await;
    env.set("DATABASE_URL", &env.postgres.url("other"));
    env.set("TAILPOST_INBOX__BACKOFF", "100ms");
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "1000");
    env.ends_with(0, &["inbox", "setup"]).await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let subjects = vec!["outbox.>".into()];
    let config = stream::Config { name: "OUTBOX".into(), subjects, ..stream::Config::default() };
    jetstream.create_stream(config).await.expect("create the stream");
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    inbox.announce("");

    let count = async |what: &str| {
        let sql = format!("SELECT count(*) FROM {what}");
        client.query_one(&sql, &[]).await.expect(&sql).get::<_, i64>(0)
    };
    let processed = "inbox_messages WHERE status = 'PROCESSED'";
    service.say("注文は見つかりません … не найден");
    service.answer_to("o-down", 500);
    service.answer_to("o-bad", 422);
    for (aggregate, kind) in [("plain", "order"), ("café", "order"), ("日本", "order")] {
        publish(&jetstream, aggregate, kind).await;
    }
    publish(&jetstream, "o-bad", "order").await;
    publish(&jetstream, "日本", "注文").await;
    publish(&jetstream, "o-down", "order").await;
    let tried = async || {
        let calls = service.calls();
        calls.iter().filter(|it| it.header("aggregate-id") == "o-down").count()
    };
    until(DEADLINE, "it is called again", async || tried().await >= 3).await;
    service.answer_to("o-down", 204);
    until(DEADLINE, "all others are over", async || {
        count("inbox_messages WHERE status IN ('PROCESSED', 'DEAD')").await == 6
    })
    .await;
    let letters = count("inbox_dead_letter").await;
    assert_eq!(count(processed).await + letters, 6);
    // Its subject is what a record has.
    assert!((1..=2).contains(&letters), "{letters}: {}", inbox.log());
    assert_eq!(count("inbox_dead_letter WHERE cause = 'unrecordable'").await, letters - 1);
    let whole = "inbox_dead_letter WHERE payload = decode('7b226e223a22e697a5e69cac227d', 'hex')";
    assert_eq!(count(whole).await, letters, "they are kept as they came");
    let (told, _) = env.ends_with(0, &["inbox", "dlq", "list"]).await;
    assert!(told.contains("422"), "{told}");
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_works_in_databases_of_other_encodings() {
    for encoding in ["SQL_ASCII", "WIN1252", "LATIN1", "EUC_JP"] {
        an_inbox_works(encoding).await;
    }
}
