//! One aggregate without progress, and more followers than a worker holds in memory.

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::ConsumerLimits;
use serde_json::json;
use support::{DEADLINE, until};

use super::Inbox;

const OTHERS: i64 = 20;

/// A smaller `max_ack_pending` that an operator chose stays; once it is used up, it is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_an_operator_chose_stays_and_is_named_when_it_is_reached() {
    let mut inbox = Inbox::new().await;
    let chosen = pull::Config {
        durable_name: Some("worker".into()),
        max_ack_pending: 400,
        ..pull::Config::default()
    };
    inbox.env.stream().await.create_consumer(chosen).await.expect("make the consumer");
    inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
    inbox.set("WORKER_BACKOFF_MS", "3000");
    inbox.env.execute("CREATE TABLE closed ()").await;
    let hot = |_| "hot".to_owned();
    inbox.publish_as(hot, 0..1, &json!({ "while_closed": true })).await;
    inbox.publish_as(hot, 1..600, &json!({})).await;
    let worker = inbox.worker();
    worker.wait_log("nothing more is taken in").await;
    worker.wait_log("nats consumer edit OUTBOX worker --max-pending=1300000").await;
    let info = inbox.env.stream().await.consumer_info("worker").await.expect("the consumer");
    assert_eq!(info.config.max_ack_pending, 400);

    inbox.env.execute("DROP TABLE closed").await;
    inbox.wait_count("effects", 600).await;
    inbox.wait_acked().await;
    inbox.assert_exact(600).await;
    worker.stop().await;
}

/// A stream may allow its consumers less than is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_takes_what_its_stream_allows() {
    let inbox = Inbox::new().await;
    let mut config = inbox.env.stream().await.cached_info().config.clone();
    let limits = ConsumerLimits { max_ack_pending: 500, ..ConsumerLimits::default() };
    config.consumer_limits = Some(limits);
    inbox.jetstream.update_stream(&config).await.expect("limit the consumers");
    inbox.publish_many(0, 10, &json!({})).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 10).await;
    let info = inbox.env.stream().await.consumer_info("worker").await.expect("the consumer");
    assert_eq!(info.config.max_ack_pending, 500);
    worker.stop().await;
}

mod long {
    use super::*;

    /// The followers of an event that fails take no room from other aggregates; a worker that
    /// begins with them does as well. When it succeeds they follow, in order and once.
    // proves: G-EFFECT-2
    #[tokio::test(flavor = "multi_thread")]
    async fn followers_of_a_failing_event_hold_up_nobody_else() {
        for (mode, followers) in [("transactional", 3_000), ("leased", 1_000)] {
            let mut inbox = Inbox::new().await;
            inbox.set("WORKER_MODE", mode);
            inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
            inbox.env.execute("CREATE TABLE closed ()").await;
            let hot = |_| "hot".to_owned();
            inbox.publish_as(hot, 0..1, &json!({ "while_closed": true })).await;
            inbox.publish_as(hot, 1..followers + 1, &json!({})).await;
            let others = "effects WHERE aggregate_id <> 'hot'";
            let first = inbox.worker();
            first.wait_log("are left in the stream").await;
            inbox.publish_many(0, OTHERS, &json!({})).await;
            inbox.wait_count(others, OTHERS).await;

            inbox.wait_count("inbox_messages WHERE status = 'PROCESSED'", OTHERS).await;
            first.kill9().await;
            let second = inbox.worker();
            inbox.publish_many(OTHERS, OTHERS, &json!({})).await;
            inbox.wait_count(others, 2 * OTHERS).await;
            assert_eq!(inbox.count("effects WHERE aggregate_id = 'hot'").await, 0, "{mode}");
            second.wait_log("are left in the stream").await;

            inbox.env.execute("DROP TABLE closed").await;
            let all = 1 + followers + 2 * OTHERS;
            inbox.wait_count("effects", all).await;
            inbox.wait_acked().await;
            inbox.assert_exact(all).await;
            let again = "inbox_messages WHERE attempts > 1";
            assert_eq!(inbox.count(again).await, 1, "{mode}: followers were begun once");
            second.stop().await;
        }
    }

