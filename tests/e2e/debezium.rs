//! A table that was made for Debezium's outbox event router, with the configuration and the
//! statements that docs/migrating.md shows.

use std::io::Write;

use outbox::{Column, Columns, Event, Table};
use support::{DEADLINE, TestEnv, until};
use tempfile::NamedTempFile;
use uuid::Uuid;

const PAGE: &str = include_str!("../../docs/migrating.md");

/// The page's `n`th example in a language.
fn example(language: &str, n: usize) -> &'static str {
    let opening = format!("```{language}\n");
    let (_, rest) = PAGE
        .match_indices(&opening)
        .nth(n)
        .map(|(at, it)| PAGE.split_at(at + it.len()))
        .expect("an example");
    rest.split("```").next().expect("something")
}

/// A environment with the page's table, whose payload is of another type if need be, and its configuration.
async fn env(payload_type: &str) -> (TestEnv, NamedTempFile) {
    let mut env = TestEnv::new().await;
    let table = example("sql", 0);
    assert!(table.contains("JSONB"));
    env.execute(&table.replace("JSONB", payload_type)).await;
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("create a file");
    file.write_all(example("toml", 0).as_bytes()).expect("write the configuration");
    env.set("TAILPOST_CONFIG", file.path().to_str().expect("UTF-8"));
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    (env, file)
}

/// Inserts one event as the application always did.
async fn insert(env: &TestEnv, aggregate_id: &str, event_type: &str, payload: &str) -> Uuid {
    let sql = format!(
        "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)
         VALUES (gen_random_uuid(), 'order', '{aggregate_id}', '{event_type}', {payload})
         RETURNING id"
    );
    env.query(&sql).await
}

async fn wait_marked(env: &TestEnv) {
    let unmarked = "SELECT count(*) FROM outboxevent WHERE published_at IS NULL";
    until(DEADLINE, "every row is marked", async || env.query::<i64>(unmarked).await == 0).await;
}

/// The ids and the payloads of all messages, byte for byte.
async fn messages(env: &TestEnv, subject: &str) -> Vec<(Uuid, Vec<u8>)> {
    let stream = env.stream().await;
    let mut messages = Vec::new();
    for sequence in 1..=stream.cached_info().state.last_sequence {
        let message = stream.get_raw_message(sequence).await.expect("a message");
        assert_eq!(message.subject.as_str(), subject);
        let id = message.headers.get("Nats-Msg-Id").expect("an id").as_str();
        messages.push((id.parse().expect("a UUID"), message.payload.to_vec()));
    }
    messages
}

