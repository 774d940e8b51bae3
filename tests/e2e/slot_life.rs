//! The slot goes, in every way that slots go: nothing is lost, and nothing comes twice.

use std::time::Duration;

use lab::{Postgres, PostgresOptions};
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, until};

use crate::gone_back::{StoreCopy, is_noticed, limit};

/// Servers of which the one forgets ids at once and the other gives a slot up that keeps more than
/// a segment.
async fn env(settings: &[(&str, &str)], version: Option<u32>) -> TestEnv {
    let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let postgres =
        PostgresOptions { settings: settings.collect(), version, ..PostgresOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    env
}

const TIGHT: &[(&str, &str)] = &[("max_slot_wal_keep_size", "1MB")];

/// Lets the log grow by segments until the server gives the slot up.
pub(super) async fn lose_the_log(env: &TestEnv) {
    let lost = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = 'tailpost'";
    until(DEADLINE, "the slot's log is lost", async || {
        env.execute("SELECT pg_logical_emit_message(false, 'other', 'work')").await;
        env.execute("SELECT pg_switch_wal()").await;
        env.execute("CHECKPOINT").await;
        env.query::<Option<bool>>(lost).await == Some(true)
    })
    .await;
}

async fn stop(relay: &Relay) {
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
}

async fn status(env: &TestEnv) -> serde_json::Value {
    let (json, _) = env.ends_with(0, &["status", "--json"]).await;
    serde_json::from_str(&json).expect("JSON")
}

/// What is on record is of no use for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_another_plugin_is_refused_by_the_plugins_name() {
    let env = env(&[], None).await;
    env.drop_slot("tailpost").await;
    env.execute("SELECT pg_create_logical_replication_slot('tailpost', 'test_decoding')").await;
    let (_, said) = env.ends_with(4, &["relay"]).await;
    assert!(said.contains("has the output plugin test_decoding"), "{said}");
    env.drop_slot("tailpost").await;
    env.setup().await;
    env.insert(10).await;
    env.ends_with(0, &["relay", "--once"]).await;
}

// proves: G-LOSS-3
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_log_was_removed_while_no_relay_ran_is_made_anew_and_the_gap_filled() {
    let env = env(TIGHT, None).await;
    let relay = env.relay();
    let mut expected = env.insert_each(50).await;
    env.wait_marked().await;
    stop(&relay).await;
    expected.extend(env.insert_each(30).await);
    lose_the_log(&env).await;
    let lost = status(&env).await;
    assert_eq!(lost["slot"]["wal_status"], "lost", "{lost}");

    let relay = env.relay();
    relay.wait_log("PostgreSQL gave the slot's log up").await;
    relay.wait_active().await;
    expected.extend(env.insert_each(10).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    let told = status(&env).await;
    assert_eq!(told["slot"]["created_because"], "PostgreSQL gave the slot's log up", "{told}");
    assert_eq!(told["slot"]["gap_rows"], 30, "{told}");
    assert!(told["slot"]["gap_filled_at"].is_string(), "{told}");
    let (text, _) = env.ends_with(0, &["status"]).await;
    assert!(text.contains("gap          filled from the table at"), "{text}");
}

/// Marks lag when the log goes, and the broker is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_log_is_removed_under_a_relay_is_made_anew_and_nothing_comes_twice() {
    let mut env = env(TIGHT, None).await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = env.relay();
    relay.wait_active().await;
    let mut expected = env.insert_each(200).await;
    env.wait_stored(200).await;
    env.nats.pause().expect("pause NATS");
    expected.extend(env.insert_each(50).await);
    assert_eq!(env.unmarked().await, 250, "no mark was written");
    lose_the_log(&env).await;
    env.nats.resume().expect("resume NATS");
    relay.wait_log("PostgreSQL gave the slot's log up").await;
    env.wait_stored(250).await;
    expected.extend(env.insert_each(10).await);
    env.wait_stored(260).await;
    assert_eq!(env.stored_ids().await, expected);
}

// proves: G-LOSS-3
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_dropped_under_a_relay_is_made_anew_and_costs_no_event() {
    let env = env(&[], None).await;
    let relay = env.relay();
    let load = env.load(71, 500.0).await;
    load.wait_committed(300).await;
    for _ in 0..2 {
        // Between its reader's end and the next one's start.
        until(DEADLINE, "the slot is dropped", async || {
            let drop =
                "SELECT pg_terminate_backend(active_pid, 1000), pg_drop_replication_slot(slot_name)
                        FROM pg_replication_slots WHERE slot_name = 'tailpost'";
            env.client().await.batch_execute(drop).await.is_ok()
        })
        .await;
        load.wait_committed(300).await;
    }
    relay.wait_log("the replication slot is gone").await;
    let written = load.stop().await;
    let tally = tally_when_marked(&env, &written).await;
    // Rows from the gap come in the order of the table, which is not that of the commits.
    assert_eq!((tally.lost, tally.duplicates, tally.phantoms), (0, 0, 0), "{tally}");
    assert!(env.epochs().await > 1);
}

