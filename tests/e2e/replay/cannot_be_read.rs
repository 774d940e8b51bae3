//! A replay that cannot be read, or not to its end, holds no other one up.

use lab::PostgresOptions;
use rustix::process::{Pid, Signal, kill_process};
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

use super::{ask, copies, ids, shown, wait_done};

/// Servers, with a number of replication slots, and a relay's configuration that keeps the log.
async fn env(slots: u32) -> TestEnv {
    let settings = vec![("max_replication_slots".into(), slots.to_string())];
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_REWIND__RETAIN", "1GiB");
    env.setup().await;
    env
}

async fn wait_kept(env: &TestEnv) {
    let kept = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tailpost_rewind'";
    until(DEADLINE, "there is a rewind slot", async || env.query::<i64>(kept).await == 1).await;
}

/// Rows from before a column was renamed are not read in any later attempt.
// proves: G-REPLAY-7
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_read_pauses_its_replay_and_no_other() {
    let mut env = env(10).await;
    let relay = env.relay();
    wait_kept(&env).await;
    let events = env.insert(3).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    env.execute("ALTER TABLE outbox_events RENAME COLUMN payload TO body").await;
    env.set("TAILPOST_OUTBOX__COLUMNS__PAYLOAD", "body");
    let _relay = env.relay();
    let of_log = ask(&env, &["--all", "--source", "wal"]).await;
    let of_table = ask(&env, &["--all", "--source", "table"]).await;
    let is_paused = async || shown(&env, &of_log).await["status"] == "paused";
    until(DEADLINE, "the replay is paused", is_paused).await;
    let told = shown(&env, &of_log).await;
    assert!(told["decisions"].to_string().contains("is missing or renamed"), "{told}");
    wait_done(&env, &of_table).await;
    assert_eq!(ids(&copies(&env, &of_table).await), events);
}

/// What passes is waited for, and said.
// proves: G-REPLAY-7
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_the_log_says_that_there_is_no_free_slot_and_goes_on_with_one() {
    let env = env(3).await;
    env.execute("SELECT pg_create_physical_replication_slot('of_others')").await;
    let _relay = env.relay();
    wait_kept(&env).await;
    let events = env.insert(3).await;
    env.wait_confirmed().await;
    let id = ask(&env, &["--all", "--source", "wal"]).await;
    let says_why = async || {
        let told = shown(&env, &id).await;
        told["waits_for"].as_str().is_some_and(|it| it.contains("max_replication_slots"))
    };
    until(DEADLINE, "it is said why", says_why).await;
    env.drop_slot("of_others").await;
    let done = wait_done(&env, &id).await;
    assert!(done["waits_for"].is_null(), "{done}");
    assert_eq!(ids(&copies(&env, &id).await), events);
}

fn signal(process: i32, signal: Signal) {
    let process = Pid::from_raw(process).expect("a process");
    kill_process(process, signal).expect("send a signal");
}

mod long {
    use super::*;

    /// A process that does not answer stands for one that decodes a log without an event in it.
    // proves: G-REPLAY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_replay_that_is_still_reading_ends_when_it_is_cancelled() {
        let env = env(10).await;
        let _relay = env.relay();
        wait_kept(&env).await;
        let events = env.insert_each(600).await;
        env.wait_marked().await;
        env.wait_confirmed().await;
        let id = ask(&env, &["--all", "--source", "wal", "--rate", "100"]).await;
        let published = format!("SELECT published FROM tailpost_replays WHERE id = '{id}'");
        until(DEADLINE, "it has begun", async || env.query::<i64>(&published).await > 0).await;
        let reader: i32 =
            env.query("SELECT active_pid FROM pg_replication_slots WHERE temporary").await;
        signal(reader, Signal::STOP);
        let is_stuck = async || env.query::<i64>(&published).await % 256 == 0;
        until(DEADLINE, "nothing more is read", is_stuck).await;
        env.ends_with(0, &["replays", "cancel", &id]).await;
        let next = ask(&env, &["--all", "--source", "table"]).await;
        wait_done(&env, &next).await;
        signal(reader, Signal::CONT);
        assert_eq!(copies(&env, &next).await.len(), events.len());
        let reading = "SELECT count(*) FROM pg_replication_slots WHERE temporary";
        until(DEADLINE, "its slot is gone", async || env.query::<i64>(reading).await == 0).await;
    }

    /// While its copies wait for the broker, or for their time, no snapshot of it is open.
    // proves: G-REPLAY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_replay_of_the_log_does_not_hold_vacuum_back() {
        let env = env(10).await;
        let _relay = env.relay();
        wait_kept(&env).await;
        // More than a connection's buffers hold, in one transaction.
        env.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             SELECT gen_random_uuid(), 'order', n::text, 'created', jsonb_build_object('text', repeat(md5(n::text), 600))
             FROM generate_series(1, 2000) n",
        )
        .await;
        env.wait_marked().await;
        env.wait_confirmed().await;
        let id = ask(&env, &["--all", "--source", "wal", "--rate", "1"]).await;
        let published = format!("SELECT published FROM tailpost_replays WHERE id = '{id}'");
        until(DEADLINE, "it has begun", async || env.query::<i64>(&published).await > 2).await;
        let held = "SELECT count(*) FROM pg_stat_activity
                    WHERE backend_xmin IS NOT NULL AND application_name = 'tailpost replay of the log'";
        assert_eq!(env.query::<i64>(held).await, 0, "it holds a snapshot");
        env.ends_with(0, &["replays", "cancel", &id]).await;
    }
}
