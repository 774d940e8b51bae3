//! Whatever another client stores in the stream, the consumer goes on.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull, push};
use lab::{HostileMessage, Messages, RawNats};
use outbox::Event;
use serde_json::json;
use support::{DEADLINE, TestEnvOptions, until};
use uuid::Uuid;

use super::Inbox;

impl Inbox {
    pub(super) async fn publish_raw(&self, raw: &mut RawNats, message: &HostileMessage) {
        let subject = message.subject("outbox");
        raw.publish(&subject, message.headers.as_deref(), &message.body).await.expect("publish");
        raw.flush().await.unwrap_or_else(|error| panic!("{}: {error:#}", message.about));
    }

    /// All that is in the stream has been handled or is a dead letter, and these have been handled.
    async fn assert_nobody_stopped(&self, good: &[Uuid]) {
        // Many of them cost a connection each.
        until(3 * DEADLINE, "everything is acknowledged", async || self.is_acked().await).await;
        let ids = good.iter().map(Uuid::to_string).collect::<Vec<_>>().join(",");
        let handled = format!(
            "(SELECT DISTINCT event_id FROM effects WHERE event_id = ANY('{{{ids}}}')) AS t"
        );
        assert_eq!(self.count(&handled).await, i64::try_from(good.len()).expect("few"));
        let stored = self.env.stream().await.cached_info().state.messages;
        let known = self.count("(SELECT DISTINCT stream_seq FROM inbox_messages) AS t").await;
        assert_eq!(known.cast_unsigned(), stored, "messages that have a record");
        let letters = "inbox_messages AS m WHERE status = 'DEAD' AND NOT EXISTS (SELECT
            FROM inbox_dead_letter AS d WHERE d.message_id = m.message_id)";
        assert_eq!(self.count(letters).await, 0, "dead without a letter");
    }

    /// Where no worker was killed: a leased handler that was at work then is called again.
    async fn assert_nothing_twice(&self) {
        let twice = "(SELECT FROM effects GROUP BY event_id HAVING count(*) > 1) AS t";
        assert_eq!(self.count(twice).await, 0, "effects that happened twice");
    }
}

/// One of each kind between good ones.
async fn every_kind_is_survived(mode: &str) {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", mode);
    let worker = inbox.worker();
    worker.wait_active().await;
    let mut raw = RawNats::connect(&inbox.env.nats.url()).await.expect("connect by hand");
    let mut good = Vec::new();
    for (n, message) in (0..).zip(Messages::new(1).every()) {
        inbox.publish_raw(&mut raw, &message).await;
        good.extend(inbox.publish_many(n, 1, &json!({})).await);
    }
    inbox.assert_nobody_stopped(&good).await;
    inbox.assert_nothing_twice().await;
    let unreadable = "inbox_dead_letter WHERE cause = 'unreadable'";
    assert!(inbox.count(unreadable).await > 30);
    let raw_headers = "inbox_dead_letter WHERE raw_headers IS NOT NULL AND headers = '{}'";
    assert!(inbox.count(raw_headers).await > 0, "header blocks are kept as they were");
    let partitions = "pg_inherits WHERE inhparent = 'inbox_messages'::regclass";
    assert!(inbox.count(partitions).await <= 8, "no partitions for hostile dates");
    worker.stop().await;
}

// proves: G-LETTER-3
#[tokio::test(flavor = "multi_thread")]
async fn any_message_of_another_client_is_handled_or_parked_under_leases() {
    every_kind_is_survived("leased").await;
}

// proves: G-LETTER-3
#[tokio::test(flavor = "multi_thread")]
async fn any_message_of_another_client_is_handled_or_parked_in_transactions() {
    every_kind_is_survived("transactional").await;
}

/// Random ones, and a worker that is killed among them.
// proves: G-LETTER-3
#[tokio::test(flavor = "multi_thread")]
async fn random_messages_of_another_client_stop_nobody() {
    let seed = std::env::var("REPLAY_SEED").ok().and_then(|it| it.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    eprintln!("REPLAY_SEED={seed}");
    let mut messages = Messages::new(seed);
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    inbox.set("WORKER_LEASE_MS", "2000");
    inbox.set("WORKER_ACK_WAIT_MS", "5000");
    let worker = inbox.worker();
    worker.wait_active().await;
    let mut raw = RawNats::connect(&inbox.env.nats.url()).await.expect("connect by hand");
    let mut good = Vec::new();
    for n in 0..60 {
        inbox.publish_raw(&mut raw, &messages.draw()).await;
        if n % 10 == 9 {
            good.extend(inbox.publish_many(n, 5, &json!({})).await);
        }
    }
    worker.kill9().await;
    let worker = inbox.worker();
    inbox.assert_nobody_stopped(&good).await;
    worker.stop().await;
}

const REFUSE: &str = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.subject LIKE '%Refused' AND NEW.status <> 'DEAD' THEN
            RAISE EXCEPTION 'not this one' USING ERRCODE = '22P05', DETAIL = 'secret';
        END IF; RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON inbox_messages
        FOR EACH ROW EXECUTE FUNCTION refuse()";

/// The database refuses what there is to write about one event: a trigger here, in place of all
/// that may refuse.
// proves: G-LETTER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_record_is_refused_becomes_a_dead_letter_alone() {
    for mode in ["leased", "transactional"] {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MODE", mode);
        let client = inbox.env.client().await;
        client.batch_execute(REFUSE).await.expect("make the trigger");
        let mut good = inbox.publish_many(0, 20, &json!({})).await;
        let refused = Event::new("order", "o-1", "Refused", &json!({})).expect("an event");
        inbox.publish_to("outbox.order.Refused", &refused).await;
        good.extend(inbox.publish_many(20, 20, &json!({})).await);
        let worker = inbox.worker();
        inbox.assert_nobody_stopped(&good).await;
        inbox.assert_nothing_twice().await;
        let letter = "inbox_dead_letter WHERE cause = 'unrecordable' AND raw_headers IS NOT NULL
            AND reason LIKE '%not this one (22P05)' AND reason NOT LIKE '%secret%'";
        assert_eq!(inbox.count(letter).await, 1);
        worker.stop().await;
    }
}