async fn tally_when_marked(env: &TestEnv, written: &lab::Written) -> lab::Tally {
    env.wait_marked().await;
    env.tally(written).await
}

/// PostgreSQL 18 gives up slots that nobody reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_given_up_for_idleness_is_made_anew_and_the_gap_filled() {
    let env = env(&[("idle_replication_slot_timeout", "1s")], Some(18)).await;
    let relay = env.relay();
    let mut expected = env.insert_each(20).await;
    env.wait_marked().await;
    stop(&relay).await;
    expected.extend(env.insert_each(20).await);
    let given_up = "SELECT invalidation_reason = 'idle_timeout' FROM pg_replication_slots";
    until(DEADLINE, "the slot is given up", async || {
        env.execute("CHECKPOINT").await;
        env.query::<Option<bool>>(given_up).await == Some(true)
    })
    .await;
    let lost = status(&env).await;
    assert_eq!(lost["slot"]["invalidation_reason"], "idle_timeout", "{lost}");

    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
}

/// DESIGN 11: exit codes 0, 3 and 4.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_drops_the_slot_and_creates_it_again_without_losing_an_event() {
    let env = env(&[], None).await;
    let relay = env.relay();
    let mut expected = env.insert_each(20).await;
    env.wait_marked().await;
    env.ends_with(4, &["slot", "drop"]).await;
    let (listed, _) = env.ends_with(0, &["slot", "list"]).await;
    assert!(listed.contains("* tailpost ") && listed.contains(" active "), "{listed}");
    stop(&relay).await;
    expected.extend(env.insert_each(10).await);
    env.ends_with(0, &["slot", "drop"]).await;
    env.ends_with(3, &["slot", "drop"]).await;
    expected.extend(env.insert_each(10).await);
    let (created, _) = env.ends_with(0, &["slot", "create"]).await;
    assert!(created.starts_with("created "), "{created}");
    let (exists, _) = env.ends_with(0, &["slot", "create"]).await;
    assert!(exists.starts_with("exists "), "{exists}");
    let (json, _) = env.ends_with(0, &["slot", "list", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["slots"][0]["is_configured"], true, "{json}");

    let _relay = env.relay();
    expected.extend(env.insert_each(10).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    let told = status(&env).await;
    let reason = "`tailpost slot drop` dropped it";
    assert_eq!(told["slot"]["created_because"], reason, "{told}");
}

/// The server has forgotten what was confirmed, the broker what it had acknowledged, and somebody
/// advances the slot before the log has brought that again.
// proves: G-LOSS-3, G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_advanced_before_a_lost_end_is_brought_back_is_made_anew() {
    let mut env = env(&[], None).await;
    let relay = env.relay();
    let mut expected = env.insert_each(20).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    limit(&env, 20).await;
    let copy = StoreCopy::take(&mut env).await;
    limit(&env, -1).await;
    env.execute("SELECT pg_copy_logical_replication_slot('tailpost', 'before')").await;
    expected.extend(env.insert_each(20).await);
    env.wait_marked().await;
    env.wait_confirmed().await;
    stop(&relay).await;
    // As by a crash of the server, and by a relay that was killed before it wrote the watermark.
    env.drop_slot("tailpost").await;
    env.execute(
        "SELECT pg_copy_logical_replication_slot('before', 'tailpost');
         UPDATE tailpost_state SET watermark_snapshot = NULL, watermark_lsn = NULL",
    )
    .await;
    let reached: String = env.query("SELECT checkpoint_lsn::text FROM tailpost_state").await;
    copy.put_back(&mut env).await;

    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    is_noticed(&env, 20).await;
    relay.kill9().await;
    // From PostgreSQL 17 on the copy is known for one, and the slot made anew already.
    let there = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'tailpost'";
    env.advance_slot("tailpost", &format!("greatest('{reached}', ({there}))")).await;
    limit(&env, -1).await;
    expected.extend(env.insert_each(10).await);
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
}

