//! Events that are messages in PostgreSQL's log, and have no row.

mod limits_said;
mod parked;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use support::{DEADLINE, Stored, TestEnv, until};
use uuid::Uuid;

/// A relay that takes such events, between servers of its own.
async fn env(settings: &[(&str, &str)]) -> TestEnv {
    let mut env = TestEnv::new().await;
    set(&mut env, settings);
    env.setup().await;
    env
}

fn set(env: &mut TestEnv, settings: &[(&str, &str)]) {
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "true");
    for (name, value) in settings {
        env.set(name, value);
    }
}

/// Statements that write an event, without a row or with one.
fn emit(wal: bool, id: Uuid, payload: &str) -> String {
    let function = if wal { "outbox_emit_wal" } else { "outbox_emit" };
    format!("SELECT {function}('order', 'o-1', 'Placed', {payload}, id => '{id}');")
}

fn had_no_row(message: &Stored) -> bool {
    message.header("Tailpost-Source") == Some("wal")
}

async fn wait_published(env: &TestEnv, n: usize) {
    env.wait_stored(n as u64).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
}

/// The report of `tailpost verify`, which finds nothing.
async fn verified(env: &TestEnv) -> Value {
    let (report, _) = env.ends_with(0, &["verify", "--json"]).await;
    serde_json::from_str(&report).expect("JSON")
}

/// Each transaction's events in its order, with a row or without; what is rolled back is
/// never there.
// proves: G-OUT-1
#[tokio::test(flavor = "multi_thread")]
async fn events_with_and_without_a_row_are_published_in_the_order_of_their_transaction() {
    for mode in ["fenced", "keyed"] {
        let env = env(&[("TAILPOST_RELAY__MODE", mode)]).await;
        let relay = env.relay();
        relay.wait_active().await;
        let ids: Vec<Uuid> = (0..10).map(|_| Uuid::now_v7()).collect();
        let [never, undone] = [Uuid::now_v7(), Uuid::now_v7()];
        env.execute(&format!("BEGIN; {} ROLLBACK", emit(true, never, "'{}'"))).await;
        let each = |at: usize| emit(at % 3 != 1, ids[at], &format!("'{{\"n\": {at}}}'"));
        let first: String = (0..4).map(each).collect();
        let undone = emit(true, undone, "'{}'");
        let rest: String = (4..9).map(each).collect();
        env.execute(&format!(
            "BEGIN; {first} SAVEPOINT s; {undone} ROLLBACK TO s; {rest} COMMIT; {}",
            each(9)
        ))
        .await;
        wait_published(&env, 10).await;
        let stored = env.stored().await;
        assert_eq!(stored.iter().map(|it| it.id).collect::<Vec<_>>(), ids, "{mode}");
        for (at, message) in stored.iter().enumerate() {
            assert_eq!(had_no_row(message), at % 3 != 1, "{mode} {at}");
            assert_eq!(message.payload, format!("{{\"n\": {at}}}"));
            assert_eq!(message.subject, "outbox.order.Placed");
            let position = message.header("Tailpost-Position").expect("a position");
            let ordinal = position.rsplit('/').next().expect("four parts");
            assert_eq!(ordinal, (at % 9).to_string(), "{position}");
        }
        let rows = "SELECT count(*) FROM outbox_events";
        assert_eq!(env.query::<i64>(rows).await, 3);
        let report = verified(&env).await;
        let emitted = report["unjudged"].as_array().expect("a list");
        let emitted = emitted.iter().find(|it| it["what"] == "emitted").expect("it is counted");
        assert_eq!((&emitted["count"], &report["matched"]), (&7.into(), &3.into()), "{report}");
    }
}

