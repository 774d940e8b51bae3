//! The slot that trails behind, when something goes wrong with it.

use lab::{Postgres, PostgresOptions};
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, until};

use super::{ask, copies, ids, replay, shown, wait_done};
use crate::slot_life::fail_over;

/// Servers, with a setting of PostgreSQL, and a relay that keeps the log.
async fn env(settings: &[(&str, &str)]) -> TestEnv {
    let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let postgres = PostgresOptions { settings: settings.collect(), ..PostgresOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_REWIND__RETAIN", "1GiB");
    env.set("TAILPOST_REWIND__MAX_AGE", "1h");
    env.setup().await;
    env
}

async fn status(env: &TestEnv) -> Value {
    let (json, _) = env.ends_with(0, &["status", "--json"]).await;
    serde_json::from_str(&json).expect("JSON")
}

async fn rewind(env: &TestEnv) -> Value {
    status(env).await["slot"]["rewind"].clone()
}

/// Waits until the slot was made so often, and is there.
async fn wait_made(env: &TestEnv, times: u64) {
    let is_made = async || {
        let told = rewind(env).await;
        told["exists"] == true && told["made"].as_u64() >= Some(times)
    };
    until(2 * DEADLINE, "the rewind slot is made", is_made).await;
}

async fn stop(relay: &Relay) {
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
}

/// Lets the log grow by segments, to which the relay's own slot follows, until `sql` holds.
async fn grow_the_log(env: &TestEnv, sql: &str) {
    let follows = "SELECT pg_current_wal_lsn() - restart_lsn < 32 * 1024 * 1024
                   FROM pg_replication_slots WHERE slot_name = 'tailpost'";
    until(2 * DEADLINE, sql, async || {
        env.execute("SELECT pg_logical_emit_message(false, 'other', 'work')").await;
        env.execute("SELECT pg_switch_wal()").await;
        until(DEADLINE, "the relay's slot follows", async || {
            env.execute("CHECKPOINT").await;
            env.query::<bool>(follows).await
        })
        .await;
        env.query::<bool>(sql).await
    })
    .await;
}

// proves: G-REPLAY-5
#[tokio::test(flavor = "multi_thread")]
async fn what_is_older_than_max_age_is_not_kept() {
    let env = env(&[]).await;
    let _relay = env.relay();
    wait_made(&env, 1).await;
    env.insert(3).await;
    env.wait_confirmed().await;
    let mark = "SELECT count(*) FROM tailpost_rewind_marks";
    until(DEADLINE, "a time is noted", async || env.query::<i64>(mark).await > 0).await;
    env.insert(3).await;
    env.wait_confirmed().await;
    env.execute("UPDATE tailpost_rewind_marks SET at = at - interval '2 hours'").await;
    let moved = "SELECT confirmed_flush_lsn >= (SELECT min(lsn) FROM tailpost_rewind_marks)
                 FROM pg_replication_slots WHERE slot_name = 'tailpost_rewind'";
    until(DEADLINE, "the slot moves on", async || env.query::<bool>(moved).await).await;
}

/// Nobody but who set it up needs one: events go on.
// proves: G-REPLAY-6
#[tokio::test(flavor = "multi_thread")]
async fn without_a_free_replication_slot_the_relay_publishes_and_says_why_there_is_none() {
    let env = env(&[("max_replication_slots", "1")]).await;
    let relay = env.relay();
    let events = env.insert_each(20).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, events);
    let says_why = async || {
        let told = status(&env).await;
        told["slot"]["rewind"]["exists"] == false
            && told["warnings"].to_string().contains("raise max_replication_slots")
    };
    until(DEADLINE, "status says why", says_why).await;
    assert_eq!(relay.log().matches("cannot keep the rewind slot").count(), 1, "it is said once");
    assert_eq!(env.epochs().await, 1);
}

/// A slot of that name may be somebody else's.
// proves: G-REPLAY-6
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_no_relay_made_is_left_alone() {
    let mut env = env(&[]).await;
    env.execute("SELECT pg_create_logical_replication_slot('tailpost_rewind', 'pgoutput')").await;
    let at = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots
              WHERE slot_name = 'tailpost_rewind'";
    let before: String = env.query(at).await;
    let relay = env.relay();
    relay.wait_log("is not one that a relay made").await;
    env.insert(3).await;
    env.wait_marked().await;
    let told = status(&env).await;
    assert!(told["warnings"].to_string().contains("is left alone"), "{told}");
    stop(&relay).await;
    env.set("TAILPOST_REWIND__RETAIN", "off");
    let relay = env.relay();
    relay.wait_active().await;
    env.insert(3).await;
    env.wait_marked().await;
    stop(&relay).await;
    env.ends_with(0, &["slot", "drop"]).await;
    assert_eq!(env.query::<String>(at).await, before);
}

