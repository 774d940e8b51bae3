//! `tailpost verify`: finds what is wrong, and nothing where nothing is.

mod damage;
mod healthy;
mod other_modes;
mod ranges;
mod repaired;

use std::collections::{BTreeMap, BTreeSet};

use async_nats::HeaderMap;
use serde_json::Value;
use support::{DEADLINE, Stored, TestEnv, until};
use uuid::Uuid;

/// What was found about each event, by the kinds' names. Messages without an id are about `None`.
type Found = BTreeMap<Option<Uuid>, BTreeSet<String>>;

/// Runs `tailpost verify`, and returns what it says.
async fn report(env: &TestEnv, code: i32, args: &[&str]) -> Value {
    let (told, said) = env.ends_with(code, &[&["verify", "--json"], args].concat()).await;
    eprintln!("{told}\n{said}");
    serde_json::from_str(&told).expect("one JSON object")
}

/// What is found, by event.
async fn findings(env: &TestEnv) -> Found {
    found(&report(env, 1, &[]).await)
}

fn found(report: &Value) -> Found {
    let mut found = Found::new();
    for finding in report["findings"].as_array().expect("a list") {
        let id = finding["id"].as_str().map(|it| it.parse().expect("an id"));
        let kind = finding["kind"].as_str().expect("a kind").to_owned();
        found.entry(id).or_default().insert(kind);
    }
    found
}

fn kinds(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|it| (*it).to_owned()).collect()
}

/// How many things of this name were not judged.
fn unjudged(report: &Value, what: &str) -> u64 {
    let all = report["unjudged"].as_array().expect("a list");
    let count = all.iter().find(|it| it["what"] == what).map(|it| it["count"].as_u64());
    count.flatten().unwrap_or(0)
}

/// Finds nothing.
async fn nothing_is_found(env: &TestEnv) -> Value {
    let report = report(env, 0, &[]).await;
    assert_eq!(report["findings"], Value::Array(Vec::new()));
    report
}

/// Events of aggregates of their own, each in a transaction of its own.
async fn insert_aggregates(env: &TestEnv, aggregates: usize, events: usize) -> Vec<Vec<Uuid>> {
    let client = env.client().await;
    let mut all = vec![Vec::new(); aggregates];
    for n in 0..events {
        for (at, ids) in all.iter_mut().enumerate() {
            let sql = format!(
                "SELECT outbox_emit('order', 'a-{at}', 'OrderPlaced', '{{\"n\": {n}}}',
                     headers => '{{\"tenant\": \"grün\"}}')"
            );
            ids.push(client.query_one(&sql, &[]).await.expect("insert an event").get(0));
        }
    }
    all
}

/// Waits until all rows are marked and the sweeper has been everywhere.
async fn wait_swept(env: &TestEnv) {
    env.wait_marked().await;
    let swept = "SELECT bool_and(NOT EXISTS (
            SELECT FROM outbox_events o WHERE NOT pg_visible_in_snapshot(o.txid, s.swept_snapshot)
        )) FROM tailpost_state s";
    until(DEADLINE, "all is swept", async || {
        env.query::<Option<bool>>(swept).await.unwrap_or(false)
    })
    .await;
}

/// Stores a message by hand, whatever the broker remembers.
pub(crate) async fn store(env: &TestEnv, subject: &str, headers: &HeaderMap, payload: &str) -> u64 {
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let stored = std::cell::Cell::new(0);
    until(DEADLINE, "the broker stores a message", async || {
        let (subject, payload) = (subject.to_owned(), payload.to_owned());
        let sent = jetstream.publish_with_headers(subject, headers.clone(), payload.into()).await;
        let ack = sent.expect("send").await.expect("stored");
        stored.set(ack.sequence);
        !ack.duplicate
    })
    .await;
    stored.get()
}

/// The headers of a message, so that it can be stored again anywhere.
pub(crate) fn free(message: &Stored) -> HeaderMap {
    let expected = |name: &str| name.starts_with("Nats-Expected-");
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter().filter(|it| !expected(it.0.as_ref())) {
        for value in values {
            headers.append(name.clone(), value.clone());
        }
    }
    headers
}

/// The message of an event.
pub(crate) async fn message_of(env: &TestEnv, id: Uuid) -> Stored {
    let mut all = env.stored().await.into_iter();
    all.find(|it| it.id == id).expect("the event is stored")
}

/// Removes the message of an event from the stream.
pub(crate) async fn remove(env: &TestEnv, id: Uuid) -> Stored {
    let message = message_of(env, id).await;
    env.delete_message(message.sequence).await;
    message
}