/// Kills the primary, promotes the standby, and makes it the environment's server.
pub(crate) async fn fail_over(env: &mut TestEnv, standby: Postgres) -> Postgres {
    env.postgres.kill().await.expect("kill the primary");
    let client = standby.client("postgres").await.expect("connect to the standby");
    client.batch_execute("SELECT pg_promote()").await.expect("promote");
    client.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.expect("alter");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
    let old = std::mem::replace(&mut env.postgres, standby);
    env.set("DATABASE_URL", &env.postgres.url("postgres"));
    old
}

/// The slot stays behind; its marks lagged.
// proves: G-LOSS-3
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_promoted_without_the_slot_has_every_event_once_and_in_order() {
    fail_over_without_the_slot(None).await;
}

/// As the above, where the standby could have had the slot.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_of_postgresql_18_promoted_without_the_slot_has_every_event_once_and_in_order() {
    fail_over_without_the_slot(Some(18)).await;
}

async fn fail_over_without_the_slot(version: Option<u32>) {
    let mut env = env(&[], version).await;
    let standby = Postgres::start_standby_of(&env.postgres, "standby_1", true).await;
    let standby = standby.expect("start a standby");
    let relay = env.relay();
    let mut expected = env.insert_each(100).await;
    env.wait_marked().await;
    stop(&relay).await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = env.relay();
    relay.wait_active().await;
    expected.extend(env.insert_each(100).await);
    env.wait_stored(200).await;
    assert_eq!(env.unmarked().await, 100, "their marks lag");
    env.nats.pause().expect("pause NATS");
    expected.extend(env.insert_each(50).await);
    relay.kill9().await;
    let _old = fail_over(&mut env, standby).await;
    env.nats.resume().expect("resume NATS");

    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let relay = env.relay();
    relay.wait_log("the replication slot is gone").await;
    expected.extend(env.insert_each(10).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    let told = status(&env).await;
    assert_eq!(told["slot"]["created_because"], "the replication slot is gone", "{told}");
}

/// The broker takes nothing, and the primary's disk is finite.
// proves: G-SLOT-2
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_over_its_limit_is_held_and_the_relay_says_so() {
    let mut env = env(&[], None).await;
    env.set("TAILPOST_RELAY__WAL_LIMIT", "100MiB");
    let relay = env.relay();
    relay.announce("relay.wal_limit");
    relay.wait_active().await;
    let mut expected = env.insert_each(100).await;
    env.wait_marked().await;
    env.nats.pause().expect("pause NATS");
    until(DEADLINE, "the limit is reached", async || {
        expected.extend(env.insert_each(1).await);
        env.execute("SELECT pg_switch_wal()").await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        relay.log().contains("keeps more of the log than relay.wal_limit")
    })
    .await;
    assert!(relay.log().contains("its limit is reached in"), "warned:\n{}", relay.log());
    let (told, _) = env.ends_with(5, &["status", "--json"]).await;
    assert!(told.contains("keeps more of the log than relay.wal_limit"), "{told}");
    env.nats.resume().expect("resume NATS");
    expected.extend(env.insert_each(5).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    assert_eq!(env.epochs().await, 1, "{}", relay.log());
}

mod long {
    use super::*;

    /// PostgreSQL 17 and later take the slot along.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_standby_promoted_with_the_slot_goes_on_where_it_was() {
        let mut env = env(&[], Some(18)).await;
        let standby = Postgres::start_standby_of(&env.postgres, "standby_1", true).await;
        let standby = standby.expect("start a standby");
        let client = standby.client("postgres").await.expect("connect to the standby");
        let conninfo = format!(
            "host=127.0.0.1 port={} user=postgres application_name=standby_1 dbname=postgres",
            env.postgres.port()
        );
        for setting in [
            format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'"),
            "ALTER SYSTEM SET hot_standby_feedback = on".into(),
            "ALTER SYSTEM SET sync_replication_slots = on".into(),
            "SELECT pg_reload_conf()".into(),
        ] {
            client.batch_execute(&setting).await.expect(&setting);
        }
        let relay = env.relay();
        let mut expected = env.insert_each(100).await;
        env.wait_confirmed().await;
        let synced = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        until(DEADLINE, "the slot is on the standby", async || {
            client.query_one(synced, &[]).await.expect("look").get::<_, i64>(0) == 1
        })
        .await;
        expected.extend(env.insert_each(100).await);
        env.wait_stored(200).await;
        relay.kill9().await;
        let _old = fail_over(&mut env, standby).await;

        let relay = env.relay();
        relay.wait_active().await;
        expected.extend(env.insert_each(10).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
        assert_eq!(env.epochs().await, 1, "{}", relay.log());
    }
}