/// A message that is larger than all that is asked for at a time, and one behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_larger_than_a_request_is_handled() {
    let mut options = TestEnvOptions::default();
    options.nats.max_payload = Some(40 * 1024 * 1024);
    let inbox = Inbox::with(options).await;
    let mut large = Event::new("order", "o-1", "OrderPlaced", &json!({})).expect("an event");
    large.payload = format!("{{\"n\": 1, \"fill\": \"{}\"}}", "x".repeat(20 << 20)).into();
    inbox.publish_event(&large).await;
    let mut good = inbox.publish_many(2, 5, &json!({})).await;
    good.push(large.id);
    let worker = inbox.worker();
    inbox.assert_nobody_stopped(&good).await;
    inbox.assert_nothing_twice().await;
    worker.stop().await;
}

/// What the configuration says holds for a durable consumer that is there already.
#[tokio::test(flavor = "multi_thread")]
async fn a_durable_consumer_that_is_configured_otherwise_is_changed() {
    let mut inbox = Inbox::new().await;
    let found = pull::Config {
        durable_name: Some("worker".into()),
        filter_subject: "outbox.payment.>".into(),
        headers_only: true,
        max_deliver: 3,
        max_ack_pending: 1,
        max_batch: 1,
        backoff: vec![Duration::from_secs(3600)],
        ..pull::Config::default()
    };
    inbox.env.stream().await.create_consumer(found).await.expect("make the consumer");
    inbox.set("WORKER_SUBJECTS", "outbox.order.>,outbox.parcel.>");
    let good = inbox.publish_many(0, 30, &json!({})).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 30).await;
    inbox.assert_nobody_stopped(&good).await;
    inbox.assert_nothing_twice().await;
    let info = inbox.env.stream().await.consumer_info("worker").await.expect("the consumer");
    assert_eq!(info.config.filter_subjects, ["outbox.order.>", "outbox.parcel.>"]);
    assert_eq!((info.config.max_deliver, info.config.ack_wait), (-1, Duration::from_secs(30)));
    assert!(!info.config.headers_only && info.config.backoff.is_empty());
    worker.stop().await;
}

/// What cannot be changed is refused, with the command that mends it; it is made anew then.
#[tokio::test(flavor = "multi_thread")]
async fn a_durable_consumer_that_cannot_be_changed_is_refused_with_the_command() {
    let inbox = Inbox::new().await;
    let stream = inbox.env.stream().await;
    let mended = "`nats consumer rm OUTBOX worker` deletes it";
    let refused = async |reason: &str| {
        let worker = inbox.worker();
        assert!(!worker.wait_exit(DEADLINE).await.success(), "{reason}");
        let log = worker.log();
        assert!(log.contains(reason) && log.contains(mended), "{reason}: {log}");
        stream.delete_consumer("worker").await.expect("delete the consumer");
    };
    let pull = pull::Config { durable_name: Some("worker".into()), ..pull::Config::default() };
    for (found, reason) in [
        (pull::Config { ack_policy: AckPolicy::All, ..pull.clone() }, "its ack_policy"),
        (
            pull::Config { replay_policy: ReplayPolicy::Original, ..pull.clone() },
            "its replay_policy",
        ),
        (
            pull::Config { deliver_policy: DeliverPolicy::Last, ..pull.clone() },
            "its deliver_policy",
        ),
    ] {
        stream.create_consumer(found).await.expect("make the consumer");
        refused(reason).await;
    }
    let pushed = push::Config {
        durable_name: Some("worker".into()),
        deliver_subject: "pushed".into(),
        ..push::Config::default()
    };
    stream.create_consumer(pushed).await.expect("make the consumer");
    refused("it is a push consumer").await;

    inbox.publish_many(0, 10, &json!({})).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 10).await;
    worker.stop().await;
}

/// The database refuses to say anything about an event that somebody else is at work on, or that is a
/// dead letter: it is acknowledged when it has a letter, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_record_is_refused_is_not_acknowledged_without_its_letter() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    inbox.forget_ids().await;
    let event = Event::new("order", "o-1", "Refused", &json!({})).expect("an event");
    let at_work = format!(
        "INSERT INTO inbox_messages (consumer, message_id, event_time, subject, stream, stream_seq,
             status, attempts, lease_owner, lease_token, claimed_at, expires_at)
         VALUES ('worker', '{}', '{}', 'outbox.order.Refused', 'OUTBOX', 1, 'PROCESSING', 1,
             'somebody else', gen_random_uuid(), now(), now() + interval '5 s')",
        event.id, event.occurred_at
    );
    inbox.env.execute(&at_work).await;
    inbox.env.client().await.batch_execute(REFUSE).await.expect("make the trigger");
    inbox.publish_to("outbox.order.Refused", &event).await;
    let worker = inbox.worker();
    inbox.wait_acked().await;
    assert_eq!(inbox.count("inbox_dead_letter WHERE cause = 'unrecordable'").await, 1);

    let again = async || inbox.publish_to("outbox.order.Refused", &event).await;
    until(DEADLINE, "the stream has forgotten its id", again).await;
    inbox.wait_acked().await;
    assert_eq!(inbox.count("inbox_dead_letter WHERE stream_seq = 1").await, 1);
    worker.stop().await;
}
