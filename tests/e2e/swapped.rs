//! Another table takes the outbox's place: what the former one has is not lost.

use support::{DEADLINE, Relay, TestEnv};
use uuid::Uuid;

const SWAP: &str = "BEGIN;
    ALTER TABLE outbox_events RENAME TO outbox_old;
    CREATE TABLE outbox_events (LIKE outbox_old INCLUDING ALL);
    COMMIT";

async fn env() -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    env
}

/// Runs what a log says is to be run, again and again, until `tailpost setup` has nothing to say.
pub(crate) async fn follow(env: &TestEnv, mut log: String) {
    for _ in 0..6 {
        let (_, said) = log.rsplit_once("un `").unwrap_or_else(|| panic!("no statement: {log}"));
        let statement = said.split('`').next().expect("its end");
        if !statement.starts_with("tailpost ") {
            env.execute(statement).await;
        }
        let setup = env.spawn(&["setup"]);
        setup.announce("");
        if setup.wait_exit(DEADLINE).await.success() {
            return;
        }
        log = setup.log();
    }
    panic!("no end of it: {log}");
}

async fn ends_with_hint(relay: &Relay) -> String {
    assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
    relay.log()
}

async fn assert_stored(env: &TestEnv, expected: &[Uuid]) {
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, expected);
}

// proves: G-LOSS-9
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_table_that_was_swapped_while_the_log_lags_come_by_one_command() {
    let env = env().await;
    let relay = env.relay();
    relay.announce("");
    let mut expected = env.insert_each(50).await;
    env.wait_marked().await;
    env.nats.pause().expect("pause NATS");
    expected.extend(env.insert_each(100).await);
    env.execute(SWAP).await;
    expected.extend(env.insert_each(30).await);
    let log = ends_with_hint(&relay).await;
    assert!(log.contains("100 rows of public.outbox_old"), "{log}");
    env.nats.resume().expect("resume NATS");
    // Whoever only starts it again is told the same, and so does who looks.
    let (_, again) = env.ends_with(4, &["relay"]).await;
    assert!(again.contains("100 rows of public.outbox_old"), "{again}");
    let (told, _) = env.ends_with(1, &["doctor"]).await;
    assert!(told.contains("100 rows of public.outbox_old"), "{told}");
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("100 rows of public.outbox_old"), "{told}");
    follow(&env, again).await;
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(!told.contains("outbox_old"), "{told}");
    let _relay = env.relay();
    expected.extend(env.insert_each(5).await);
    assert_stored(&env, &expected).await;
    env.execute("DROP TABLE outbox_old").await;
}

/// Functions and views stay with the table that they were made for.
// proves: G-LOSS-9
#[tokio::test(flavor = "multi_thread")]
async fn what_is_emitted_into_the_former_table_is_not_confirmed_as_a_strangers() {
    let env = env().await;
    let relay = env.relay();
    let mut expected = env.insert_each(20).await;
    env.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    env.execute(SWAP).await;
    env.execute("ALTER PUBLICATION tailpost ADD TABLE outbox_events").await;
    let relay = env.relay();
    relay.announce("");
    expected.extend(env.insert_each(5).await);
    env.wait_marked().await;
    let id: Uuid = env.query("SELECT outbox_emit('order', 'o', 'Placed', '{}')").await;
    expected.push(id);
    let log = ends_with_hint(&relay).await;
    assert!(log.contains("1 row of public.outbox_old"), "{log}");
    follow(&env, log).await;
    let id: Uuid = env.query("SELECT outbox_emit('order', 'o', 'Placed', '{}')").await;
    expected.push(id);
    let _relay = env.relay();
    assert_stored(&env, &expected).await;
}

/// Rows of one aggregate, in the former table and in the new one.
#[tokio::test(flavor = "multi_thread")]
async fn in_poll_mode_rows_of_the_former_table_come_first() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    let mut expected = env.insert_each(20).await;
    env.execute(SWAP).await;
    expected.extend(env.insert_each(20).await);
    let (_, log) = env.ends_with(4, &["relay"]).await;
    follow(&env, log).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.stored_ids().await, expected);
}