/// Between the plan and the asking, or while nobody looks: nothing is left out without a word.
// proves: G-REPLAY-7
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_whose_log_is_gone_is_paused_with_the_reason() {
    let env = env(&[]).await;
    let relay = env.relay();
    wait_made(&env, 1).await;
    env.insert(5).await;
    let from: String = env.query("SELECT pg_current_wal_insert_lsn()::text").await;
    let later = env.insert(5).await;
    env.wait_confirmed().await;
    let plan = replay(&env, 0, &["--from-lsn", &from, "--source", "wal"]).await;
    let wal = plan["plans"][0]["sources"][2].clone();
    assert!(wal["from_lsn"].is_string() && wal["bytes"].is_u64(), "{wal}");
    stop(&relay).await;
    let all = ask(&env, &["--all", "--source", "wal"]).await;
    let some = ask(&env, &["--from-lsn", &from, "--source", "wal"]).await;
    env.advance_slot("tailpost_rewind", &format!("'{from}'")).await;
    let _relay = env.relay();
    let is_paused = async || shown(&env, &all).await["status"] == "paused";
    until(DEADLINE, "it is paused", is_paused).await;
    let told = shown(&env, &all).await;
    assert_eq!((&told["published"], &told["failed"]), (&0.into(), &0.into()), "{told}");
    assert!(told["decisions"].to_string().contains("is gone"), "{told}");
    assert!(copies(&env, &all).await.is_empty());
    // The other one lacks nothing.
    wait_done(&env, &some).await;
    assert_eq!(ids(&copies(&env, &some).await), later);
    env.ends_with(0, &["replays", "cancel", &all]).await;
}

mod long {
    use super::*;

    // proves: G-REPLAY-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_rewind_slot_that_postgresql_gives_up_is_made_anew_by_itself() {
        let env = env(&[("max_slot_wal_keep_size", "96MB")]).await;
        let relay = env.relay();
        wait_made(&env, 1).await;
        let told = rewind(&env).await;
        assert_eq!((&told["wal_status"], &told["made"]), (&"reserved".into(), &1.into()), "{told}");
        let mut events = env.insert_each(5).await;
        grow_the_log(
            &env,
            "SELECT NOT EXISTS (SELECT FROM pg_replication_slots
             WHERE slot_name = 'tailpost_rewind' AND wal_status IN ('reserved', 'extended'))",
        )
        .await;
        wait_made(&env, 2).await;
        let told = status(&env).await;
        assert_eq!(
            told["slot"]["rewind"]["made_because"], "PostgreSQL had no room for its log",
            "{told}"
        );
        assert_eq!(told["slot"]["wal_status"], "reserved", "{told}");
        let (text, _) = env.ends_with(0, &["status"]).await;
        assert!(text.contains(": PostgreSQL had no room for its log"), "{text}");
        assert!(text.contains("rewind.retain is not less than max_slot_wal_keep_size"), "{text}");
        assert_eq!(env.epochs().await, 1, "the relay's own slot is the first one");
        events.extend(env.insert_each(5).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, events);
        assert!(relay.log().contains("PostgreSQL has no room for its log"), "it is said");
    }

    /// On the new primary there is neither slot. What was kept is not promised any more.
    // proves: G-REPLAY-6
    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_failover_the_rewind_slot_is_made_anew_and_promises_no_more_than_it_has() {
        let mut env = env(&[]).await;
        let standby = Postgres::start_standby_of(&env.postgres, "standby_1", true).await;
        let standby = standby.expect("start a standby");
        let relay = env.relay();
        wait_made(&env, 1).await;
        let from: String = env.query("SELECT pg_current_wal_insert_lsn()::text").await;
        env.insert(5).await;
        env.wait_marked().await;
        relay.kill9().await;
        let _old = fail_over(&mut env, standby).await;
        let relay = env.relay();
        relay.wait_active().await;
        wait_made(&env, 2).await;
        let args = ["replay", "--from-lsn", &from, "--source", "wal"];
        let (_, said) = env.ends_with(4, &args).await;
        assert!(said.contains("the log is kept from"), "{said}");
        let first = rewind(&env).await["from_lsn"].as_str().expect("a position").to_owned();
        let events = env.insert(3).await;
        env.wait_confirmed().await;
        let id = ask(&env, &["--from-lsn", &first, "--source", "wal"]).await;
        wait_done(&env, &id).await;
        assert_eq!(ids(&copies(&env, &id).await), events);
    }
}
