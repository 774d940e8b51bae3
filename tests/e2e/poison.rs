//! An event that can never be stored is put aside, with a reason, and stops nobody.

use lab::NatsOptions;
use rustix::process::Pid;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};
use uuid::Uuid;

async fn with_small_payloads() -> TestEnv {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    env
}

/// Inserts `n` events of three aggregates; every tenth, from the fifth on, is too large. Returns
/// the ids of the others and of those, each in order.
async fn insert_with_poison(env: &TestEnv, n: i32) -> (Vec<Uuid>, Vec<Uuid>) {
    let sql = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               SELECT gen_random_uuid(), 'order', 'o-' || n % 3, 'OrderPlaced',
                   jsonb_build_object('n', n, 'x', repeat('x', CASE n % 10 WHEN 5 THEN 9000 ELSE 9 END))
               FROM generate_series(1, $1) AS n
               RETURNING id, octet_length(payload::TEXT) > 9000";
    let rows = env.client().await.query(sql, &[&n]).await.expect("insert events");
    let (poison, good): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get::<_, bool>(1));
    let ids = |rows: Vec<&tokio_postgres::Row>| rows.into_iter().map(|row| row.get(0)).collect();
    (ids(good), ids(poison))
}

pub(crate) async fn limit_messages(env: &TestEnv, max_message_size: i32) {
    let mut config = env.stream().await.cached_info().config.clone();
    config.max_message_size = max_message_size;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(config).await.expect("limit the stream");
}

async fn dead_letters(env: &TestEnv) -> Vec<(Uuid, String)> {
    let sql = "SELECT id, reason FROM outbox_dead_letter ORDER BY (payload->>'n')::INT";
    let rows = env.client().await.query(sql, &[]).await.expect("dead letters");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_over_the_brokers_limit_is_parked_and_the_others_stay_in_order() {
    let env = with_small_payloads().await;
    let _relay = env.relay();
    let (good, poison) = insert_with_poison(&env, 1_000).await;
    env.wait_stored(good.len() as u64).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, good);

    let (ids, reasons): (Vec<_>, Vec<_>) = dead_letters(&env).await.into_iter().unzip();
    assert_eq!(ids, poison);
    let clear = "payload and headers exceed the broker's max_payload of 4096 bytes";
    assert!(reasons.iter().all(|it| it == clear), "{:?}", reasons[0]);
    let kept = "SELECT bool_and(octet_length(payload->>'x') = 9000) FROM outbox_dead_letter";
    assert!(env.query::<bool>(kept).await, "a dead letter lost its payload");
    let known = "SELECT count(*) FROM outbox_status WHERE status = 'DEAD'";
    assert_eq!(env.query::<i64>(known).await, 100);

    let (text, _) = env.ends_with(0, &["status"]).await;
    assert!(text.contains("dead letters 100, oldest"), "{text}");
    assert!(text.contains(&format!("the latest: {clear}")), "{text}");
    let (json, _) = env.ends_with(0, &["status", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["outbox"]["dead_letters"], 100);
    assert_eq!(json["outbox"]["latest_dead_letter_reason"], clear);
    assert_eq!(json["outbox"]["unpublished"], 0);
}

/// Once the slot is confirmed, a dead letter is all that is left of its event's turn.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_parked_durably_where_commits_do_not_wait_for_the_disk() {
    let env = with_small_payloads().await;
    env.execute(
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
    let relay = env.relay();
    relay.wait_active().await;
    let (good, poison) = insert_with_poison(&env, 10).await;
    env.wait_stored(good.len() as u64).await;
    let parked = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "parked", async || env.query::<i64>(parked).await == 1).await;
    assert_eq!(poison.len(), 1);
    assert_eq!(env.query::<String>("SELECT min(durable) FROM how").await, "on");
}

