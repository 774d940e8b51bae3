//! One server of a cluster tells where the stream ends, and another one, which was its leader until just
//! now, does not have its last message yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_nats::Client;
use futures_util::StreamExt;
use lab::Direction;
use serde_json::Value;
use support::{DEADLINE, TestEnv, until};
use tokio::task::JoinHandle;

const NO_MESSAGE: &str = r#"{"type":"io.nats.jetstream.api.v1.stream_msg_get_response",
    "error":{"code":404,"err_code":10037,"description":"no message found"}}"#;

/// Passes requests on to the stream's API. The first `times` requests for a message are answered as by a
/// server that lacks it.
fn pass_on(client: Client, lacked: u64, times: u32) -> (Arc<AtomicU32>, JoinHandle<()>) {
    let left = Arc::new(AtomicU32::new(times));
    let lacks = Arc::clone(&left);
    let task = tokio::spawn(async move {
        let mut requests = client.subscribe("MOCK.API.>").await.expect("subscribe");
        client.flush().await.expect("flush");
        while let Some(request) = requests.next().await {
            let Some(reply) = request.reply else { continue };
            let subject = request.subject.replacen("MOCK.API", "$JS.API", 1);
            let asked = serde_json::from_slice::<Value>(&request.payload).unwrap_or_default();
            let is_lacked = subject.contains(".MSG.GET.") && asked["seq"] == lacked;
            let less = |it: u32| it.checked_sub(1);
            let take = || lacks.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok();
            let answer = match is_lacked && take() {
                true => NO_MESSAGE.into(),
                false => match client.request(subject, request.payload).await {
                    Ok(answer) => answer.payload,
                    Err(_) => continue, // the relay asks again
                },
            };
            client.publish(reply, answer).await.expect("answer");
        }
    });
    (left, task)
}

async fn is_not_stored_again(removed: &[usize]) {
    let mut env = TestEnv::proxied().await;
    env.set("TAILPOST_RELAY__MARK", "lean"); // without ids the stream's tail has to do the work
    env.setup().await;
    let (left, task) = pass_on(env.nats.client().await.expect("connect to NATS"), 6, 1);
    env.set("TAILPOST_NATS__API_PREFIX", "MOCK.API");
    let relay = env.relay();
    let mut ids = env.insert_each(5).await;
    env.wait_stored(5).await;
    for seq in removed {
        env.delete_message(*seq as u64).await;
    }
    // It is stored, and the answer does not arrive.
    env.to_nats().blackhole(Direction::ToClient);
    ids.extend(env.insert(1).await);
    env.wait_stored(6 - removed.len() as u64).await;
    env.to_nats().restore().await.expect("restore the network");
    until(DEADLINE, "the message was lacking", async || left.load(Ordering::Acquire) == 0).await;
    ids.extend(env.insert_each(5).await);
    env.wait_stored(11 - removed.len() as u64).await;
    env.ends_with(0, &["wait", "--all", "--timeout", "30s"]).await;
    for (at, seq) in removed.iter().enumerate() {
        ids.remove(*seq - 1 - at);
    }
    assert_eq!(env.stored_ids().await, ids);
    assert_eq!(relay.exited(), None);
    task.abort();
}

// proves: G-ONCE-4
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_a_server_lacks_for_a_moment_is_not_stored_again() {
    is_not_stored_again(&[]).await;
}

/// One that was removed before does not count for it.
// proves: G-ONCE-4
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_a_server_lacks_beside_removed_ones_is_not_stored_again() {
    is_not_stored_again(&[2, 3]).await;
}
