//! What is much takes time, not memory.

use lab::{NatsOptions, Port};
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, get, until};
use uuid::Uuid;

use crate::scanner::DOCUMENTED_TABLE;

const ROWS: i32 = 100_000;

/// What issue and requirements allow, 64 MiB, but for the code of a release.
const MEMORY_MAX: u64 = 40 << 20;

fn assert_bounded(relay: &Relay) {
    let peak = relay.peak_memory();
    eprintln!("peak of memory: {} KiB", peak >> 10);
    assert!(peak < MEMORY_MAX, "{peak} bytes of memory");
}

async fn assert_stored(env: &TestEnv, expected: &[Uuid]) {
    env.wait_stored(expected.len() as u64).await;
    env.wait_marked().await;
    let stored = env.stored_ids().await;
    let differs = stored.iter().zip(expected).position(|(stored, expected)| stored != expected);
    assert_eq!(differs, None, "the first message that is not the one expected");
    assert_eq!(stored.len(), expected.len());
}

/// Many rows that are large, also those that a broker at rest leaves waiting.
// proves: G-MEM-1
#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_wait_in_little_memory() {
    const LARGE: &str = "
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'OrderPlaced',
            jsonb_build_object('n', n, 'note', repeat('x', 20000))
        FROM generate_series(1, 4000) AS n";
    let env = TestEnv::new().await;
    env.execute(DOCUMENTED_TABLE).await;
    env.execute(LARGE).await;
    env.setup().await;
    env.execute(LARGE).await;
    let relay = env.relay();
    env.wait_stored(2_000).await;
    env.nats.pause().expect("pause NATS");
    let served = env.insert(10).await;
    assert_eq!(served.len(), 10, "PostgreSQL serves while the broker is stalled");
    assert_bounded(&relay);
    env.nats.resume().expect("resume NATS");
    env.wait_stored(8_010).await;
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, 8_010);
    assert_bounded(&relay);
}

mod long {
    use super::*;

    /// A huge transaction, and a relay that dies in its middle.
    // proves: G-MEM-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_huge_transaction_passes_in_little_memory_also_when_interrupted() {
        let mut env = TestEnv::new().await;
        // The broker forgets ids at once: what is published twice is stored twice.
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        let expected = env.insert(ROWS).await;
        until(DEADLINE, "some of it is stored", async || env.stored_count().await > 5_000).await;
        relay.kill9().await;
        let stored = env.stored_count().await;
        assert!(stored < expected.len() as u64, "all was stored: the test proves nothing");
        drop(relay);