/// The payload's type, two values, and the second as bytes.
const TYPES: [(&str, &str, &str, &[u8]); 4] = [
    ("jsonb", "NULL", r#"'{"b":1.50,"a":"ü"}'"#, r#"{"a": "ü", "b": 1.50}"#.as_bytes()),
    ("json", "'[]'", r#"'{"b":1.50, "b":2}'"#, br#"{"b":1.50, "b":2}"#),
    ("text", "''", "'no json'", b"no json"),
    ("bytea", "NULL", r"'\x00ff7b'", b"\x00\xff{"),
];

/// Events without a subject become dead letters with everything that they had; no payload is JSON's
/// `null`.
async fn parks(env: &TestEnv, payload_type: &str, payload: &str) {
    let (sql, wide) = ("SELECT count(*) FROM outbox_dead_letter", "ü".repeat(100));
    env.execute(&format!(
        "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)
         VALUES (gen_random_uuid(), '{wide}', 'o-3', 'Placed', {payload}),
             (gen_random_uuid(), '{wide}', 'o-3', 'Placed', NULL)"
    ))
    .await;
    until(DEADLINE, "they are parked", async || env.query::<i64>(sql).await == 2).await;
    let none = if payload_type.starts_with("json") { "null" } else { "" };
    let kept = format!(
        "SELECT bool_and(aggregate_type = '{wide}' AND aggregate_id = 'o-3'
                 AND event_type = 'Placed' AND occurred_at IS NOT NULL
                 AND pg_typeof(payload) = '{payload_type}'::REGTYPE)
             AND array_agg(payload::TEXT ORDER BY payload::TEXT IN ('', '\\x', 'null'))
                 = ARRAY[({payload})::{payload_type}::TEXT, '{none}'::{payload_type}::TEXT]
         FROM outbox_dead_letter"
    );
    assert!(env.query::<bool>(&kept).await, "{payload_type}");
    let left = "SELECT count(*) FROM outboxevent WHERE aggregateid = 'o-3'";
    // Perhaps by the sweeper: the log tells of a row a moment before it can be seen.
    until(DEADLINE, "the rows are gone", async || env.query::<i64>(left).await == 0).await;
}

/// DESIGN 13: connector's events, relay's events, each once.
#[tokio::test(flavor = "multi_thread")]
async fn the_switch_from_a_connector_loses_and_doubles_nothing() {
    let (env, _config) = env("JSONB").await;
    env.execute("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')").await;
    let events = async |n: i32| -> Vec<Uuid> {
        let mut ids = Vec::new();
        for _ in 0..n {
            ids.push(insert(&env, "o-1", "Placed", "'{}'").await);
        }
        ids
    };
    // The connector confirms as far as it has published.
    let publish = "SELECT pg_replication_slot_advance('debezium', pg_current_wal_lsn())";
    events(5).await;
    env.execute(publish).await;
    events(5).await;
    env.setup().await;
    let switch = example("sql", 2);
    let client = env.client().await;
    let refused = client.batch_execute(switch).await.expect_err("the connector is behind");
    assert!(format!("{refused:?}").contains("cannot advance replication slot"), "{refused:?}");
    assert_eq!(
        env.query::<i64>("SELECT count(*) FROM outboxevent WHERE published_at IS NULL").await,
        10
    );

    events(5).await;
    env.execute(publish).await;
    // The connector is stopped here; the application goes on.
    let mut expected = events(5).await;
    client.batch_execute(switch).await.expect("the page's statements");
    expected.extend(events(5).await);
    let _relay = env.relay();
    expected.extend(events(5).await);
    env.wait_stored(expected.len() as u64).await;
    wait_marked(&env).await;
    assert_eq!(env.stored_ids().await, expected);
    // The five that both slots brought are what retention keeps for ever.
    env.execute(example("sql", 3)).await;
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outboxevent").await, 25);
}

/// The script for an administrator, and the library, know the columns too.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_plan_and_the_library_fit_the_table() {
    let (env, _config) = env("JSONB").await;
    insert(&env, "o-1", "Placed", "'{}'").await;
    let (plan, _) = env.ends_with(0, &["setup", "--print"]).await;
    let (migrations, _) = plan.split_once("CREATE PUBLICATION").expect("a publication");
    env.execute(migrations).await;
    env.execute(migrations).await; // again, without harm
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("exists   migration 0001_outbox"), "{told}");

    let mut columns = Columns::default();
    for (column, name) in [
        (Column::AggregateType, "aggregatetype"),
        (Column::AggregateId, "aggregateid"),
        (Column::EventType, "type"),
        (Column::OccurredAt, "created"),
    ] {
        columns.rename(column, name).expect("a name");
    }
    let table = Table::new("public", "outboxevent").and_then(|it| it.with_columns(columns));
    let event = Event::new("order", "o-2", "Paid", &1).expect("valid");
    let event = event.with_version(2).with_header("tenant", "t-1").with_causation(Uuid::new_v4());
    let mut client = env.client().await;
    let tx = client.transaction().await.expect("begin");
    table.expect("a table").enqueue_all(&tx, std::slice::from_ref(&event)).await.expect("enqueue");
    tx.commit().await.expect("commit");
    let _relay = env.relay();
    env.wait_stored(2).await;
    assert_eq!(env.stored().await[1].event(), event);
}

