//! JSON lines: which fields they have, what they never have, and how often they come.

use std::collections::BTreeMap;

use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, until};

use super::{insert, parent};
use crate::inbox::service::Service;

/// In payloads and headers; nothing else has it.
const MARKER: &str = "Zq7PayloadMarker";

/// Lines of one text, at most.
const LINES_MAX: usize = 20;

async fn set_up() -> TestEnv {
    let mut env =
        TestEnv::with(TestEnvOptions { proxied: true, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_LOG__FORMAT", "json");
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "1");
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    env
}

fn lines(process: &Relay) -> Vec<Value> {
    let log = process.log();
    log.lines().map(|it| serde_json::from_str(it).unwrap_or_else(|_| panic!("{it}"))).collect()
}

/// No text comes often: times and numbers in a text do not make it another.
fn assert_few(process: &Relay) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines(process) {
        let text = line["message"].as_str().expect("a message");
        let text: String = text.chars().filter(|it| !it.is_ascii_digit() && *it != '.').collect();
        *counts.entry(text).or_default() += 1;
    }
    eprintln!("{counts:#?}");
    assert!(counts.values().all(|count| *count <= LINES_MAX), "{counts:#?}");
}

fn thousand(aggregate: &str, headers: impl Fn(u32) -> String) -> String {
    (1..=1000).map(|n| insert(&format!("{aggregate}-{n}"), &headers(n))).collect()
}

async fn count(env: &TestEnv, table: &str) -> i64 {
    env.query(&format!("SELECT count(*) FROM {table}")).await
}

/// A thousand events that cannot be published, and a thousand that cannot be handled.
// proves: G-LOG-1
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_events_that_fail_are_a_few_lines_with_id_lsn_and_trace() {
    let env = set_up().await;
    let relay = env.relay();
    relay.wait_active().await;
    let service = Service::start().await;
    service.answer(422);
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    env.execute(&thousand("unfit", |_| "[]".into())).await;
    let of_trace = |n: u32| format!(r#"{{"traceparent": "{}", "x": "{MARKER}"}}"#, parent(n));
    env.execute(&thousand("failing", of_trace)).await;
    let parked = async || count(&env, "outbox_dead_letter").await == 1000;
    until(2 * DEADLINE, "the unfit are parked", parked).await;
    let dead = async || count(&env, "inbox_dead_letter").await == 1000;
    until(2 * DEADLINE, "the failing are dead letters", dead).await;
    for process in [&relay, &inbox] {
        assert_few(process);
        assert!(!process.log().contains(MARKER), "{}", process.log());
    }

    let parking = lines(&relay)
        .into_iter()
        .filter(|it| it["message"].as_str().is_some_and(|it| it.starts_with("parking an event")));
    let parking: Vec<_> = parking.collect();
    assert!(!parking.is_empty());
    for line in parking {
        assert!(line["event_id"].is_string() && line["lsn"].is_string(), "{line}");
        assert!(line["hint"].as_str().is_some_and(|it| it.contains("outbox dlq show")), "{line}");
    }
    let died: Vec<_> =
        lines(&inbox).into_iter().filter(|it| it["message"] == "became a dead letter").collect();
    assert!(!died.is_empty());
    for line in died {
        assert!(line["event_id"].is_string() && line["lsn"].is_string(), "{line}");
        assert_eq!(
            line["trace_id"].as_str().map(|it| &it[..24]),
            Some(&parent(1)[3..27]),
            "{line}"
        );
        assert!(line["hint"].as_str().is_some_and(|it| it.contains("inbox dlq show")), "{line}");
    }
    for (process, text) in
        [(&relay, "parking an event that cannot be published"), (&inbox, "became a dead letter")]
    {
        process.sigterm();
        assert!(process.wait_exit(DEADLINE).await.success(), "{}", process.log());
        assert_eq!(told_and_left_out(process, text), 1000, "{}", process.log());
    }
}

/// Lines of this text, with those of which it is told at the latest at the end that they are left out.
fn told_and_left_out(process: &Relay, text: &str) -> u64 {
    let count = |line: Value| match (&line["message"], &line["line"]) {
        (message, _) if message == text => 1,
        (_, left_out) if left_out == text => line["left_out"].as_u64().expect("a number"),
        _ => 0,
    };
    lines(process).into_iter().map(count).sum()
}

/// At the most verbose level of all that is ours, and of the libraries.
// proves: G-SECRET-1
#[tokio::test(flavor = "multi_thread")]
async fn no_line_has_anything_of_a_payload_or_a_header_whatever_level_is_asked_for() {
    let mut env = set_up().await;
    env.set("TAILPOST_LOG", "trace");
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "true");
    let relay = env.relay();
    relay.wait_active().await;
    let service = Service::start().await;
    service.answer_to("failing", 500);
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let headers = format!(r#"{{"x": "{MARKER}", "traceparent": "{}"}}"#, parent(1));
    for (aggregate_id, headers) in [
        ("well", headers.clone()),
        ("failing", headers.clone()),
        ("unfit", format!(r#"["{MARKER}"]"#)),
    ] {
        let row = insert(aggregate_id, &headers);
        env.execute(&row.replace("'{}'", &format!(r#"'{{"secret": "{MARKER}"}}'"#))).await;
    }
    env.execute(&format!(
        "SELECT outbox_emit_wal('order', 'rowless', 'OrderPlaced', '{{\"secret\": \"{MARKER}\"}}')"
    ))
    .await;
    let parked = async || count(&env, "outbox_dead_letter").await == 1;
    until(DEADLINE, "the unfit one is parked", parked).await;
    let dead = async || count(&env, "inbox_dead_letter").await == 1;
    until(DEADLINE, "the failing one is a dead letter", dead).await;
    crate::inbox::http::wait_processed(&env, 2).await;
    for process in [&relay, &inbox] {
        let log = process.log();
        assert!(log.contains("DEBUG"), "it says much: {log}");
        let leaks: Vec<_> = log.lines().filter(|it| it.contains(MARKER)).take(5).collect();
        assert!(leaks.is_empty(), "{leaks:#?}");
    }
}

mod long {
    use super::*;

    /// Servers that are away, and come back.
    // proves: G-LOG-1
    #[tokio::test(flavor = "multi_thread")]
    async fn servers_that_are_away_are_a_few_lines() {
        let mut env = set_up().await;
        let relay = env.relay();
        relay.wait_active().await;
        let service = Service::start().await;
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        env.execute(&thousand("first", |_| "{}".into())).await;
        crate::inbox::http::wait_processed(&env, 1000).await;
        for round in 2..=4 {
            env.to_nats().cut().await;
            env.execute(&thousand(&format!("nats-{round}"), |_| "{}".into())).await;
            env.to_postgres().cut().await;
            // Several attempts at each.
            let failures = || relay.log().lines().count();
            let before = failures();
            until(DEADLINE, "it is noticed", async || failures() > before || round > 2).await;
            env.to_postgres().restore().await.expect("restored");
            env.to_nats().restore().await.expect("restored");
            crate::inbox::http::wait_processed(&env, round * 1000).await;
        }
        for process in [&relay, &inbox] {
            assert_few(process);
        }
    }
}
