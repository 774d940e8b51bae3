//! An event that can never be stored is put aside, with a reason, and stops nobody.

use support::{DEADLINE, Rig, RigOptions, until};
use testbed::NatsOptions;
use uuid::Uuid;

async fn with_small_payloads() -> Rig {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let rig = Rig::with(RigOptions { nats, ..RigOptions::default() }).await;
    rig.setup().await;
    rig
}

/// Inserts `n` events of three aggregates; every tenth, from the fifth on, is too large. Returns
/// the ids of the others and of those, each in order.
async fn insert_with_poison(rig: &Rig, n: i32) -> (Vec<Uuid>, Vec<Uuid>) {
    let sql = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               SELECT gen_random_uuid(), 'order', 'o-' || n % 3, 'OrderPlaced',
                   jsonb_build_object('n', n, 'x', repeat('x', CASE n % 10 WHEN 5 THEN 9000 ELSE 9 END))
               FROM generate_series(1, $1) AS n
               RETURNING id, octet_length(payload::TEXT) > 9000";
    let rows = rig.client().await.query(sql, &[&n]).await.expect("insert events");
    let (poison, good): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get::<_, bool>(1));
    let ids = |rows: Vec<&tokio_postgres::Row>| rows.into_iter().map(|row| row.get(0)).collect();
    (ids(good), ids(poison))
}

async fn limit_messages(rig: &Rig, max_message_size: i32) {
    let mut config = rig.stream().await.cached_info().config.clone();
    config.max_message_size = max_message_size;
    let jetstream = rig.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(config).await.expect("limit the stream");
}

async fn dead_letters(rig: &Rig) -> Vec<(Uuid, String)> {
    let sql = "SELECT id, reason FROM outbox_dead_letter ORDER BY (payload->>'n')::INT";
    let rows = rig.client().await.query(sql, &[]).await.expect("dead letters");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// R-REL-10, R-REL-09, R-REL-03, R-OUT-05
// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_over_the_brokers_limit_is_parked_and_the_others_stay_in_order() {
    let rig = with_small_payloads().await;
    let _relay = rig.relay();
    let (good, poison) = insert_with_poison(&rig, 1_000).await;
    rig.wait_stored(good.len() as u64).await;
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await, good);

    let (ids, reasons): (Vec<_>, Vec<_>) = dead_letters(&rig).await.into_iter().unzip();
    assert_eq!(ids, poison);
    let clear = "payload and headers exceed the broker's max_payload of 4096 bytes";
    assert!(reasons.iter().all(|it| it == clear), "{:?}", reasons[0]);
    let kept = "SELECT bool_and(octet_length(payload->>'x') = 9000) FROM outbox_dead_letter";
    assert!(rig.query::<bool>(kept).await, "a dead letter lost its payload");
    let known = "SELECT count(*) FROM outbox_status WHERE status = 'DEAD'";
    assert_eq!(rig.query::<i64>(known).await, 100);

    let (text, _) = rig.ends_with(0, &["status"]).await;
    assert!(text.contains("dead letters 100, oldest"), "{text}");
    assert!(text.contains(&format!("the latest: {clear}")), "{text}");
    let (json, _) = rig.ends_with(0, &["status", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["outbox"]["dead_letters"], 100);
    assert_eq!(json["outbox"]["latest_dead_letter_reason"], clear);
    assert_eq!(json["outbox"]["unpublished"], 0);
}

/// R-REL-10: once the slot is confirmed, a dead letter is all that is left of its event's turn.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_parked_durably_where_commits_do_not_wait_for_the_disk() {
    let rig = with_small_payloads().await;
    rig.execute(
        "DO $$ BEGIN
             EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database());
         END $$;
         CREATE TABLE how (durable TEXT);
         CREATE FUNCTION note() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO how VALUES (current_setting('synchronous_commit'));
             RETURN NEW;
         END $$;
         CREATE TRIGGER note BEFORE INSERT ON outbox_dead_letter
             FOR EACH ROW EXECUTE FUNCTION note()",
    )
    .await;
    let relay = rig.relay();
    relay.wait_active().await;
    let (good, poison) = insert_with_poison(&rig, 10).await;
    rig.wait_stored(good.len() as u64).await;
    let parked = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "parked", async || rig.query::<i64>(parked).await == 1).await;
    assert_eq!(poison.len(), 1);
    assert_eq!(rig.query::<String>("SELECT min(durable) FROM how").await, "on");
}

/// R-REL-10, R-REL-09
#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_streams_limit_is_parked_and_the_others_stay_in_order() {
    let rig = Rig::new().await;
    rig.setup().await;
    limit_messages(&rig, 4_096).await;

    let _relay = rig.relay();
    let (good, poison) = insert_with_poison(&rig, 100).await;
    rig.wait_stored(good.len() as u64).await;
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await, good);
    let (ids, reasons): (Vec<_>, Vec<_>) = dead_letters(&rig).await.into_iter().unzip();
    assert_eq!(ids, poison);
    assert!(reasons.iter().all(|it| it.contains("message size exceeds maximum")), "{reasons:?}");
}

