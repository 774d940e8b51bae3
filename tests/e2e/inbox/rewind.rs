//! One consumer goes back in its stream.

use async_nats::jetstream::consumer::{self, DeliverPolicy, pull};
use futures_util::StreamExt;
use lab::NatsOptions;
use outbox::Event;
use serde_json::{Value, json};
use support::{DEADLINE, TestEnvOptions, until};

use super::{Inbox, Worker};

/// The records of more than one statement are removed.
const MANY: i64 = 700;

async fn begun(mode: &str, nats: NatsOptions) -> (Inbox, Worker) {
    let options = TestEnvOptions { nats, ..TestEnvOptions::default() };
    let mut inbox = Inbox::with(options).await;
    inbox.set("WORKER_MODE", mode);
    inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
    let worker = inbox.worker();
    worker.wait_active().await;
    (inbox, worker)
}

async fn rewind(inbox: &Inbox, code: i32, more: &str) -> (String, String) {
    let args: Vec<_> =
        "inbox rewind --consumer worker".split(' ').chain(more.split_whitespace()).collect();
    inbox.env.ends_with(code, &args).await
}

async fn rewind_json(inbox: &Inbox, more: &str) -> Value {
    let (told, _) = rewind(inbox, 0, &format!("{more} --json")).await;
    serde_json::from_str(&told).expect("JSON")
}

async fn info(inbox: &Inbox, consumer: &str) -> consumer::Info {
    inbox.env.stream().await.consumer_info(consumer).await.expect("the consumer")
}

/// Each event has had its effect once, and once more for each time that its record was removed;
/// each aggregate's events were handled in order, and in order again.
async fn assert_repeated(inbox: &Inbox, n: i64, removed: i64) {
    let wrong = "(SELECT FROM effects GROUP BY event_id HAVING count(*) <> 1 + (
        SELECT count(*) FROM inbox_decisions d
        WHERE d.message_id = event_id AND decision = 'rewind')) AS t";
    assert_eq!(inbox.count(wrong).await, 0, "effects that happened too often, or not again");
    assert_eq!(inbox.count("effects").await, n + removed, "effects");
    let backwards = "(SELECT FROM (
            SELECT aggregate_id, n < lag(n) OVER (PARTITION BY aggregate_id ORDER BY place) AS back
            FROM effects) AS t
        WHERE back GROUP BY aggregate_id HAVING count(*) > 1) AS t";
    assert_eq!(inbox.count(backwards).await, 0, "aggregates that went back more than once");
}

/// What comes again is skipped, under load; another consumer of the stream is where it was.
// proves: G-REWIND-1, G-REWIND-2
#[tokio::test(flavor = "multi_thread")]
async fn a_rewound_consumer_skips_what_it_has_processed_and_nobody_else_sees_it() {
    let (inbox, worker) = begun("transactional", NatsOptions::default()).await;
    // Not acknowledged, the second one without a record, and before all that is to come again.
    inbox.env.execute("CREATE TABLE closed ()").await;
    inbox.publish_as(|_| "hot".into(), 0..2, &json!({ "while_closed": true })).await;
    let stream = inbox.env.stream().await;
    let other = pull::Config { durable_name: Some("other".into()), ..pull::Config::default() };
    let other = stream.create_consumer(other).await.expect("make the other consumer");
    inbox.publish_many(0, MANY, &json!({ "sleep_ms": 1 })).await;
    let taken = other.fetch().max_messages(100).messages().await.expect("take some");
    let taken: Vec<_> = taken.map(|it| it.expect("a message")).collect().await;
    for message in &taken {
        message.double_ack().await.expect("acknowledge");
    }
    inbox.wait_count("effects", MANY / 2).await;

    let plan = rewind_json(&inbox, "--to-sequence 101").await;
    assert_eq!(plan["state"], "planned", "{plan}");
    let plan = &plan["plan"];
    assert_eq!((&plan["from_sequence"], &plan["method"]), (&json!(101), &json!("reset")), "{plan}");
    assert_eq!((&plan["again"], &plan["worker_active"]), (&json!(false), &json!(true)), "{plan}");
    let number = |name: &str| plan[name].as_i64().expect("a number");
    assert_eq!(number("messages"), number("delivered_sequence") - 100, "{plan}");
    assert_eq!(number("skipped"), number("processed"), "{plan}");
    assert_eq!(number("begins_sequence"), 1, "what failed is not passed over: {plan}");
    assert_eq!(inbox.count("inbox_rewinds").await, 0, "a plan changes nothing");

    let (done, ()) = tokio::join!(
        rewind_json(&inbox, "--to-sequence 101 --execute --by ada --why look"),
        async {
            inbox.publish_many(MANY, MANY, &json!({ "sleep_ms": 1 })).await;
        },
    );
    assert_eq!(done["state"], "rewound", "{done}");
    let by = "inbox_rewinds WHERE outcome = 'rewound' AND requested_by LIKE '% (ada)'
        AND reason = 'look'";
    assert_eq!(inbox.count(by).await, 1);
    inbox.env.execute("DROP TABLE closed").await;
    inbox.wait_count("effects", 2 * MANY + 2).await;
    inbox.wait_acked().await;
    inbox.assert_exact(2 * MANY + 2).await;
    let delivered = info(&inbox, "worker").await.delivered;
    let again = delivered.consumer_sequence;
    assert!(again >= 2 * MANY as u64 - 100, "{again} were delivered since the rewind");
    let floor = info(&inbox, "other").await.ack_floor;
    assert_eq!((floor.stream_sequence, floor.consumer_sequence), (100, 100));
    worker.stop().await;
}

