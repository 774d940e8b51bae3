//! A stream of the same name that was made anew, and then comes back without its end.

use support::{DEADLINE, TestEnv, until};

use crate::gone_back::{StoreCopy, is_noticed};

/// What rows say of a former stream of that name is not the present one's loss. It was made anew while
/// no relay ran, or under one.
async fn made_anew(mode: &str, is_running: bool) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    env.setup().await;
    let mut relay = env.relay();
    env.insert_each(40).await;
    env.wait_marked().await;
    if mode != "poll" {
        env.wait_confirmed().await; // what is not comes into the other stream
    }
    if !is_running {
        relay.sigterm();
        relay.wait_exit(DEADLINE).await;
    }
    env.execute("UPDATE outbox_events SET published_at = published_at - interval '1 hour'").await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    env.setup().await;
    if !is_running {
        relay = env.relay();
    }
    relay.announce("the stream has lost acknowledged messages");
    env.insert_each(10).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    env.insert_each(5).await;
    env.wait_marked().await;
    copy.put_back(&mut env).await;
    is_noticed(&env, 5).await;
    until(DEADLINE, "they are published again", async || env.stored_count().await == 15).await;
    drop(relay);
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_made_anew_lacks_nothing_of_the_former_one() {
    for is_running in [false, true] {
        made_anew("fenced", is_running).await;
    }
}

mod long {
    use super::*;

    // proves: G-LOSS-6
    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_fence_a_stream_that_was_made_anew_lacks_nothing_of_the_former_one() {
        for mode in ["keyed", "poll"] {
            made_anew(mode, true).await;
        }
    }
}
