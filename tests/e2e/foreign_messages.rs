//! Others publish what no client library would: any bytes that the broker takes.

use futures_util::StreamExt;
use lab::RawNats;
use support::{DEADLINE, TestEnv, until};

/// Header bytes that the NATS library refuses to read, or panics at.
const HOSTILE: [&[u8]; 6] = [
    b"NATS/1.0\r\nX: \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\nLone: a\rb\r\n\r\n",
    b"NATS/1.0\r\nno colon at all\r\n\r\n",
    b"NATS/1.0\r\n: no name\r\n\r\n",
    b"NATS/1.0 abc\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
];

async fn publish_all(env: &TestEnv) {
    let mut raw = RawNats::connect(&env.nats.url()).await.expect("connect to NATS");
    for headers in HOSTILE {
        raw.publish(b"outbox.order.forged", Some(headers), b"{}").await.expect("publish");
    }
    raw.flush().await.expect("the server takes them");
}

/// As a running relay meets them, and as one does that starts: it reads the stream's end.
#[tokio::test(flavor = "multi_thread")]
async fn messages_with_any_bytes_as_headers_are_foreign_and_stop_nothing() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    env.insert(20).await;
    env.wait_marked().await;
    publish_all(&env).await;
    // To be stored behind the others' messages: the relay has to read them first.
    env.insert(20).await;
    env.wait_marked().await;

    publish_all(&env).await;
    relay.kill9().await;
    env.insert(20).await;
    let relay = env.relay();
    env.wait_marked().await;
    let own = 60;
    until(DEADLINE, "each event is stored", async || {
        env.stored_count().await == own + 2 * HOSTILE.len() as u64
    })
    .await;
    // The last message of the stream is one of the relay's again.
    let (status, _) = env.ends_with(0, &["status", "--json"]).await;
    assert!(!status.contains("\"last_position\": null"), "{status}");
    drop(relay);
}

/// The inbox for answers is nobody's secret in an account. The library's task panics at a lone CR:
/// its client is dead from then on, and another one has to be made.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_hostile_headers_costs_a_connection_and_no_event() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.announce("panicked at");
    env.insert(20).await;
    env.wait_marked().await;
    let mut raw = RawNats::connect(&env.nats.url()).await.expect("connect to NATS");
    let client = env.nats.client().await.expect("connect to NATS");
    for (round, headers) in HOSTILE.into_iter().take(3).enumerate() {
        let mut overheard = client.subscribe("outbox.>").await.expect("subscribe");
        client.flush().await.expect("flush");
        env.insert(20).await;
        let reply = loop {
            let message = overheard.next().await.expect("what the relay publishes");
            if let Some(reply) = message.reply {
                break reply;
            }
        };
        raw.publish(reply.as_bytes(), Some(headers), b"{}").await.expect("publish");
        raw.flush().await.expect("the server takes it");
        env.insert(20).await;
        env.wait_marked().await;
        assert_eq!(env.stored_count().await, 20 + 40 * (round as u64 + 1));
    }
}