/// The server tells clients that are connected nothing of it.
// proves: G-DEAD-4
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_broker_that_is_raised_while_the_relay_runs_holds_for_what_is_requeued() {
    let config = |bytes: usize| vec![format!("max_payload: {bytes}")];
    let nats = NatsOptions { config: config(4_096), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let _relay = env.relay();
    let (good, poison) = insert_with_poison(&env, 10).await;
    let id = poison[0].to_string();
    env.wait_stored(good.len() as u64).await;
    let parked = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "parked", async || env.query::<i64>(parked).await == 1).await;
    env.nats.reload(config(1 << 20), None).await.expect("reload");
    // It asks again after some seconds only.
    until(DEADLINE, "published", async || {
        if env.query::<i64>(parked).await == 1 {
            env.ends_with(0, &["outbox", "dlq", "requeue", &id, "--direct"]).await;
        }
        env.stored_ids().await.contains(&poison[0])
    })
    .await;
    env.wait_marked().await;
    assert_eq!(env.stored().await.len(), 10, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_streams_limit_is_parked_and_the_others_stay_in_order() {
    let env = TestEnv::new().await;
    env.setup().await;
    limit_messages(&env, 4_096).await;

    let _relay = env.relay();
    let (good, poison) = insert_with_poison(&env, 100).await;
    env.wait_stored(good.len() as u64).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, good);
    let (ids, reasons): (Vec<_>, Vec<_>) = dead_letters(&env).await.into_iter().unzip();
    assert_eq!(ids, poison);
    assert!(reasons.iter().all(|it| it.contains("message size exceeds maximum")), "{reasons:?}");
}

/// Headers beyond what the broker takes. Mended, the event is published
/// within the duplicate window: the broker does not take its id for one that it has.
#[tokio::test(flavor = "multi_thread")]
async fn headers_over_the_brokers_limit_are_parked_and_published_once_mended() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let _relay = env.relay();
    let mut expected = env.insert(20).await;
    let poison: Uuid = env
        .query(
            "INSERT INTO outbox_events
                 (id, aggregate_type, aggregate_id, event_type, payload, headers)
             VALUES (gen_random_uuid(), 'order', 'o-1', 'OrderPlaced', '{}',
                 jsonb_build_object('note', repeat('x', 65536))) RETURNING id",
        )
        .await;
    expected.extend(env.insert(20).await);
    env.wait_stored(40).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, expected);
    let dead = dead_letters(&env).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].0, poison);
    assert!(dead[0].1.contains("header size exceeds maximum allowed of 64k"), "{}", dead[0].1);

    env.execute("UPDATE outbox_dead_letter SET headers = '{\"note\": \"x\"}'").await;
    let id = poison.to_string();
    env.ends_with(0, &["outbox", "dlq", "requeue", &id, "--wait", "10s", "--direct"]).await;
    expected.push(poison);
    assert_eq!(env.stored_ids().await, expected);
}

/// The stream's limits change under a relay, which does not know: the
/// broker says so. It does not take the id of what it refused for one that it has.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_refuses_for_good_is_parked_and_published_once_the_stream_takes_it() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let _relay = env.relay();
    env.insert(1).await;
    env.wait_marked().await;
    limit_messages(&env, 4_096).await;
    let (good, poison) = insert_with_poison(&env, 100).await;
    env.wait_stored(good.len() as u64 + 1).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await.split_off(1), good);
    let (ids, reasons): (Vec<_>, Vec<_>) = dead_letters(&env).await.into_iter().unzip();
    assert_eq!(ids, poison);
    assert!(reasons.iter().all(|it| it.contains("size exceeds maximum")), "{reasons:?}");
    assert!(reasons[0].contains("(10054)"), "the broker said so: {}", reasons[0]);

    limit_messages(&env, -1).await;
    let id = poison[0].to_string();
    env.ends_with(0, &["outbox", "dlq", "requeue", &id, "--wait", "10s", "--direct"]).await;
    assert_eq!(env.stored_ids().await.last(), Some(&poison[0]));
}

/// Bytes that wait to be read by a backend.
async fn unread(env: &TestEnv, backend: Pid) -> usize {
    let pid = backend.as_raw_nonzero();
    let sql = format!("SELECT client_port FROM pg_stat_activity WHERE pid = {pid}");
    let client = env.query::<i32>(&sql).await;
    let (local, remote) = (format!(":{:04X}", env.postgres.port()), format!(":{client:04X}"));
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("the list of sockets");
    let queue = sockets.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_it = fields.next()?.ends_with(&local) && fields.next()?.ends_with(&remote);
        is_it.then(|| fields.nth(1)?.split_once(':')?.1.to_owned().into())?
    });
    let queue: String = queue.expect("the backend's socket");
    usize::from_str_radix(&queue, 16).expect("a number of bytes")
}