async fn again_once_more_each(mode: &str, nats: NatsOptions, method: &str) {
    let (inbox, worker) = begun(mode, nats).await;
    inbox.publish_many(0, MANY, &json!({ "sleep_ms": 1 })).await;
    inbox.wait_count("effects", MANY - 300).await;
    let (done, ()) =
        tokio::join!(rewind_json(&inbox, "--since 1h --again --execute --why fixed"), async {
            inbox.publish_many(MANY, MANY, &json!({})).await;
        },);
    assert_eq!(done["plan"]["method"], method, "{done}");
    let removed = done["rewind"]["removed"].as_i64().expect("a number");
    assert!(removed >= MANY - 300, "{done}");
    inbox.wait_count("effects", 2 * MANY + removed).await;
    inbox.wait_acked().await;
    assert_repeated(&inbox, 2 * MANY, removed).await;
    let noted = "inbox_decisions WHERE decision = 'rewind' AND reason = 'fixed'
        AND stream_seq IS NOT NULL";
    assert_eq!(inbox.count(noted).await, removed, "decisions");
    let processed = "inbox_messages WHERE status = 'PROCESSED'";
    assert_eq!(inbox.count(processed).await, 2 * MANY);
    worker.stop().await;
}

/// The records of other events stay, and so do dead letters. It goes back no further than to the first
/// event that is meant.
// proves: G-REWIND-3
#[tokio::test(flavor = "multi_thread")]
async fn of_an_aggregate_or_a_type_alone_effects_are_repeated_alone() {
    let (inbox, worker) = begun("transactional", NatsOptions::default()).await;
    inbox.publish_many(0, 200, &json!({})).await;
    let paid = Event::new("order", "o-3", "OrderPaid", &json!({ "n": 200, "fail_before": 2 }));
    let paid = paid.expect("an event");
    inbox.publish_to("outbox.order.OrderPaid", &paid).await;
    let dead = inbox.publish("o-3", json!({ "n": 201, "dead": true })).await;
    inbox.wait_count("inbox_dead_letter", 1).await;
    inbox.wait_acked().await;

    let of_one = "--since 1h --again --aggregate order:o-3";
    let plan = rewind_json(&inbox, of_one).await["plan"].clone();
    assert_eq!(
        (&plan["from_sequence"], &plan["aggregate_id"]),
        (&json!(4), &json!("o-3")),
        "{plan}"
    );
    // Three messages are before it, and twenty others and the dead letter are its own.
    for (what, n) in [("messages", 199), ("processed", 21), ("others", 177), ("dead", 1)] {
        assert_eq!(plan[what], n, "{what}: {plan}");
    }
    assert_eq!((&plan["handled"], &plan["skipped"]), (&json!(21), &json!(178)), "{plan}");
    let (text, _) = rewind(&inbox, 0, of_one).await;
    assert!(text.contains("aggregate order:o-3, handled again"), "{text}");
    assert!(text.contains("177 were processed and are not meant: skipped"), "{text}");

    let done = rewind_json(&inbox, &format!("{of_one} --execute --why fixed")).await;
    assert_eq!(done["rewind"]["removed"], 21, "{done}");
    inbox.wait_count("effects", 201 + 21).await;
    inbox.wait_acked().await;
    assert_repeated(&inbox, 201, 21).await;
    let others = "effects JOIN inbox_decisions ON message_id = event_id AND decision = 'rewind'
        WHERE aggregate_id <> 'o-3'";
    assert_eq!(inbox.count(others).await, 0, "of other aggregates");

    let done =
        rewind_json(&inbox, "--to-sequence 1 --again --type OrderPaid --execute --why late").await;
    assert_eq!(
        (&done["rewind"]["removed"], &done["rewind"]["from_sequence"]),
        (&json!(1), &json!(201))
    );
    let both = "--to-sequence 1 --again --aggregate order:o-3 --type OrderPlaced --execute --why x";
    let done = rewind_json(&inbox, both).await;
    assert_eq!(done["rewind"]["removed"], 20, "{done}");
    inbox.wait_count("effects", 201 + 21 + 1 + 20).await;
    inbox.wait_acked().await;
    let of_paid = format!("effects WHERE event_id = '{}'", paid.id);
    assert_eq!(inbox.count(&of_paid).await, 3);
    assert_eq!(inbox.count("effects").await, 201 + 21 + 1 + 20);
    let failed = format!("inbox_attempts WHERE message_id = '{}'", paid.id);
    assert_eq!(inbox.count(&failed).await, 1, "those of before went with its record");
    let letter = format!("inbox_messages WHERE message_id = '{dead}' AND status = 'DEAD'");
    assert_eq!(inbox.count(&letter).await, 1, "a dead letter is not handled again");
    worker.stop().await;
}