/// To follow the statement would end the first one's relay.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_outbox_beside_one_that_is_in_use_is_told_to_take_a_schema_of_its_own() {
    let mut env = env().await;
    let relay = env.relay();
    env.set("TAILPOST_POSTGRES__TABLE", "public.users_outbox");
    let (_, said) = env.ends_with(4, &["setup"]).await;
    let apart = "there is no table public.users_outbox, and the schema has the outbox \
                 public.outbox_events";
    let ways = "if that is the same table, or set postgres.table to its present name; a second outbox \
                needs a schema of its own";
    assert!(said.contains(apart) && said.contains(ways), "{said}");
    let (found, _) = env.ends_with(1, &["doctor", "--only", "outbox-table"]).await;
    assert!(found.contains(ways), "{found}");
    let expected = env.insert_each(5).await;
    assert_stored(&env, &expected).await;
    drop(relay);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_renamed_is_named_with_what_renames_it() {
    let env = env().await;
    let mut expected = env.insert_each(20).await;
    env.execute("ALTER TABLE outbox_events RENAME TO outbox_old").await;
    for command in ["setup", "relay"] {
        let (_, log) = env.ends_with(4, &[command]).await;
        assert!(log.contains("ALTER TABLE public.outbox_old RENAME TO outbox_events"), "{log}");
    }
    let (_, log) = env.ends_with(4, &["setup"]).await;
    follow(&env, log).await;
    let _relay = env.relay();
    expected.extend(env.insert_each(5).await);
    assert_stored(&env, &expected).await;
}

const VIEW: &str = "BEGIN;
    ALTER TABLE outbox_events RENAME TO outbox_v2;
    CREATE VIEW outbox_events AS SELECT * FROM outbox_v2;
    COMMIT";

/// Producers go on by way of the view, into the table that was the outbox.
// proves: G-LOSS-9
#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_takes_the_outboxs_name_is_refused_with_what_brings_the_table_back() {
    for runs in [true, false] {
        let env = env().await;
        let relay = env.relay();
        relay.announce("");
        let mut expected = env.insert_each(20).await;
        env.wait_marked().await;
        if !runs {
            relay.sigterm();
            assert!(relay.wait_exit(DEADLINE).await.success());
        }
        env.execute(VIEW).await;
        expected.extend(env.insert_each(5).await);
        let log = match runs {
            true => ends_with_hint(&relay).await,
            false => env.ends_with(4, &["relay"]).await.1,
        };
        let (report, _) = env.ends_with(1, &["doctor"]).await;
        let (_, setup) = env.ends_with(4, &["setup"]).await;
        for said in [&log, &report, &setup] {
            assert!(said.contains("DROP VIEW") && !said.contains("ADD TABLE"), "{said}");
        }
        follow(&env, log).await;
        let _relay = env.relay();
        expected.extend(env.insert_each(5).await);
        assert_stored(&env, &expected).await;
    }
}

/// Before anything is set up, too, whatever it is a view of.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_no_outbox() {
    let env = TestEnv::new().await;
    env.execute("CREATE SCHEMA app").await;
    env.execute(&crate::scanner::DOCUMENTED_TABLE.replace("TABLE outbox", "TABLE app.outbox"))
        .await;
    env.execute("CREATE VIEW outbox_events AS SELECT * FROM app.outbox_events").await;
    let (report, _) = env.ends_with(1, &["doctor", "--pre"]).await;
    assert!(report.contains("a view"), "{report}");
    let (_, log) = env.ends_with(4, &["setup"]).await;
    assert!(log.contains("postgres.table"), "{log}");
    follow(&env, log).await;
    let _relay = env.relay();
    let expected = env.insert_each(5).await;
    assert_stored(&env, &expected).await;
}