/// What no migration can mend is said before anything is changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_cannot_be_relayed_is_refused_unchanged() {
    let (env, _config) = env("JSONB").await;
    let columns =
        "SELECT count(*) FROM information_schema.columns WHERE table_name = 'outboxevent'";
    for (change, reason) in [
        ("RENAME type TO kind", "column \"type\" is missing or renamed"),
        ("RENAME kind TO type", ""),
        ("ALTER id TYPE TEXT", "column \"id\" must be of type uuid"),
        ("ALTER id TYPE UUID USING id::UUID", ""),
        ("ALTER payload TYPE INT USING 1", "column \"payload\" must be of type jsonb, json, text"),
        ("ALTER payload TYPE TEXT", ""),
        ("ALTER created TYPE BIGINT USING 1", "column \"created\" must be of type timestamptz"),
        ("ALTER created TYPE TIMESTAMP USING now()", ""),
        ("ALTER aggregateid TYPE FLOAT USING 1", "column \"aggregateid\" must be of type text"),
    ] {
        env.execute("ALTER TABLE outboxevent ALTER created DROP DEFAULT").await;
        env.execute(&format!("ALTER TABLE outboxevent {change}")).await;
        if !reason.is_empty() {
            let (_, log) = env.ends_with(4, &["setup"]).await;
            assert!(log.contains(reason), "{reason}: {log}");
            assert_eq!(env.query::<i64>(columns).await, 6);
        }
    }
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_made_for_the_outbox_event_router_is_relayed_as_it_is() {
        for (payload_type, first, second, bytes) in TYPES {
            let (env, _config) = env(payload_type).await;
            let mut expected = Vec::new();
            for payload in [first, second] {
                expected.push(insert(&env, "o-1", "Placed", payload).await); // the scanner's
            }
            env.setup().await;
            env.setup().await;
            let relay = env.relay();
            for payload in [first, second] {
                expected.push(insert(&env, "o-2", "Paid", payload).await); // the log's
            }
            let dropped = insert(&env, "o-2", "Ignored1", second).await;
            env.wait_stored(4).await;
            wait_marked(&env).await;
            let (ids, payloads): (Vec<_>, Vec<_>) =
                messages(&env, "outbox.event.order").await.into_iter().unzip();
            assert_eq!(ids, expected, "{payload_type}");
            assert_eq!(payloads[1], bytes, "{payload_type}");
            assert_eq!(payloads[3], bytes, "{payload_type}");
            assert_eq!(payloads[0], payloads[2], "{payload_type}");
            assert_eq!(
                payloads[0],
                if first == "'[]'" { &b"[]"[..] } else { b"" },
                "{payload_type}"
            );
            let message = env.stream().await.get_raw_message(3).await.expect("a message");
            for (header, value) in [("Aggregate-Id", "o-2"), ("Event-Type", "Paid")] {
                assert_eq!(message.headers.get(header).map(|it| it.as_str()), Some(value));
            }
            relay.kill9().await;
            drop(relay);

            // The sweeper knows the columns, too.
            env.execute(
                "UPDATE outboxevent SET published_at = NULL, publish_error = NULL, stream = NULL",
            )
            .await;
            let relay = env.relay();
            wait_marked(&env).await;
            let told = format!(
                "SELECT string_agg(aggregate_id || event_type || coalesce(stream, ''), ',' ORDER BY event_type)
             FROM outbox_status WHERE status = 'PUBLISHED' AND id IN ('{dropped}', '{}')", ids[3]
            );
            assert_eq!(env.query::<String>(&told).await, "o-2Ignored1,o-2PaidOUTBOX");
            assert_eq!(env.stored_count().await, 4);
            parks(&env, payload_type, second).await;
            let (told, _) = env.ends_with(0, &["status"]).await;
            assert!(
                told.contains("public.outboxevent") && told.contains("dead letters 2"),
                "{told}"
            );
            assert!(!relay.log().contains("starting anew"), "{}", relay.log());
        }
    }

    /// The scanner and the log read the same from columns that are no text.
    #[tokio::test(flavor = "multi_thread")]
    async fn keys_and_types_that_are_no_text_arrive_as_postgresql_prints_them() {
        for (key_type, key) in [
            ("BIGINT", "-72057594037927936"),
            ("SMALLINT", "12337"),
            ("UUID", "00000000-0000-4000-8000-00000000000a"),
            ("CHAR(12)", "o-1"),
        ] {
            let (env, _config) = env("JSONB").await;
            env.execute(&format!(
                "CREATE TYPE kind AS ENUM ('order', 'user');
                 ALTER TABLE outboxevent ALTER aggregatetype TYPE kind USING 'user',
                     ALTER aggregateid TYPE {key_type} USING NULL"
            ))
            .await;
            insert(&env, key, "Placed", "'{}'").await; // the scanner's
            env.setup().await;
            let _relay = env.relay();
            insert(&env, key, "Placed", "'{}'").await; // the log's
            env.wait_stored(2).await;
            for message in env.stored().await {
                assert_eq!(message.header("Aggregate-Id"), Some(key), "{key_type}");
                assert_eq!(message.subject, "outbox.event.order");
            }
            wait_marked(&env).await;
        }
    }
}
