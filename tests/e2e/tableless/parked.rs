//! Messages that cannot be published, or that somebody else wrote.

use std::io::Write;

use lab::NatsOptions;
use serde_json::Value;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};
use tempfile::NamedTempFile;
use uuid::Uuid;

use super::{emit, had_no_row, set, verified};

const PREFIX: &str = "tailpost:public.outbox_events";

/// Payloads over 4 KiB are poison.
async fn env(settings: &[(&str, &str)]) -> TestEnv {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    set(&mut env, settings);
    env.setup().await;
    env
}

async fn wait_dead(env: &TestEnv, n: usize) {
    let sql = "SELECT count(*) FROM outbox_dead_letter";
    let is_so = async || env.query::<i64>(sql).await == n as i64;
    until(DEADLINE, &format!("{n} dead letters"), is_so).await;
}

async fn requeue(env: &TestEnv, id: Uuid) {
    let mut payload = NamedTempFile::new().expect("create a file");
    payload.write_all(b"{\"mended\": 1.10}").expect("write a payload");
    let (id, path) = (id.to_string(), payload.path().to_str().expect("UTF-8"));
    let args = ["outbox", "dlq", "requeue", &id, "--payload-file", path, "--why", "x", "--direct"];
    env.ends_with(0, &args).await;
}

/// An event whose members are these, besides its type and its aggregate.
fn object(members: &str) -> String {
    format!(
        "convert_to('{{\"aggregate_type\": \"order\", \"aggregate_id\": \"o\", \
         \"event_type\": \"Placed\", {members}}}', 'UTF8')"
    )
}

/// What the function does not write. The last has the id of a row.
fn bad(row: Uuid) -> Vec<String> {
    let id = Uuid::now_v7;
    vec![
        "''::bytea".to_owned(),
        "'\\x00ff'::bytea".into(),
        "'no json'::bytea".into(),
        "convert_to('[' || repeat('[', 100000), 'UTF8')".into(),
        "convert_to(repeat('x', 2000000), 'UTF8')".into(),
        object("\"payload\": {}"),
        object(&format!("\"id\": \"{}\", \"event_version\": 1e99, \"payload\": {{}}", id())),
        object(&format!("\"id\": \"{}\", \"occurred_at\": \"-009000-01-01T00:00:00Z\"", id())),
        object(&format!("\"id\": \"{}\", \"correlation_id\": 7", id())),
        object(&format!("\"id\": \"{}\", \"headers\": [1]", id())),
        object(&format!("\"id\": \"{}\", \"headers\": {{\"a\": \"\\ud800\"}}", id())),
        // No value of jsonb, and a payload that the broker does not take.
        object(&format!("\"id\": \"{}\", \"payload\": [\"\\u0000\", 1e999999]}}", id()))
            .replace("]}}", "]}"),
        "convert_to('{\"id\": \"6f0b0a8e-1111-7000-8000-000000000001\", \"aggregate_type\": \"a\\u0000b\", \
          \"aggregate_id\": \"o\", \"event_type\": \"e\"}', 'UTF8')"
            .into(),
        "convert_to(jsonb_build_object('id', gen_random_uuid(), 'aggregate_type', 'order', \
          'aggregate_id', 'o', 'event_type', 'Placed', 'payload', repeat('x', 9000))::text, 'UTF8')"
            .into(),
        // An event of its own, which has a row.
        object(&format!("\"id\": \"{row}\", \"event_version\": []")),
    ]
}