/// Whatever the column of a row takes, and the whole of an event.
// proves: G-OUT-1
#[tokio::test(flavor = "multi_thread")]
async fn what_a_message_holds_is_what_a_row_would_hold() {
    let env = env(&[]).await;
    let relay = env.relay();
    relay.wait_active().await;
    let payloads = [
        "'null'",
        "'\"\"'",
        "'1.500'",
        "'[]'",
        "'{\"a\": {\"b\": [1, 2.50, \"grün \\u2028 \\\"x\\\"\"]}, \"a b\": 1e400}'",
        "to_jsonb(repeat('x', 1000000))",
        "(SELECT jsonb_agg(n) FROM generate_series(1, 100000) n)",
    ];
    let arguments = "2, gen_random_uuid(), NULL, '{\"traceparent\": \"ä\", \"n\": 1}'";
    let mut statements = String::from("BEGIN;");
    for payload in payloads {
        for function in ["outbox_emit", "outbox_emit_wal"] {
            statements += &format!("SELECT {function}('ord/er', 'o 1', 'Plä', {payload});");
        }
    }
    for function in ["outbox_emit", "outbox_emit_wal"] {
        statements += &format!("SELECT {function}('a', 'b', 'c', '{{}}', {arguments});");
    }
    env.execute(&(statements + "COMMIT")).await;
    wait_published(&env, 16).await;
    for pair in env.stored().await.chunks(2) {
        let [row, wal] = pair else { panic!("two of each") };
        let [mut from_row, mut from_wal] = [row.event(), wal.event()];
        assert!(!had_no_row(row) && had_no_row(wal));
        assert_ne!(from_row.id, from_wal.id);
        from_row.id = from_wal.id;
        for event in [&mut from_row, &mut from_wal] {
            // Each call has its own.
            event.correlation_id = event.correlation_id.map(|_| Uuid::nil());
        }
        assert_eq!(from_row, from_wal, "{}", row.payload.len());
        assert_eq!(row.subject, wal.subject);
    }
}

/// PostgreSQL's log has them as long as it is kept.
// proves: G-OUT-1
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_the_log_brings_events_without_a_row_again() {
    let env = env(&[
        ("TAILPOST_REWIND__RETAIN", "256MiB"),
        ("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms"),
    ])
    .await;
    let relay = env.relay();
    relay.wait_active().await;
    let kept = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tailpost_rewind'";
    until(DEADLINE, "there is a rewind slot", async || env.query::<i64>(kept).await == 1).await;
    let ids: Vec<Uuid> = (0..6).map(|_| Uuid::now_v7()).collect();
    let written: String = (0..6).map(|at| emit(at % 2 == 0, ids[at], "'{}'")).collect();
    env.execute(&format!("BEGIN; {written} COMMIT")).await;
    wait_published(&env, 6).await;
    let args = ["replay", "--since", "1h", "--source", "wal", "--execute", "--why", "a test"];
    env.ends_with(0, &args).await;
    let stored = env.stored().await;
    assert_eq!(stored.len(), 12);
    for (original, copy) in stored[..6].iter().zip(&stored[6..]) {
        let position = "Tailpost-Position";
        assert_eq!(copy.header(position), original.header(position));
        assert_eq!(copy.header("Tailpost-Event-Id"), Some(&*original.id.to_string()));
    }
    verified(&env).await;
}

mod long {
    use super::*;

    /// Nothing but the stream tells what was published, and the broker forgets ids at once.
    // proves: G-OUT-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_again_and_again_each_event_without_a_row_is_stored_once_in_order() {
        let env = env(&[("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms")]).await;
        let mut random = StdRng::seed_from_u64(7);
        let mut ids = Vec::new();
        let client = env.client().await;
        for _ in 0..8 {
            let relay = env.relay();
            relay.wait_active().await;
            for _ in 0..random.random_range(20..60) {
                let events: Vec<(bool, Uuid)> = (0..random.random_range(1..8))
                    .map(|_| (random.random_bool(0.6), Uuid::now_v7()))
                    .collect();
                let written: String = events.iter().map(|it| emit(it.0, it.1, "'{}'")).collect();
                let is_kept = random.random_bool(0.8);
                let end = if is_kept { "COMMIT" } else { "ROLLBACK" };
                client.batch_execute(&format!("BEGIN; {written} {end}")).await.expect("write");
                ids.extend(events.into_iter().filter(|_| is_kept).map(|it| it.1));
            }
            relay.kill9().await;
        }
        let _relay = env.relay();
        wait_published(&env, ids.len()).await;
        assert_eq!(env.stored_ids().await, ids);
        verified(&env).await;
    }
}
