//! What PostgreSQL's log still has, although the rows and the messages are gone.

use std::io::Write;

use lab::NatsOptions;
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, until};
use tempfile::NamedTempFile;
use uuid::Uuid;

use super::{ask, copies, ids, replay, wait_done};

const KEPT: &str = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tailpost_rewind'";

/// A relay that keeps the log.
async fn keeps_the_log(env: &mut TestEnv, retain: &str) -> Relay {
    env.set("TAILPOST_REWIND__RETAIN", retain);
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    until(DEADLINE, "there is a rewind slot", async || env.query::<i64>(KEPT).await == 1).await;
    relay
}

/// From the first position of the log on, in order, with the events' own positions; a relay
/// that is killed meanwhile stores none twice.
// proves: G-REPLAY-1
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_gone_come_back_from_the_log() {
    let mut env = TestEnv::new().await;
    let relay = keeps_the_log(&mut env, "256MiB").await;
    let mut events = env.insert_each(10).await;
    let from: String = env.query("SELECT pg_current_wal_insert_lsn()::text").await;
    events.extend(env.insert(20).await);
    events.extend(env.insert_each(70).await);
    env.wait_marked().await;
    env.wait_confirmed().await;
    let originals = env.stored().await;
    env.execute("DELETE FROM outbox_events").await;
    env.purge().await;

    let planned = replay(&env, 0, &["--from-lsn", &from, "--source", "wal"]).await;
    let sources = planned["plans"][0]["sources"].as_array().expect("a list");
    let wal = sources.iter().find(|it| it["source"] == "wal").expect("the log");
    assert_eq!(wal["is_complete"], true, "{wal}");
    let id = ask(&env, &["--from-lsn", &from, "--source", "wal", "--rate", "30"]).await;
    let published = format!("SELECT published FROM tailpost_replays WHERE id = '{id}'");
    until(DEADLINE, "it has begun", async || env.query::<i64>(&published).await > 10).await;
    relay.kill9().await;
    let _relay = env.relay();
    let done = wait_done(&env, &id).await;
    assert_eq!((&done["published"], &done["failed"]), (&90.into(), &0.into()), "{done}");
    let copied = copies(&env, &id).await;
    assert_eq!(ids(&copied), events[10..]);
    for (copy, original) in copied.iter().zip(&originals[10..]) {
        assert_eq!(copy.event(), original.event());
        let position = "Tailpost-Position";
        assert_eq!(copy.header(position), original.header(position));
    }
    // What read the log keeps nothing of it any more.
    let reading = "SELECT count(*) FROM pg_replication_slots WHERE temporary";
    until(DEADLINE, "its slot is gone", async || env.query::<i64>(reading).await == 0).await;
    // By anything else, too.
    let one = events[50].to_string();
    let args = ["--event-id", &one, "--source", "wal", "--execute", "--why", "a test"];
    let done = replay(&env, 0, &args).await;
    let copied = copies(&env, done["id"].as_str().expect("an id")).await;
    assert_eq!(ids(&copied), events[50..51]);
}