        let relay = env.relay();
        assert_stored(&env, &expected).await;
        assert_bounded(&relay);
    }

    /// What waits outside of the window counts as well, on the way in and while the stream's
    /// end is read.
    #[tokio::test(flavor = "multi_thread")]
    async fn rows_of_a_megabyte_pass_in_little_memory_also_while_the_broker_is_away() {
        const LARGE_ROWS: u64 = 100;
        const WINDOW_BYTES: u64 = 16 << 20;
        let nats = NatsOptions { max_payload: Some(4 << 20), ..NatsOptions::default() };
        let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
        env.setup().await;
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        let relay = env.relay();
        let mut expected = env.insert(1).await;
        env.wait_marked().await;
        env.nats.kill().await.expect("kill the broker");
        let client = env.client().await;
        for _ in 0..LARGE_ROWS {
            // By itself each, so that the server sends it at once.
            let sql =
                "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   SELECT gen_random_uuid(), 'order', '7', 'Grew',
                       jsonb_build_object('text', string_agg(md5(random()::text), ''))
                   FROM generate_series(1, 32768) RETURNING id";
            expected.push(client.query_one(sql, &[]).await.expect("insert").get(0));
        }
        // No more is read once the window is full.
        until(DEADLINE, "the window is full", async || {
            let status = get(admin.addr(), "/api/v1/status").await.unwrap_or_default();
            let bytes =
                status.split("\"in_flight_bytes\":").nth(1).unwrap_or_default().trim_start();
            let digits: String = bytes.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().is_ok_and(|bytes| bytes >= WINDOW_BYTES)
        })
        .await;
        env.nats.start_again().await.expect("start the broker again");
        assert_stored(&env, &expected).await;
        assert_bounded(&relay);
        // What it had sent when the broker died is looked for in the stream: messages as large.
        relay.kill9().await;
        let relay = env.relay();
        expected.extend(env.insert(1).await);
        assert_stored(&env, &expected).await;
        assert_bounded(&relay);
    }

    /// Rows from before the slot, while newer ones wait behind them.
    // proves: G-MEM-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_large_backlog_passes_in_little_memory() {
        let env = TestEnv::new().await;
        env.execute(DOCUMENTED_TABLE).await;
        let mut expected = env.insert(ROWS).await;
        env.setup().await;
        expected.extend(env.insert(1_000).await);
        let relay = env.relay();
        assert_stored(&env, &expected).await;
        relay.wait_log("the scanner is done").await;
        assert_bounded(&relay);
    }

    /// PostgreSQL is not to take a relay for dead that does not read because there is no room.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_that_is_not_read_for_a_while_costs_no_connection() {
        const LARGE: &str = "
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'OrderPlaced',
            jsonb_build_object('n', n, 'note', repeat('x', 20000))
        FROM generate_series(1, 4000) AS n";
        let env = TestEnv::new().await;
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        env.nats.pause().expect("pause NATS");
        env.execute(LARGE).await;
        // For longer than the kernel lets a connection be that takes no bytes, if it is told not to.
        let blocked = "SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'walsender' AND wait_event = 'WalSenderWriteData'";
        until(DEADLINE, "PostgreSQL cannot send", async || env.query::<i64>(blocked).await == 1)
            .await;
        let walsender = "SELECT max(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'";
        let before = env.query::<Option<i32>>(walsender).await;
        let since = std::time::Instant::now();
        until(DEADLINE, "the time is over", async || {
            let now = env.query::<Option<i32>>(walsender).await;
            assert_eq!(now, before, "the connection was ended");
            since.elapsed() > std::time::Duration::from_secs(14)
        })
        .await;
        env.nats.resume().expect("resume NATS");
        env.wait_stored(4_000).await;
    }

    /// What is rolled back costs nothing behind PostgreSQL.
    // proves: G-COMMIT-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_huge_transaction_that_is_rolled_back_brings_nothing() {
        let env = TestEnv::new().await;
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        let mut client = env.client().await;
        let transaction = client.transaction().await.expect("begin");
        let insert = "
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'o-1', 'OrderPlaced', '{}'
        FROM generate_series(1, 1000000)";
        transaction.execute(insert, &[]).await.expect("insert");
        transaction.rollback().await.expect("roll back");
        let expected = env.insert(1).await;
        assert_stored(&env, &expected).await;
        assert_bounded(&relay);
    }

    /// Events that nobody mended for a long time.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_great_many_dead_letters_take_little_memory_and_can_be_listed() {
        let mut env = TestEnv::new().await;
        let admin = Port::reserve().expect("a port");
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        env.setup().await;
        env.execute(
            "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
             occurred_at, reason)
         SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'OrderPlaced', '{}', now(),
             'message size exceeds maximum allowed (10054)'
         FROM generate_series(1, 300000) AS n",
        )
        .await;
        let relay = env.relay();
        relay.wait_active().await;
        let expected = env.insert(10).await;
        let (told, _) = env.ends_with(0, &["outbox", "dlq", "list"]).await;
        assert!(told.starts_with("300000 dead letters"), "{told}");
        assert!(told.contains("10000  message size exceeds"), "{told}");
        let requeue = ["outbox", "dlq", "requeue", "--all-matching", "--dry-run"];
        let (told, said) = env.ends_with(0, &requeue).await;
        let plan = format!("{told}{said}");
        assert!(plan.contains("to requeue: 300000 dead letters"), "{plan}");
        assert_stored(&env, &expected).await;
        assert_bounded(&relay);
    }
}

/// A scan of a large backlog sorts it.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_temporary_files_is_called_by_its_name() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.drop_slot("tailpost").await;
    env.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'order', 'o-' || i, 'Placed', to_jsonb(repeat('x', 1500))
         FROM generate_series(1, 8000) i",
    )
    .await;
    let set = async |limit| {
        env.execute(&format!("ALTER ROLE postgres SET temp_file_limit = '{limit}'")).await;
    };
    set("1MB").await;
    let (_, log) = env.ends_with(5, &["relay", "--once"]).await;
    assert!(log.contains("raise temp_file_limit") && !log.contains("max_wal_senders"), "{log}");
    set("-1").await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.stored_count().await, 8_000);
}