/// Any bytes that any role writes under the prefix.
// proves: G-OUT-2
#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_written_under_the_prefix_is_published_or_parked_and_stops_nobody() {
    // Nobody marks the row.
    let env = env(&[("TAILPOST_RELAY__MARK_INTERVAL", "1h")]).await;
    let relay = env.relay();
    relay.wait_active().await;
    // Anybody may.
    env.execute("CREATE ROLE mallory LOGIN").await;
    let row = Uuid::now_v7();
    env.execute(&emit(false, row, "'{}'")).await;
    let id = Uuid::now_v7;
    let (forged, bad) = (id(), bad(row));
    let write = |content: &str| {
        format!(
            "SET ROLE mallory; SELECT pg_logical_emit_message(true, '{PREFIX}', {content});
             RESET ROLE;"
        )
    };
    let mut good = Vec::new();
    for content in &bad {
        good.push(id());
        env.execute(&write(content)).await;
        env.execute(&emit(true, *good.last().expect("one"), "'{}'")).await;
    }
    env.execute(&write(&object(&format!("\"id\": \"{forged}\", \"payload\": [1 , 2]")))).await;
    // Others' prefixes, and none of a transaction.
    for others in ["tailpost:public.other", "tailpost:public.outbox_events2", "tailpost"] {
        env.execute(&format!("SELECT pg_logical_emit_message(true, '{others}', 'x')")).await;
    }
    for end in ["COMMIT", "ROLLBACK"] {
        let sql = format!("BEGIN; SELECT pg_logical_emit_message(false, '{PREFIX}', 'x'); {end}");
        env.execute(&sql).await;
    }
    good.push(forged);
    // What is JSON and no jsonb is published as it is: the consumer's affair.
    let published = 1 + good.len() as u64 + 2;
    env.wait_stored(published).await;
    env.wait_confirmed().await;
    let stored = env.stored_ids().await;
    let payloads: Vec<_> = env.stored().await.into_iter().map(|it| it.payload).collect();
    assert_eq!(stored.len() as u64, published, "{payloads:?}");
    assert_eq!(stored[0], row);
    let (first, last) = (stored.iter().position(|it| *it == good[0]), stored.last());
    assert_eq!((first, last), (Some(1), Some(&forged)));
    assert!(good.iter().all(|id| stored.contains(id)), "the good ones are there");
    let poison = "payload and headers exceed";
    relay.announce("parking an event that cannot be published");
    relay.announce(poison);
    relay.announce("somebody writes messages with the outbox's prefix outside of transactions");
    wait_dead(&env, bad.len() - 3).await;
    let names = "SELECT count(*) FROM outbox_dead_letter WHERE reason LIKE '%outbox_emit_wal%'";
    assert_eq!(env.query::<i64>(names).await, bad.len() as i64 - 5);
    let cut = "SELECT max(length(payload #>> '{}')) FROM outbox_dead_letter";
    assert_eq!(env.query::<i32>(cut).await, 1 << 20);
    let said = relay.log().matches("outside of transactions").count();
    assert_eq!(said, 1, "once a session");
    let unmarked = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
    assert_eq!(env.query::<i64>(unmarked).await, 1, "another event's row is left alone");
    // Another relay brings nothing twice.
    relay.kill9().await;
    let relay = env.relay();
    relay.wait_active().await;
    env.execute(&emit(true, id(), "'{}'")).await;
    env.wait_stored(published + 1).await;
    env.wait_confirmed().await;
    wait_dead(&env, bad.len() - 3).await;
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, 1);
    verified(&env).await;
}

/// Requeued it is published once, under its own id, from a row.
// proves: G-OUT-2
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_never_had_a_row_is_mended_and_published_once() {
    let env = env(&[("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms")]).await;
    let relay = env.relay();
    relay.wait_active().await;
    let [before, poison, after] = [(); 3].map(|()| Uuid::now_v7());
    let too_much = "to_jsonb(repeat('x', 9000))";
    let written =
        [emit(true, before, "'{}'"), emit(true, poison, too_much), emit(true, after, "'{}'")];
    env.execute(&format!("BEGIN; {} COMMIT", written.concat())).await;
    wait_dead(&env, 1).await;
    env.wait_stored(2).await;
    // Before the log is confirmed: it brings the event again.
    relay.kill9().await;
    requeue(&env, poison).await;
    let relay = env.relay();
    env.wait_stored(3).await;
    env.wait_marked().await;
    let stored = env.stored().await;
    assert_eq!(stored.iter().map(|it| it.id).collect::<Vec<_>>(), [before, after, poison]);
    assert_eq!(stored[2].payload, "{\"mended\": 1.10}");
    assert!(!had_no_row(&stored[2]), "it has a row by now");
    relay.kill9().await;
    let _relay = env.relay();
    let last = Uuid::now_v7();
    env.execute(&emit(true, last, "'{}'")).await;
    env.wait_stored(4).await;
    assert_eq!(env.stored_ids().await[3], last);
    env.wait_confirmed().await;
    verified(&env).await;
}