/// The log has every event that was committed, also those that the relay parked: what an operator
/// discarded, what waited behind it, and what was mended, as it was before.
// proves: G-REPLAY-1
#[tokio::test(flavor = "multi_thread")]
async fn what_was_parked_is_not_published_from_the_log() {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__ON_PARK", "block_key");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    let _relay = keeps_the_log(&mut env, "256MiB").await;
    let ids: Vec<Uuid> = (0..7).map(|_| Uuid::now_v7()).collect();
    let too_much = "to_jsonb(repeat('x', 9000))";
    let written = [
        ("fine", "'{}'"),
        ("mended", too_much),
        ("mended", "'{}'"),
        ("discarded", too_much),
        ("dead", too_much),
        ("dead", "'{}'"),
        ("fine", "'{}'"),
    ];
    for (id, (aggregate, payload)) in ids.iter().zip(written) {
        let emit = format!(
            "SELECT outbox_emit('order', '{aggregate}', 'Placed', {payload}, id => '{id}')"
        );
        env.execute(&emit).await;
    }
    env.wait_stored(2).await;
    let dead = async |n: i64| {
        let sql = "SELECT count(*) FROM outbox_dead_letter";
        until(DEADLINE, "they are parked", async || env.query::<i64>(sql).await == n).await;
    };
    dead(5).await;
    env.wait_confirmed().await;
    let decide = async |args: &[&str]| {
        let all = [&["outbox", "dlq"][..], args, &["--why", "a test", "--direct"]].concat();
        env.ends_with(0, &all).await;
    };
    decide(&["discard", &ids[3].to_string(), "--yes"]).await;
    let mut payload = NamedTempFile::new().expect("create a file");
    payload.write_all(b"{\"mended\": 1}").expect("write a payload");
    let path = payload.path().to_str().expect("UTF-8");
    decide(&["requeue", &ids[1].to_string(), "--payload-file", path]).await;
    // Mended, and what waited for it.
    env.wait_stored(4).await;
    env.wait_marked().await;
    dead(3).await;
    env.wait_confirmed().await;

    let id = ask(&env, &["--since", "1h", "--source", "wal"]).await;
    let done = wait_done(&env, &id).await;
    let copied = super::ids(&copies(&env, &id).await);
    assert_eq!(copied, [ids[0], ids[6]]);
    assert_eq!((&done["published"], &done["failed"]), (&2.into(), &5.into()), "{done}");
    let failures = done["failures"].as_array().expect("a list");
    let listed: Vec<&str> = failures.iter().filter_map(|it| it["event"].as_str()).collect();
    assert_eq!(listed, ids[1..6].iter().map(Uuid::to_string).collect::<Vec<_>>());
    for (at, says) in ["was", "was", "is", "is", "is"].into_iter().enumerate() {
        let reason = format!("it {says} a dead letter: it was not published from the log");
        assert_eq!(failures[at]["reason"], reason, "{}", failures[at]);
    }
}

mod long {
    use super::*;

    /// The slot follows behind, and is given up with the setting. Without one nothing is promised.
    // proves: G-REPLAY-5
    #[tokio::test(flavor = "multi_thread")]
    async fn the_rewind_slot_trails_behind_and_goes_with_its_setting() {
        let mut env = TestEnv::new().await;
        let relay = keeps_the_log(&mut env, "16MiB").await;
        let kept = "SELECT (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint
                    FROM pg_replication_slots WHERE slot_name = 'tailpost_rewind'";
        env.execute(
            "CREATE TABLE much AS SELECT repeat(md5(n::text), 30) FROM generate_series(1, 60000) n",
        )
        .await;
        assert!(env.query::<i64>(kept).await > 48 << 20, "that is much");
        until(DEADLINE, "it moves on", async || env.query::<i64>(kept).await < 24 << 20).await;
        let events = env.insert(3).await;
        env.wait_confirmed().await;
        let args = ["--since", "1h", "--source", "wal", "--execute", "--why", "a test"];
        let done = replay(&env, 0, &args).await;
        assert_eq!(ids(&copies(&env, done["id"].as_str().expect("an id")).await), events);
        // What is refused takes nothing along.
        env.ends_with(4, &["slot", "drop"]).await;
        env.ends_with(4, &["slot", "drop", "--force"]).await;
        assert_eq!(env.query::<i64>(KEPT).await, 1);
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
        // Where the relay's slot ends, the replay ends. Without it nothing says what was published.
        env.drop_slot("tailpost").await;
        let (_, said) = env.ends_with(4, &["replay", "--all", "--source", "wal"]).await;
        assert!(said.contains("the relay's own slot is not there"), "{said}");
        env.set("TAILPOST_REWIND__RETAIN", "off");
        let _relay = env.relay();
        until(DEADLINE, "the slot is dropped", async || env.query::<i64>(KEPT).await == 0).await;
        let (_, said) = env.ends_with(4, &["replay", "--all", "--source", "wal"]).await;
        assert!(said.contains("set rewind.retain"), "{said}");
    }
}