/// Servers before 2.14 cannot reset a consumer.
// proves: G-REWIND-3
#[tokio::test(flavor = "multi_thread")]
async fn an_old_broker_has_the_consumer_made_anew() {
    let nats = NatsOptions { version: Some("2.11.11".into()), ..NatsOptions::default() };
    again_once_more_each("transactional", nats, "made_anew").await;
}

/// The worker died, or the broker refused, between deleting the consumer and making it anew.
// proves: G-REWIND-4
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_was_deleted_for_a_rewind_begins_where_it_was_to() {
    let inbox = Inbox::new().await;
    let mut config = inbox.env.stream().await.cached_info().config.clone();
    inbox.jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    config.max_consumers = 1;
    let stream = inbox.jetstream.create_stream(config).await.expect("make it anew");
    let worker = inbox.worker();
    inbox.publish_many(0, 20, &json!({})).await;
    inbox.wait_count("effects", 20).await;
    inbox.wait_acked().await;
    worker.stop().await;

    rewind(&inbox, 0, "--to-sequence 11 --execute").await;
    let begun = "UPDATE inbox_rewinds SET begun_at = now(), reset_seq = 11";
    inbox.env.execute(begun).await;
    stream.delete_consumer("worker").await.expect("delete the consumer");
    let other = pull::Config { durable_name: Some("other".into()), ..pull::Config::default() };
    stream.create_consumer(other).await.expect("make the other consumer");
    let worker = inbox.worker();
    let tries = async || worker.log().matches("trying again").count() > 5;
    until(DEADLINE, "the broker has refused it again and again", tries).await;
    stream.delete_consumer("other").await.expect("delete the other consumer");
    inbox.wait_count("inbox_rewinds WHERE outcome = 'rewound'", 1).await;
    let policy = info(&inbox, "worker").await.config.deliver_policy;
    assert_eq!(policy, DeliverPolicy::ByStartSequence { start_sequence: 11 });
    inbox.publish_many(20, 1, &json!({})).await;
    inbox.wait_count("effects", 21).await;
    inbox.wait_acked().await;
    inbox.assert_exact(21).await;
    worker.stop().await;
}