/// R-REL-10, R-REL-09, R-DLQ-03: headers beyond what the broker takes. Mended, the event is published
/// within the duplicate window: the broker does not take its id for one that it has.
#[tokio::test(flavor = "multi_thread")]
async fn headers_over_the_brokers_limit_are_parked_and_published_once_mended() {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    rig.setup().await;
    let _relay = rig.relay();
    let mut expected = rig.insert(20).await;
    let poison: Uuid = rig
        .query(
            "INSERT INTO outbox_events
                 (id, aggregate_type, aggregate_id, event_type, payload, headers)
             VALUES (gen_random_uuid(), 'order', 'o-1', 'OrderPlaced', '{}',
                 jsonb_build_object('note', repeat('x', 65536))) RETURNING id",
        )
        .await;
    expected.extend(rig.insert(20).await);
    rig.wait_stored(40).await;
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await, expected);
    let dead = dead_letters(&rig).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].0, poison);
    assert!(dead[0].1.contains("header size exceeds maximum allowed of 64k"), "{}", dead[0].1);

    rig.execute("UPDATE outbox_dead_letter SET headers = '{\"note\": \"x\"}'").await;
    let id = poison.to_string();
    rig.ends_with(0, &["outbox", "dlq", "requeue", &id, "--wait", "10s", "--direct"]).await;
    expected.push(poison);
    assert_eq!(rig.stored_ids().await, expected);
}

/// R-REL-10, R-REL-09, R-DLQ-03: the stream's limits change under a relay, which does not know: the
/// broker says so. It does not take the id of what it refused for one that it has.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_refuses_for_good_is_parked_and_published_once_the_stream_takes_it() {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    rig.setup().await;
    let _relay = rig.relay();
    rig.insert(1).await;
    rig.wait_marked().await;
    limit_messages(&rig, 4_096).await;
    let (good, poison) = insert_with_poison(&rig, 100).await;
    rig.wait_stored(good.len() as u64 + 1).await;
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await.split_off(1), good);
    let (ids, reasons): (Vec<_>, Vec<_>) = dead_letters(&rig).await.into_iter().unzip();
    assert_eq!(ids, poison);
    assert!(reasons.iter().all(|it| it.contains("size exceeds maximum")), "{reasons:?}");
    assert!(reasons[0].contains("(10054)"), "the broker said so: {}", reasons[0]);

    limit_messages(&rig, -1).await;
    let id = poison[0].to_string();
    rig.ends_with(0, &["outbox", "dlq", "requeue", &id, "--wait", "10s", "--direct"]).await;
    assert_eq!(rig.stored_ids().await.last(), Some(&poison[0]));
}

/// R-REL-10, R-REL-06, R-REL-03: two relays park the same events, the first killed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_an_event_is_parked_leaves_one_dead_letter_and_no_message() {
    let rig = with_small_payloads().await;
    let (good, poison) = insert_with_poison(&rig, 20).await;
    let written = rig.wal_end().await;
    let holder = rig.client().await;
    let lock = "BEGIN; LOCK TABLE outbox_dead_letter IN SHARE MODE";
    holder.batch_execute(lock).await.expect("lock the dead letters");
    let parking = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%outbox_dead_letter%'";
    let relay = rig.relay();
    until(DEADLINE, "the first parks", async || rig.query::<i64>(parking).await == 1).await;
    relay.kill9().await;
    drop(relay);
    let relay = rig.relay();
    // What the first left behind on the server waits for two seconds at most.
    relay.wait_log("cannot park, trying again").await;
    rig.wait_stored(good.len() as u64).await;
    let now: String = rig.query("SELECT clock_timestamp()::TEXT").await;
    let heard =
        format!("SELECT reply_time > '{now}'::TIMESTAMPTZ + '300ms' FROM pg_stat_replication");
    until(DEADLINE, "the relay confirms what it may", async || rig.query::<bool>(&heard).await)
        .await;
    assert!(rig.confirmed().await < written, "confirmed what is not parked yet");
    holder.batch_execute("COMMIT").await.expect("let go of the dead letters");

    rig.wait_marked().await;
    rig.wait_confirmed().await;
    relay.kill9().await;
    drop(relay);
    let relay = rig.relay();
    let last = rig.insert(1).await;
    rig.wait_stored(good.len() as u64 + 1).await;
    assert_eq!(rig.stored_ids().await, [good, last].concat());
    let ids: Vec<Uuid> = dead_letters(&rig).await.into_iter().map(|it| it.0).collect();
    assert_eq!(ids, poison);
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
}