/// An aggregate's events come back in the order in which they were written, whether or not
/// they have rows.
// proves: G-OUT-2
#[tokio::test(flavor = "multi_thread")]
async fn where_parking_blocks_events_with_and_without_a_row_wait_in_one_order() {
    let env = env(&[("TAILPOST_RELAY__ON_PARK", "block_key")]).await;
    let relay = env.relay();
    relay.wait_active().await;
    let ids: Vec<Uuid> = (0..9).map(|_| Uuid::now_v7()).collect();
    env.execute(&emit(true, ids[0], "to_jsonb(repeat('x', 9000))")).await;
    for (at, id) in ids.iter().enumerate().skip(1) {
        env.execute(&emit(at % 2 == 0, *id, "'{}'")).await;
    }
    wait_dead(&env, 9).await;
    assert_eq!(env.stored_count().await, 0);
    let head = env.ends_with(0, &["outbox", "dlq", "list", "--json", "--direct"]).await.0;
    let head: Value = serde_json::from_str(&head).expect("JSON");
    assert_eq!(head["total"], 9, "{head}");
    relay.kill9().await;
    let _relay = env.relay();
    requeue(&env, ids[0]).await;
    env.wait_stored(9).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

/// An aggregate waits for its own events, and for nothing that anybody can write
/// who names it.
// proves: G-OUT-2
#[tokio::test(flavor = "multi_thread")]
async fn where_parking_blocks_no_aggregate_waits_for_what_is_no_event() {
    for mode in ["fenced", "keyed"] {
        let env =
            env(&[("TAILPOST_RELAY__ON_PARK", "block_key"), ("TAILPOST_RELAY__MODE", mode)]).await;
        let relay = env.relay();
        relay.wait_active().await;
        env.execute("CREATE ROLE mallory LOGIN").await;
        let forged = "'{\"aggregate_type\": \"order\", \"aggregate_id\": \"o-1\"}'";
        let write = format!(
            "SET ROLE mallory;
             SELECT pg_logical_emit_message(true, '{PREFIX}', {forged});
             SELECT pg_logical_emit_message(true, '{PREFIX}', 'no json');
             RESET ROLE;"
        );
        let ids: Vec<Uuid> = (0..6).map(|_| Uuid::now_v7()).collect();
        env.execute(&write).await;
        env.execute(&emit(true, ids[0], "'{}'")).await;
        env.execute(&emit(false, ids[1], "'{}'")).await;
        env.wait_stored(2).await;
        wait_dead(&env, 2).await;
        // Behind an event that is one it waits neither, and does not come back with those that do.
        env.execute(&emit(true, ids[2], "to_jsonb(repeat('x', 9000))")).await;
        env.execute(&write).await;
        env.execute(&emit(true, ids[3], "'{}'")).await;
        env.execute(&emit(false, ids[4], "'{}'")).await;
        wait_dead(&env, 7).await;
        let blocking = "SELECT count(*) FROM outbox_dead_letter WHERE blocks";
        assert_eq!(env.query::<i64>(blocking).await, 3, "{mode}");
        relay.kill9().await;
        let _relay = env.relay();
        requeue(&env, ids[2]).await;
        env.wait_stored(5).await;
        env.execute(&emit(true, ids[5], "'{}'")).await;
        env.wait_stored(6).await;
        env.wait_confirmed().await;
        assert_eq!(env.stored_ids().await, ids, "{mode}");
        wait_dead(&env, 4).await;
        assert_eq!(env.query::<i64>(blocking).await, 0, "{mode}");
    }
}