/// What a relay sent before it died is executed when its successor has
/// published the event, which the stream takes by then. No row is left to say so.
// proves: G-ONCE-2
#[tokio::test(flavor = "multi_thread")]
async fn a_late_park_makes_no_dead_letter_of_what_the_successor_published() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", "delete");
    env.setup().await;
    limit_messages(&env, 4_096).await;
    let first = env.relay();
    let (_, parked) = insert_with_poison(&env, 5).await;
    until(DEADLINE, "the statement is prepared", async || !dead_letters(&env).await.is_empty())
        .await;
    let second = env.relay();
    second.wait_log("standing by").await;
    let backend = env.stop_backend("tailpost rows").await;
    let (_, late) = insert_with_poison(&env, 5).await;
    let what = "the statement is on its way";
    until(DEADLINE, what, async || unread(&env, backend).await > 9_000).await;
    first.kill9().await;
    limit_messages(&env, -1).await;
    second.wait_active().await;
    until(DEADLINE, "all is published", async || {
        let rows = env.query::<i64>("SELECT count(*) FROM outbox_events").await;
        rows == 0 && env.stored_ids().await.contains(&late[0])
    })
    .await;
    env.resume_backend(backend);
    let gone =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", backend.as_raw_nonzero());
    until(DEADLINE, "the late statement is executed", async || env.query::<i64>(&gone).await == 0)
        .await;
    let dead: Vec<Uuid> = dead_letters(&env).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(dead, parked);
}

mod long {
    use super::*;

    /// Two relays park the same events, the first killed meanwhile.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_kill_while_an_event_is_parked_leaves_one_dead_letter_and_no_message() {
        let env = with_small_payloads().await;
        let (good, poison) = insert_with_poison(&env, 20).await;
        let written = env.wal_end().await;
        let holder = env.client().await;
        let lock = "BEGIN; LOCK TABLE outbox_dead_letter IN SHARE MODE";
        holder.batch_execute(lock).await.expect("lock the dead letters");
        let parking = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%outbox_dead_letter%'";
        let relay = env.relay();
        until(DEADLINE, "the first parks", async || env.query::<i64>(parking).await == 1).await;
        relay.kill9().await;
        drop(relay);
        let relay = env.relay();
        // What the first left behind on the server waits for two seconds at most.
        relay.wait_log("cannot park, trying again").await;
        env.wait_stored(good.len() as u64).await;
        let now: String = env.query("SELECT clock_timestamp()::TEXT").await;
        let heard =
            format!("SELECT reply_time > '{now}'::TIMESTAMPTZ + '300ms' FROM pg_stat_replication");
        until(DEADLINE, "the relay confirms what it may", async || env.query::<bool>(&heard).await)
            .await;
        assert!(env.confirmed().await < written, "confirmed what is not parked yet");
        holder.batch_execute("COMMIT").await.expect("let go of the dead letters");

        env.wait_marked().await;
        env.wait_confirmed().await;
        relay.kill9().await;
        drop(relay);
        let relay = env.relay();
        let last = env.insert(1).await;
        env.wait_stored(good.len() as u64 + 1).await;
        assert_eq!(env.stored_ids().await, [good, last].concat());
        let ids: Vec<Uuid> = dead_letters(&env).await.into_iter().map(|it| it.0).collect();
        assert_eq!(ids, poison);
        assert!(!relay.log().contains("starting anew"), "{}", relay.log());
    }

    /// Dead letters cost nothing once their rows are seen to be gone.
    #[tokio::test(flavor = "multi_thread")]
    async fn watermarks_do_not_look_for_the_row_of_each_dead_letter_again_and_again() {
        const PROBES: &str = "SELECT (seq_scan + coalesce(idx_scan, 0))::BIGINT
            FROM pg_stat_user_tables WHERE relname = 'outbox_dead_letter'";
        const MOVED: &str = "SELECT coalesce(extract(epoch FROM watermark_at), 0)::FLOAT8
            FROM tailpost_state";
        /// Statistics are a second or two late.
        const WATERMARKS: usize = 4;
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MARK", "lean");
        env.setup().await;
        limit_messages(&env, 4_096).await;
        let _relay = env.relay();
        insert_with_poison(&env, 50).await;
        let (mut probes, mut moved, mut quiet) = (0, 0.0, 0);
        until(DEADLINE, "watermarks pass without a look at the dead letters", async || {
            env.insert(1).await;
            let now = env.query::<f64>(MOVED).await;
            if now > moved {
                moved = now;
                let seen = env.query::<i64>(PROBES).await;
                quiet = if seen == probes { quiet + 1 } else { 0 };
                probes = seen;
            }
            quiet > WATERMARKS
        })
        .await;
    }
}