/// Who does not say why, or what makes sense, changes nothing.
// proves: G-REWIND-1
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_that_makes_no_sense_is_refused() {
    let (mut inbox, worker) = begun("transactional", NatsOptions::default()).await;
    inbox.publish_many(0, 20, &json!({})).await;
    inbox.wait_count("effects", 20).await;
    inbox.wait_acked().await;
    let (_, told) = rewind(&inbox, 2, "--to-sequence 1 --again --execute").await;
    assert!(told.contains("--again needs --why TEXT"), "{told}");
    rewind(&inbox, 2, "--to-sequence 1 --since 1h").await;
    rewind(&inbox, 2, "").await;
    let (_, told) = rewind(&inbox, 4, "--to-sequence 21 --execute").await;
    assert!(told.contains("a rewind only goes back"), "{told}");
    let future = "--since 2100-01-01T00:00:00Z --execute";
    let (_, told) = rewind(&inbox, 4, future).await;
    assert!(told.contains("which is at sequence 20"), "{told}");
    let unknown = ["inbox", "rewind", "--consumer", "nobody", "--since", "1h", "--execute"];
    let (_, told) = inbox.env.ends_with(3, &unknown).await;
    assert!(told.contains("stream \"OUTBOX\" has no consumer \"nobody\""), "{told}");
    for (filter, problem) in [
        ("--aggregate order:o-1", "--aggregate and --type need --again"),
        ("--again --aggregate order", "expected TYPE:ID, such as order:o-17"),
        ("--again --type=", "a value is required for '--type"),
    ] {
        let (_, told) = rewind(&inbox, 2, &format!("--to-sequence 1 {filter}")).await;
        assert!(told.contains(problem), "{told}");
    }
    let (_, told) = rewind(&inbox, 4, "--to-sequence 1 --again --type Orderplaced").await;
    assert!(
        told.contains("no message from sequence 1 on that was delivered is of type Orderplaced")
    );
    let (_, told) = rewind(&inbox, 3, "--cancel").await;
    assert!(told.contains("no rewind of worker"), "{told}");

    // The stream has lost its beginning, and says so.
    let stream = inbox.env.stream().await;
    stream.purge().sequence(11).await.expect("purge");
    let plan = rewind_json(&inbox, "--to-sequence 1").await["plan"].clone();
    assert_eq!((&plan["from_sequence"], &plan["messages"]), (&json!(11), &json!(10)), "{plan}");
    assert_eq!(plan["reaches_beyond_stream"], true, "{plan}");
    let (text, _) = rewind(&inbox, 0, "--since 1h --again").await;
    assert!(text.contains("no longer in the stream"), "{text}");
    assert!(text.contains("THEIR EFFECTS REPEAT"), "{text}");

    // Without a worker it waits for one, and can be withdrawn.
    worker.stop().await;
    let (told, _) = rewind(&inbox, 0, "--to-sequence 11 --execute").await;
    assert!(told.contains("requested: the next worker"), "{told}");
    rewind(&inbox, 4, "--to-sequence 12 --execute").await;
    let other = "--to-sequence 11 --again --type OrderPlaced --execute --why x";
    let (_, told) = rewind(&inbox, 4, other).await;
    assert!(told.contains("to sequence 11 already, as"), "{told}");
    rewind(&inbox, 0, "--cancel").await;
    assert_eq!(inbox.count("inbox_rewinds WHERE outcome = 'cancelled'").await, 1);
    inbox.set("WORKER_CONSUMER", "worker");
    let worker = inbox.worker();
    worker.wait_active().await;
    inbox.publish_many(20, 20, &json!({})).await;
    inbox.wait_count("effects", 40).await;
    inbox.assert_exact(40).await;
    worker.stop().await;
}

/// By other means than the command. The counts of its deliveries begin anew, so those that a
/// session keeps mean nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_somebody_resets_begins_anew() {
    let (inbox, worker) = begun("transactional", NatsOptions::default()).await;
    inbox.publish_many(0, 200, &json!({})).await;
    inbox.wait_count("effects", 200).await;
    inbox.wait_acked().await;
    let stream = inbox.env.stream().await;
    stream.reset_consumer("worker", Some(150)).await.expect("reset the consumer");
    worker.wait_log("reset or changed: beginning anew").await;
    inbox.publish_many(200, 200, &json!({})).await;
    inbox.wait_count("effects", 400).await;
    inbox.wait_acked().await;
    inbox.assert_exact(400).await;
    worker.stop().await;
}

