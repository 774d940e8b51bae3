//! Poll mode: a server without logical decoding, nodes side by side.

use std::time::Duration;

use lab::{NatsOptions, PostgresOptions};
use support::{DEADLINE, Load, TestEnv, TestEnvOptions, until};

/// A server that writes no more to its log than replication needs.
async fn env() -> TestEnv {
    remembering("2m").await
}

/// The same, with a broker that remembers ids for so long.
async fn remembering(ids: &str) -> TestEnv {
    let postgres = PostgresOptions {
        settings: vec![("wal_level".into(), "replica".into())],
        ..PostgresOptions::default()
    };
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { postgres, nats, proxied: true }).await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", ids);
    env.setup().await;
    env
}

/// The stream has each aggregate's events in the order in which they were inserted.
async fn assert_ordered(env: &TestEnv) {
    let ordered = "
        SELECT bool_and(stream_seq > before) FROM (
            SELECT stream_seq, lag(stream_seq, 1, 0::BIGINT)
                OVER (PARTITION BY aggregate_id ORDER BY seq) AS before
            FROM outbox_events) AS it";
    assert!(env.query::<bool>(ordered).await, "an aggregate is out of order");
}

/// Ends the load; when all is marked, every committed event is stored once, each aggregate's in
/// order, and nothing else.
async fn assert_exact(env: &TestEnv, load: Load) {
    let written = load.stop().await;
    env.wait_marked().await;
    let tally = env.tally(&written).await;
    tally.assert_exact();
    assert_ordered(env).await;
    let attempts: i64 =
        env.query("SELECT coalesce(sum(publish_attempts), 0)::BIGINT FROM outbox_events").await;
    assert_eq!(attempts, 0, "attempts were consumed");
    let parked: i64 = env.query("SELECT count(*) FROM outbox_dead_letter").await;
    assert_eq!(parked, 0, "events were parked");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_logical_decoding_events_are_published_in_order_and_poison_is_parked() {
    let env = env().await;
    let mut expected = env.insert(500).await;
    let poison = "SELECT outbox_emit('order', 'o-1', 'OrderPlaced',
                      jsonb_build_object('x', repeat('x', 9000)))";
    env.execute(poison).await;
    expected.extend(env.insert(100).await);
    // What is there is published, and then it ends.
    env.ends_with(0, &["relay", "--once"]).await;
    env.wait_marked().await;
    let mut stored = env.stored_ids().await;
    assert_eq!(stored.len(), expected.len());
    stored.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stored, expected);
    assert_ordered(&env).await;
    let parked: i64 = env.query("SELECT count(*) FROM outbox_dead_letter").await;
    assert_eq!(parked, 1);
    env.ends_with(0, &["status"]).await;
}

/// The other modes say what is missing. It does not come by waiting.
#[tokio::test(flavor = "multi_thread")]
async fn without_logical_decoding_the_live_relay_says_what_to_change() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__MODE", "fenced");
    for args in [["setup"], ["relay"]] {
        let (_, said) = env.ends_with(4, &args).await;
        let reason = said.lines().find(|it| it.starts_with("error: "));
        assert!(reason.is_some_and(|it| it.contains("wal_level")), "{said}");
        let hint = said.lines().find(|it| it.starts_with("hint: ")).unwrap_or_default();
        assert!(hint.contains("wal_level = logical"), "{said}");
        assert!(hint.contains("relay.mode = \"poll\""), "{said}");
    }
    env.execute("ALTER SYSTEM SET max_replication_slots = 0").await;
    env.execute("ALTER SYSTEM SET wal_level = 'logical'").await;
    env.postgres.stop_fast().await.expect("stop PostgreSQL");
    env.postgres.start_again().await.expect("start PostgreSQL");
    let (_, said) = env.ends_with(4, &["setup"]).await;
    assert!(said.contains("max_replication_slots above 0"), "{said}");
    env.execute("ALTER SYSTEM RESET max_replication_slots").await;
    env.postgres.stop_fast().await.expect("stop PostgreSQL");
    env.postgres.start_again().await.expect("start PostgreSQL");
    env.setup().await;
}