    /// Many more than fit into memory; a million are in the tests of the lanes, and the broker lets as
    /// many be without an acknowledgement.
    #[tokio::test(flavor = "multi_thread")]
    async fn very_many_followers_of_a_failing_event_hold_up_nobody() {
        const FOLLOWERS: u64 = 30_000;
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
        inbox.env.execute("CREATE TABLE closed ()").await;
        let hot = |_| "hot".to_owned();
        inbox.publish_as(hot, 0..1, &json!({ "while_closed": true })).await;
        let worker = inbox.worker();
        inbox.publish_quickly("hot", FOLLOWERS, &json!({})).await;
        inbox.publish_many(0, OTHERS, &json!({})).await;
        inbox.wait_count("effects", OTHERS).await;
        let info = inbox.env.stream().await.consumer_info("worker").await.expect("the consumer");
        assert!(info.config.max_ack_pending > 1_000_000, "{}", info.config.max_ack_pending);
        worker.kill9().await;
    }

    /// Many aggregates fail, each with followers: others are handled all the same. When all get on at
    /// once, what was left of them is read as there is room for it.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_left_of_many_aggregates_takes_no_room_from_others() {
        const AGGREGATES: i64 = 100;
        const FOLLOWERS: i64 = 50;
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
        inbox.set("WORKER_BATCH", "8");
        inbox.env.execute("CREATE TABLE closed ()").await;
        let aggregate = |n: i64| format!("o-{}", n % AGGREGATES);
        inbox.publish_as(aggregate, 0..AGGREGATES, &json!({ "while_closed": true })).await;
        let large = json!({ "sleep_ms": 5, "text": "x".repeat(24 * 1024) });
        let all = AGGREGATES * (1 + FOLLOWERS);
        let worker = inbox.worker();
        for first in (AGGREGATES..all).step_by(1_000) {
            inbox.publish_as(aggregate, first..(first + 1_000).min(all), &large).await;
        }
        let info = async || {
            let stream = inbox.jetstream.get_stream("OUTBOX").await.expect("the stream");
            stream.consumer_info("worker").await
        };
        until(DEADLINE, "all is delivered", async || {
            info().await.is_ok_and(|it| it.delivered.stream_sequence >= all.cast_unsigned())
        })
        .await;
        inbox.env.execute("DROP TABLE closed").await;
        inbox.wait_count("effects", 3 * AGGREGATES).await;
        let most = worker.peak_memory() >> 10;
        eprintln!("peak of memory: {most} KiB");
        assert!(most < 64 * 1024, "{most} KiB were used for what takes 32 MiB at most");
        worker.kill9().await;
    }

    /// A broker that is killed forgets acknowledgements that it has confirmed, and of what was left in
    /// the stream it knows that it is to be delivered again in a day.
    // proves: G-EFFECT-2
    #[tokio::test(flavor = "multi_thread")]
    async fn acknowledgements_that_the_broker_forgot_are_given_again() {
        // More than are read again whenever a connection is lost.
        const FOLLOWERS: u64 = 10_200;
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
        inbox.env.execute("CREATE TABLE closed ()").await;
        inbox.publish_as(|_| "hot".to_owned(), 0..1, &json!({ "while_closed": true })).await;
        let worker = inbox.worker();
        inbox.publish_quickly("hot", FOLLOWERS, &json!({})).await;
        let all = usize::try_from(FOLLOWERS).expect("some") + 1;
        let stream = inbox.env.stream().await;
        until(DEADLINE, "all are delivered", async || {
            let info = stream.consumer_info("worker").await;
            info.is_ok_and(|info| info.num_ack_pending == all)
        })
        .await;

        let name = &stream.cached_info().config.name;
        let state = format!("jetstream/$G/streams/{name}/obs/worker/o.dat");
        let state = inbox.env.nats.store_dir().join(state);
        inbox.env.nats.stop().await.expect("stop NATS");
        let before = std::fs::read(&state).expect("the consumer's state");
        inbox.env.nats.start_again().await.expect("start NATS");
        inbox.env.execute("DROP TABLE closed").await;
        let all = i64::try_from(all).expect("some");
        // One after the other, as they are of one aggregate.
        let count = async || inbox.count("effects").await;
        until(4 * DEADLINE, "all have their effects", async || count().await == all).await;
        inbox.wait_acked().await;

        inbox.env.nats.stop().await.expect("stop NATS");
        std::fs::write(&state, before).expect("put the consumer's state back");
        inbox.env.nats.start_again().await.expect("start NATS");
        inbox.wait_acked().await;
        inbox.assert_exact(all).await;
        worker.stop().await;
    }
}