/// The broker has everything acknowledged once more while records are removed: a stranger did that, or
/// it has not written down that the consumer was reset.
// proves: G-REWIND-3
#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_while_records_are_removed_is_handled_again() {
    let (inbox, worker) = begun("transactional", NatsOptions::default()).await;
    worker.announce("the consumer goes back");
    let ids = inbox.publish_many(0, MANY, &json!({})).await;
    inbox.wait_count("effects", MANY).await;
    let noted = async || inbox.count(&format!("inbox_roles WHERE handled_to = {MANY}")).await == 1;
    until(DEADLINE, "it is written down that all is handled", noted).await;

    let mut client = inbox.env.client().await;
    let lock = client.transaction().await.expect("begin");
    let held = "SELECT FROM inbox_messages WHERE message_id = $1 FOR UPDATE";
    lock.execute(held, &[&ids[600]]).await.expect("hold a record");
    let rewound = rewind_json(&inbox, "--to-sequence 1 --again --execute --why fixed");
    let acknowledged = async {
        let half = async || inbox.count("inbox_rewinds WHERE removed = 500").await == 1;
        until(DEADLINE, "records are removed", half).await;
        let stream = inbox.env.stream().await;
        let consumer: consumer::PullConsumer =
            stream.get_consumer("worker").await.expect("the consumer");
        let messages = consumer.fetch().max_messages(ids.len()).messages().await;
        let mut messages = messages.expect("messages");
        while let Some(message) = messages.next().await {
            message.expect("a message").double_ack().await.expect("acknowledge");
        }
        assert_eq!(info(&inbox, "worker").await.ack_floor.stream_sequence, 700);
        lock.rollback().await.expect("let go");
    };
    let (done, ()) = tokio::join!(rewound, acknowledged);
    assert_eq!(done["rewind"]["removed"], MANY, "{done}");
    inbox.wait_count("effects", 2 * MANY).await;
    inbox.wait_acked().await;
    assert_repeated(&inbox, MANY, MANY).await;
    worker.stop().await;
}

mod long {
    use super::*;

    /// With a worker at work and new events.
    // proves: G-REWIND-3
    #[tokio::test(flavor = "multi_thread")]
    async fn rewound_with_again_each_event_has_its_effect_once_more_and_in_order() {
        for mode in ["transactional", "leased"] {
            again_once_more_each(mode, NatsOptions::default(), "reset").await;
        }
    }

    /// The consumer is reset, and some of the records are removed, when worker and command die.
    // proves: G-REWIND-4
    #[tokio::test(flavor = "multi_thread")]
    async fn a_rewind_that_is_interrupted_goes_on_and_repeats_nothing_twice() {
        let (inbox, worker) = begun("transactional", NatsOptions::default()).await;
        let ids = inbox.publish_many(0, MANY, &json!({})).await;
        inbox.wait_count("effects", MANY).await;
        inbox.wait_acked().await;

        let mut client = inbox.env.client().await;
        let lock = client.transaction().await.expect("begin");
        let held = "SELECT FROM inbox_messages WHERE message_id = $1 FOR UPDATE";
        lock.execute(held, &[&ids[600]]).await.expect("hold a record");
        let words = "inbox rewind --consumer worker --to-sequence 1 --again --execute --why fixed";
        let words: Vec<_> = words.split(' ').collect();
        let command = inbox.env.spawn(&words);
        let half = async || inbox.count("inbox_rewinds WHERE removed = 500").await == 1;
        until(DEADLINE, "records are removed", half).await;
        assert_eq!(info(&inbox, "worker").await.delivered.stream_sequence, 0, "it is reset");
        worker.kill9().await;
        command.kill9().await;
        // Of its own accord the server would notice when the lock is free.
        let waiting = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock'";
        inbox.env.query::<i64>(waiting).await;
        lock.rollback().await.expect("let go");
        assert_eq!(inbox.count("effects").await, MANY, "nothing is handled in between");
        let (_, told) = rewind(&inbox, 4, "--to-sequence 7 --execute").await;
        assert!(told.contains("is to be rewound to sequence 1 already"), "{told}");

        let worker = inbox.worker();
        let (told, _) = inbox.env.ends_with(0, &words).await;
        let done = "worker is rewound to sequence 1; 700 processed events are handled again";
        assert!(told.contains(done), "{told}");
        inbox.wait_count("effects", 2 * MANY).await;
        inbox.wait_acked().await;
        assert_repeated(&inbox, MANY, MANY).await;
        worker.stop().await;
    }
}