/// Somebody restarts the sequence, or restores it: rows that come later get lower numbers.
#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_stays_in_order_when_its_sequence_goes_back() {
    let env = env().await;
    let emit = async |from: usize| {
        for n in from..from + 10 {
            env.execute(&format!("SELECT outbox_emit('order', 'o-1', 'Placed', '{n}')")).await;
        }
    };
    emit(0).await;
    env.ends_with(0, &["relay", "--once"]).await;
    emit(10).await;
    env.execute("ALTER SEQUENCE outbox_events_seq_seq RESTART").await;
    emit(20).await;
    let doctor = env.spawn(&["doctor", "--json", "--only", "outbox-sequence"]);
    doctor.announce("");
    doctor.wait_exit(DEADLINE).await;
    env.ends_with(0, &["relay", "--once"]).await;
    emit(30).await;
    env.ends_with(0, &["relay", "--once"]).await;
    let stored: Vec<String> = env.stored().await.into_iter().map(|it| it.payload).collect();
    assert_eq!(stored, (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
    let (told, said) = (doctor.stdout(), doctor.log());
    assert!(told.contains("SELECT setval(pg_get_serial_sequence("), "{told}{said}");
    env.ends_with(0, &["doctor", "--only", "outbox-sequence"]).await;
}

/// It publishes all the same, and says what somebody else has to run.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_the_right_to_the_sequence_names_the_statement() {
    let mut env = env().await;
    env.insert(10).await;
    env.execute("ALTER SEQUENCE outbox_events_seq_seq RESTART").await;
    for sql in [
        "CREATE ROLE courier LOGIN",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO courier",
        "GRANT SELECT ON SEQUENCE outbox_events_seq_seq TO courier",
    ] {
        env.execute(sql).await;
    }
    let url = env.postgres.url("postgres").replace("postgres@", "courier@");
    env.set("DATABASE_URL", &url);
    let (_, said) = env.ends_with(0, &["relay", "--once"]).await;
    env.wait_marked().await;
    let statement = "SELECT setval(pg_get_serial_sequence('\"public\".\"outbox_events\"', 'seq'), \
                     max(seq)) FROM \"public\".\"outbox_events\"";
    let named = said.lines().find(|it| it.contains("sequence went back"));
    assert!(named.is_some_and(|it| it.contains(statement)), "{said}");
    env.execute(statement).await;
    let last: i64 = env.query("SELECT last_value FROM outbox_events_seq_seq").await;
    assert_eq!(last, 10);
}

/// The server goes away with all claims.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_restart_costs_nothing() {
    let mut env = env().await;
    let load = env.load(9, 500.0).await;
    let relay = env.relay();
    relay.wait_log("polling the outbox").await;
    load.wait_committed(300).await;
    env.postgres.kill().await.expect("kill PostgreSQL");
    env.postgres.start_again().await.expect("start PostgreSQL again");
    relay.wait_log("starting anew").await;
    load.wait_committed(300).await;
    until(DEADLINE, "the relay polls again", async || {
        relay.log().matches("polling the outbox").count() > 1
    })
    .await;
    assert_exact(&env, load).await;
}

/// A locked row holds up its aggregate's later events, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_stops_no_poll() {
    let env = env().await;
    let ids = env.insert(40).await;
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    let sql = "SELECT FROM outbox_events WHERE id = $1 FOR UPDATE";
    lock.execute(sql, &[&ids[3]]).await.expect("lock a row");
    let relay = env.relay();
    until(DEADLINE, "all but the locked are marked", async || env.unmarked().await == 1).await;
    env.insert(1_000).await;
    until(DEADLINE, "all but the locked are marked", async || env.unmarked().await == 1).await;
    relay.kill9().await;
    let _relay = env.relay();
    env.insert(10).await;
    until(DEADLINE, "all but the locked are marked", async || env.unmarked().await == 1).await;
    lock.rollback().await.expect("let go");
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, 1_050);
    assert_ordered(&env).await;
}

/// A server on which commits are visible ten seconds before they are on the disk.
pub(crate) async fn committing_late(wal_level: &str) -> TestEnv {
    let settings =
        [("wal_level", wal_level), ("synchronous_commit", "off"), ("wal_writer_delay", "10s")];
    let settings = settings.map(|(name, value)| (name.into(), value.into())).to_vec();
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await
}

/// While a relay runs. When the server is killed after the first of some events is stored, each that
/// is stored has its row.
pub(crate) async fn events_have_rows_after_a_crash(env: &mut TestEnv) {
    // The commit of a mark would take the rows' along, as would that of what comes before it.
    const SLOW_MARKS: &str = "
        CREATE FUNCTION wait() RETURNS TRIGGER LANGUAGE plpgsql
            AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END';
        CREATE TRIGGER wait BEFORE UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION wait();
        CREATE TRIGGER wait BEFORE UPDATE ON tailpost_streams FOR EACH ROW EXECUTE FUNCTION wait()";
    env.execute(SLOW_MARKS).await;
    env.execute("CHECKPOINT").await;
    let before = env.stored_count().await;
    env.insert_each(8).await;
    until(DEADLINE, "an event is stored", async || env.stored_count().await > before).await;
    env.postgres.kill().await.expect("kill PostgreSQL");
    env.postgres.start_again().await.expect("start PostgreSQL");
    let rows: i64 = env.query("SELECT count(*) FROM outbox_events").await;
    let stored = i64::try_from(env.stored_count().await).expect("few");
    assert!(stored <= rows, "{stored} events are stored, and {rows} rows are left");
}

