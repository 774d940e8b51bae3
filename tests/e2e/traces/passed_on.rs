//! `traceparent` and `tracestate` of the row reach the handler, however the event travels.

use std::collections::BTreeMap;

use lab::Port;
use support::{DEADLINE, TestEnv, until};

use super::{insert, parent, set_up};
use crate::inbox::service::Service;

const REQUEUE: [&str; 4] = ["--wait", "20s", "--direct", "--why=test"];

fn headers(n: u32) -> String {
    format!(r#"{{"traceparent": "{}", "tracestate": "vendor=a,other={n}"}}"#, parent(n))
}

/// What the service got last about an aggregate.
async fn called(service: &Service, aggregate_id: &str, times: usize) -> BTreeMap<String, String> {
    let of = || -> Vec<_> {
        let calls = service.calls().into_iter();
        calls.filter(|it| it.header("aggregate-id") == aggregate_id).collect()
    };
    let what = format!("{aggregate_id} was handed over {times} times");
    until(DEADLINE, &what, async || of().len() >= times).await;
    let last = of().pop().expect("calls");
    let header = |name: &str| (name.to_owned(), last.header(name).to_owned());
    ["traceparent", "tracestate", "tailpost-attempt"].map(header).into()
}

/// Waits for the effect, and compares.
async fn expect(service: &Service, aggregate_id: &str, times: usize, n: u32) {
    let found = called(service, aggregate_id, times).await;
    assert_eq!(found["traceparent"], parent(n), "{aggregate_id}");
    assert_eq!(found["tracestate"], format!("vendor=a,other={n}"), "{aggregate_id}");
}

async fn dead_letters(env: &TestEnv, table: &str) -> i64 {
    env.query(&format!("SELECT count(*) FROM {table}")).await
}

/// A row, a row that the scanner brings, a message of the log, a copy, and letters of both queues.
// proves: G-TRACE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_traceparent_goes_from_the_row_to_the_handler_whichever_way_the_event_takes() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_INBOX__BACKOFF", "200ms");
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "true");
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    env.ends_with(0, &["setup"]).await;
    env.ends_with(0, &["inbox", "setup"]).await;
    // The next slot does not bring it.
    env.execute(&insert("scanned", &headers(1))).await;
    env.drop_slot("tailpost").await;
    let relay = env.relay();
    relay.announce("events of outbox_emit_wal that committed since then may be lost");
    relay.wait_active().await;
    let service = Service::start().await;
    service.answer_to("letter", 422);
    let _inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    env.execute(&insert("logged", &headers(2))).await;
    env.execute(&insert("letter", &headers(3))).await;
    let rowless = format!(
        "SELECT outbox_emit_wal('order', 'rowless', 'OrderPlaced', '{{}}', 1, gen_random_uuid(), \
         NULL, '{}')",
        headers(4)
    );
    env.execute(&rowless).await;
    for (aggregate_id, n) in [("logged", 2), ("letter", 3), ("rowless", 4), ("scanned", 1)] {
        expect(&service, aggregate_id, 1, n).await;
    }

    // The letter of the inbox.
    let of_inbox = async || dead_letters(&env, "inbox_dead_letter").await == 1;
    until(DEADLINE, "it is a dead letter", of_inbox).await;
    service.answer_to("letter", 204);
    let id: uuid::Uuid = env.query("SELECT message_id FROM inbox_dead_letter").await;
    let id = id.to_string();
    let args = ["inbox", "dlq", "requeue", "--consumer", "billing", &id, "--why", "a test"];
    env.ends_with(0, &args).await;
    expect(&service, "letter", 2, 3).await;

    // The letter of the outbox: the stream does not take what is no object.
    env.execute(&insert("parked", "[]")).await;
    let of_outbox = async || dead_letters(&env, "outbox_dead_letter").await == 1;
    until(DEADLINE, "it is parked", of_outbox).await;
    let mended = format!("UPDATE outbox_dead_letter SET headers = '{}'", headers(5));
    env.execute(&mended).await;
    let id: uuid::Uuid = env.query("SELECT id FROM outbox_dead_letter").await;
    let id = id.to_string();
    env.ends_with(0, &[&["outbox", "dlq", "requeue", &id][..], &REQUEUE[..3]].concat()).await;
    expect(&service, "parked", 1, 5).await;

    // A copy, which the inbox knows: the stream's message is what says it.
    let replay =
        ["replay", "--event-type", "OrderPlaced", "--execute", "--why", "a test", "--json"];
    env.ends_with(0, &replay).await;
    for message in env.stored().await {
        let n = match message.event().aggregate_id.as_ref() {
            "scanned" => 1,
            "logged" => 2,
            "letter" => 3,
            "rowless" => 4,
            _ => 5,
        };
        assert_eq!(message.header("traceparent"), Some(&*parent(n)));
    }
    let copies = env.stored().await;
    assert!(copies.iter().any(|it| it.header("Tailpost-Replay").is_some()), "{}", copies.len());
    let (found, _) = env.ends_with(0, &["verify", "--json"]).await;
    assert!(found.contains("\"matched\""), "{found}");
}

/// What breaks W3C's rules is data: it is passed on as it is, and stops nothing.
// proves: G-TRACE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_traceparent_stops_no_event_and_is_passed_on_as_it_is() {
    let mut env = set_up().await;
    let collector = super::collector::Collector::start(super::collector::Manner::Takes).await;
    env.set("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint());
    let _relay = env.relay();
    let service = Service::start().await;
    let _inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let malformed = [
        parent(1).to_uppercase().replace("0A", "0a"),
        parent(2).replacen("00", "ff", 1),
        format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
        format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16)),
        "nonsense".to_owned(),
        String::new(),
    ];
    for (at, text) in malformed.iter().enumerate() {
        env.execute(&insert(&format!("o-{at}"), &format!(r#"{{"traceparent": "{text}"}}"#))).await;
    }
    env.execute(&insert("valid", &headers(9))).await;
    for (at, text) in malformed.iter().enumerate() {
        assert_eq!(called(&service, &format!("o-{at}"), 1).await["traceparent"], *text);
    }
    // No span uses them.
    collector.wait_spans("process OUTBOX", 1).await;
    collector.wait_spans("publish OUTBOX", 1).await;
    collector.with(|it| assert_eq!(it.spans.len(), 2, "{:?}", it.spans));
}