/// With `synchronous_commit = off` a crash of the server undoes commits that were visible.
// proves: G-LOSS-7
#[tokio::test(flavor = "multi_thread")]
async fn polled_events_are_on_the_disk_before_they_are_published() {
    let mut env = committing_late("replica").await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    let _relay = env.relay();
    events_have_rows_after_a_crash(&mut env).await;
}

mod long {
    use super::*;

    /// Also with claims in small pieces, so that nodes meet at the same aggregates.
    // proves: G-ORDER-2
    #[tokio::test(flavor = "multi_thread")]
    async fn nodes_side_by_side_double_nothing_and_keep_order_when_one_is_killed() {
        let mut env = env().await;
        env.set("TAILPOST_OUTBOX_BATCH_SIZE", "5");
        env.set("TAILPOST_OUTBOX_WORKERS", "4");
        env.set("TAILPOST_OUTBOX_POLL_MS", "10");
        // Of ten aggregates, so that every claim meets all of them.
        env.insert(3_000).await;
        let load = env.load(7, 1000.0).await;
        let stays = env.relay();
        for round in 1..=4 {
            let dies = env.relay();
            dies.wait_log("polling the outbox").await;
            load.wait_committed(200).await;
            if round % 2 == 0 {
                env.to_nats().set_delay(Duration::from_millis(30));
            }
            load.wait_committed(100).await;
            dies.kill9().await;
            env.to_nats().set_delay(Duration::ZERO);
        }
        stays.wait_log("polling the outbox").await;
        assert_exact(&env, load).await;
    }

    /// The relay that had the rows published them and ended before it marked them. When another
    /// one claims them, the broker has forgotten their ids, and that relay's reading is older.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_another_relay_published_long_ago_is_not_published_again() {
        let mut env = remembering("60s").await;
        // Longer than that.
        env.set("TAILPOST_RELAY__POLL_INTERVAL", "75s");
        let _late = env.relay();
        let has_looked = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name LIKE 'tailpost%' AND query LIKE '%advisory%'";
        until(DEADLINE, "it has looked for rows", async || env.query::<i64>(has_looked).await > 0)
            .await;
        let mut ids = env.insert(20).await;
        let mut client = env.client().await;
        let lock = client.transaction().await.expect("begin");
        lock.batch_execute("LOCK outbox_events IN SHARE MODE").await.expect("lock");
        env.set("TAILPOST_RELAY__POLL_INTERVAL", "50ms");
        let first = env.relay();
        env.wait_stored(20).await;
        first.kill9().await;
        // A server does not see that a client is gone while it waits for a lock, and would mark after it.
        let waiting = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
            WHERE application_name LIKE 'tailpost%' AND wait_event_type = 'Lock'";
        env.execute(waiting).await;
        lock.rollback().await.expect("roll back");
        assert_eq!(env.unmarked().await, 20, "it could mark none");
        env.wait_marked().await;
        let mut stored = env.stored_ids().await;
        stored.sort_unstable();
        ids.sort_unstable();
        assert_eq!(stored, ids);
    }

    // proves: G-DEAD-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_broker_outage_consumes_no_attempts_and_costs_nothing() {
        let mut env = env().await;
        let load = env.load(8, 500.0).await;
        let (_one, _other) = (env.relay(), env.relay());
        load.wait_committed(200).await;
        env.to_nats().cut().await;
        load.wait_committed(500).await;
        env.to_nats().restore().await.expect("restore the network");
        load.wait_committed(200).await;
        env.nats.kill().await.expect("kill NATS");
        load.wait_committed(200).await;
        env.nats.start_again().await.expect("start NATS again");
        load.wait_committed(200).await;
        assert_exact(&env, load).await;
    }

    /// Claims that wait for the broker keep nobody from the table, and vacuum neither.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_can_be_altered_while_claims_wait_for_the_broker() {
        let mut env = env().await;
        let load = env.load(10, 300.0).await;
        let (_one, _other) = (env.relay(), env.relay());
        load.wait_committed(200).await;
        env.to_nats().cut().await;
        load.wait_committed(300).await;
        let alter = "SET lock_timeout = '10s'; ALTER TABLE outbox_events ADD COLUMN another INT";
        env.execute(alter).await;
        load.wait_committed(100).await;
        let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tailpost%'
                        AND state = 'idle in transaction'";
        assert_eq!(env.query::<i64>(open).await, 0, "something is held open");
        env.to_nats().restore().await.expect("restore the network");
        assert_exact(&env, load).await;
    }
}
