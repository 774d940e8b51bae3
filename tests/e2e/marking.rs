//! `relay.mark`: whatever says that a row is published, each event is stored once and the status is
//! right, whatever crashes, and whichever it was before.

use std::io::Write;
use std::time::Duration;

use lab::NatsOptions;
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, until};
use uuid::Uuid;

const MARKS: [&str; 3] = ["row", "lean", "delete"];

/// A broker that forgets ids at once, so that a second publication would be stored; payloads over
/// 4 KiB are poison.
async fn env(mark: &str) -> TestEnv {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut env =
        TestEnv::with(TestEnvOptions { nats, proxied: true, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.set("TAILPOST_RELAY__MARK", mark);
    env.setup().await;
    env
}

async fn count(env: &TestEnv, status: &str) -> i64 {
    env.query(&format!("SELECT count(*) FROM outbox_status WHERE status = '{status}'")).await
}

/// Waits until the status says of `published` rows that they are, and of no other that it is not.
async fn wait_published(env: &TestEnv, published: i64) {
    let what = format!("{published} rows are published");
    until(DEADLINE, &what, async || {
        let waiting = count(env, "PENDING").await + count(env, "RETRYING").await;
        waiting == 0 && count(env, "PUBLISHED").await == published
    })
    .await;
}

async fn marked(env: &TestEnv) -> i64 {
    env.query("SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL").await
}

async fn backlog(env: &TestEnv) -> serde_json::Value {
    let (json, _) = env.ends_with(0, &["status", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    json["outbox"].clone()
}

async fn stop(relay: Relay) {
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
}

fn assert_same(mut stored: Vec<Uuid>, mut expected: Vec<Uuid>) {
    stored.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stored.len(), expected.len());
    assert_eq!(stored, expected);
}

/// Kills relays while they drain rows that wait, and when they have just stored them. Returns what
/// was inserted.
async fn killed_in_mid_drain(env: &mut TestEnv) -> Vec<Uuid> {
    let mut ids = env.insert(6_000).await;
    ids.extend(env.insert_each(200).await);
    env.set("TAILPOST_RELAY__WINDOW_EVENTS", "200");
    env.to_nats().set_delay(Duration::from_millis(5));
    let mut goal = 0;
    for _ in 0..4 {
        let relay = env.relay();
        env.wait_stored(goal + 700).await;
        relay.kill9().await;
        goal = env.stored_count().await;
        assert!(goal < 6_200, "killed in the middle: {goal}");
    }
    env.to_nats().restore().await.expect("restore the network");
    env.set("TAILPOST_RELAY__WINDOW_EVENTS", "8192");
    let relay = env.relay();
    env.wait_stored(6_200).await;
    relay.kill9().await;
    ids
}

/// Of what was stored a part is covered by the last watermark (or marked),
/// and the stream has forgotten it; a part is not; and behind it there is the gap.
async fn loses_its_slot(mark: &str) {
    let mut env = env(mark).await;
    let relay = env.relay();
    relay.wait_active().await;
    let mut ids = env.insert_each(300).await;
    let kept = if mark == "delete" { 0 } else { 300 };
    wait_published(&env, kept).await;
    env.wait_confirmed().await;
    relay.kill9().await;
    env.purge().await;
    ids.clear();
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    for _ in 0..2 {
        let relay = env.relay();
        relay.wait_active().await;
        let stored = env.stored_count().await;
        ids.extend(env.insert_each(100).await);
        env.wait_stored(stored + 100).await;
        // Without a watermark for it, mostly.
        relay.kill9().await;
        env.drop_slot("tailpost").await;
        ids.extend(env.insert(50).await);
    }
    let relay = env.relay();
    relay.wait_log("the scanner is done").await;
    ids.extend(env.insert(10).await);
    env.wait_stored(ids.len() as u64).await;
    assert_eq!(env.stored_ids().await, ids);
    assert_eq!(env.epochs().await, 3);
    stop(relay).await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let relay = env.relay();
    let kept = if mark == "delete" { 0 } else { 300 + i64::try_from(ids.len()).expect("few") };
    wait_published(&env, kept).await;
    assert_eq!(backlog(&env).await["unpublished"], 0);
    stop(relay).await;
    assert_eq!(env.stored_ids().await, ids);
}

/// Nothing tells where in the stream they were, and they are deleted nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_messages_were_purged_are_deleted_and_not_published_again() {
    let mut env = env("delete").await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = env.relay();
    env.insert_each(10).await;
    env.wait_stored(10).await;
    env.wait_confirmed().await;
    relay.kill9().await;
    env.purge().await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let _relay = env.relay();
    let rows = "SELECT count(*) FROM outbox_events";
    until(DEADLINE, "they are gone", async || env.query::<i64>(rows).await == 0).await;
    assert_eq!(env.stored_count().await, 0);
}

/// Parked, found, mended, published, and then the row says so, or is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_stays_until_it_is_requeued_however_rows_are_marked() {
    for mark in MARKS {
        let env = env(mark).await;
        let relay = env.relay();
        env.insert_each(5).await;
        let poison: Uuid = env
            .query(
                "SELECT outbox_emit('order', 'a', 'Placed',
                     jsonb_build_object('x', repeat('x', 9000)))",
            )
            .await;
        env.insert_each(5).await;
        until(DEADLINE, "one is parked", async || count(&env, "DEAD").await == 1).await;
        wait_published(&env, if mark == "delete" { 0 } else { 10 }).await;
        let id = poison.to_string();
        let mut file = tempfile::NamedTempFile::new().expect("create a file");
        file.write_all(b"{}").expect("write a payload");
        let path = file.path().to_str().expect("UTF-8");
        let wait = ["--payload-file", path, "--wait", "10s", "--direct"];
        let args = [&["outbox", "dlq", "requeue", &id][..], &wait].concat();
        let (told, _) = env.ends_with(0, &args).await;
        let place = if mark == "delete" { "" } else { " as sequence 11" };
        assert_eq!(told.trim(), format!("{id} is published{place}"), "{mark}");
        assert_eq!(env.stored_ids().await[10], poison, "{mark}");
        wait_published(&env, if mark == "delete" { 0 } else { 11 }).await;
        assert_eq!(count(&env, "DEAD").await, 0);
        // Nor does it come again.
        relay.kill9().await;
        let relay = env.relay();
        relay.wait_active().await;
        env.insert_each(1).await;
        env.wait_stored(12).await;
        assert_eq!(env.stored_count().await, 12, "{mark}");
    }
}

/// Claims are marked as they are given back; without a mark nothing tells.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_log_rows_are_marked_or_deleted_but_not_by_a_watermark() {
    let mut env = env("lean").await;
    let mut ids = env.insert_each(30).await;
    env.ends_with(0, &["relay", "--once"]).await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "2m");
    env.set("TAILPOST_RELAY__MODE", "poll");
    let (_, said) = env.ends_with(78, &["relay", "--once"]).await;
    assert!(said.contains("relay.mark") && said.contains("Nats-Msg-Id"), "{said}");

    // What the watermark said must be on the rows before somebody claims them.
    env.set("TAILPOST_RELAY__MARK", "delete");
    let (_, said) = env.ends_with(4, &["relay", "--once"]).await;
    assert!(said.contains("have no marks") && said.contains("docs/marking.md"), "{said}");
    assert_eq!(env.stored_ids().await, ids);
    env.execute(MARK_ALL).await;
    ids.extend(env.insert_each(100).await);
    let relay = env.relay();
    env.wait_stored(60).await;
    relay.kill9().await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_same(env.stored_ids().await, ids);
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, 30);
    assert_eq!(count(&env, "PUBLISHED").await, 30);
}

/// As docs/marking.md has it.
const MARK_ALL: &str = "
    UPDATE outbox_events AS event SET published_at = now()
    FROM outbox_status AS status
    WHERE status.id = event.id AND status.status = 'PUBLISHED' AND event.published_at IS NULL;
    DELETE FROM tailpost_published;";

/// Of a copy that another cluster has, transaction numbers say nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_watermark_said_is_not_forgotten_in_a_copy_of_the_database() {
    let env = env("lean").await;
    let relay = env.relay();
    let mut ids = env.insert_each(50).await;
    wait_published(&env, 50).await;
    stop(relay).await;
    env.purge().await;
    ids.clear();
    ids.extend(env.insert_each(20).await);
    env.execute("UPDATE tailpost_state SET system_identifier = '7'").await;
    // The new cluster gives numbers again that the other one had used.
    let again = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, txid)
                 SELECT gen_random_uuid(), 'order', 'o', 'Placed', '{}', max(txid::text::numeric)::text::xid8 FROM outbox_events
                 WHERE id IN (SELECT id FROM outbox_status WHERE status = 'PUBLISHED')
                 RETURNING id";
    env.execute("ALTER TABLE outbox_events DISABLE TRIGGER tailpost_fill").await;
    ids.push(env.query(again).await);
    env.execute("ALTER TABLE outbox_events ENABLE TRIGGER tailpost_fill").await;
    let relay = env.relay();
    relay.wait_log("copied from another cluster").await;
    ids.extend(env.insert_each(5).await);
    wait_published(&env, 76).await;
    assert_eq!(env.stored_ids().await, ids);
}

/// A relay that lacks the index says what makes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_needs_what_setup_makes() {
    let mut env = env("row").await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    let (_, said) = env.ends_with(3, &["relay", "--once"]).await;
    assert!(said.contains("idx_outbox_txid") && said.contains("tailpost setup"), "{said}");
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("created  index idx_outbox_txid"), "{told}");
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(!told.contains("index idx_outbox_txid"), "made anew: {told}");
    env.ends_with(0, &["relay", "--once"]).await;
}

/// An index that was left half made.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_cannot_be_used_is_named_with_what_mends_it() {
    let mut env = env("row").await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    env.execute(
        "CREATE INDEX idx_outbox_txid ON outbox_events (txid);
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_outbox_txid'::regclass",
    )
    .await;
    let (_, said) = env.ends_with(4, &["setup"]).await;
    assert!(said.contains("cannot be used") && said.contains("DROP INDEX"), "{said}");
    env.execute("DROP INDEX idx_outbox_txid").await;
    env.ends_with(0, &["setup"]).await;
    env.ends_with(0, &["relay", "--once"]).await;
}

/// What a relay believes that lost its slot does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_of_another_slot_says_nothing() {
    let env = env("lean").await;
    let relay = env.relay();
    env.insert_each(10).await;
    wait_published(&env, 10).await;
    env.execute("UPDATE tailpost_state SET start_snapshot = pg_current_snapshot()").await;
    env.insert_each(10).await;
    env.wait_stored(20).await;
    relay.wait_log("the slot's state is gone").await;
    assert_eq!((count(&env, "PUBLISHED").await, count(&env, "PENDING").await), (10, 10));
    assert_eq!(env.query::<i64>("SELECT count(*) FROM tailpost_published").await, 1);
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn killed_in_mid_drain_a_watermark_says_of_every_row_that_it_is_published() {
        let mut env = env("lean").await;
        let ids = killed_in_mid_drain(&mut env).await;
        let relay = env.relay();
        wait_published(&env, 6_200).await;
        assert_eq!(env.stored_ids().await, ids);
        assert_eq!(marked(&env).await, 0, "nothing is written to a row");
        let updated = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox_events'";
        assert_eq!(env.query::<i64>(updated).await, 0);
        assert_eq!(backlog(&env).await["unpublished"], 0);
        env.insert(7).await;
        wait_published(&env, 6_207).await;
        // What is committed while nobody reads is not published.
        relay.kill9().await;
        env.insert(3).await;
        assert_eq!(count(&env, "PENDING").await, 3);
        let told = backlog(&env).await;
        assert_eq!(told["unpublished"], 3, "{told}");
        assert!(told["oldest_unpublished_seconds"].as_f64().is_some_and(|it| it < 60.0), "{told}");
    }

    // proves: G-MARK-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_in_mid_drain_every_published_row_is_deleted_and_no_other() {
        let mut env = env("delete").await;
        let ids = killed_in_mid_drain(&mut env).await;
        let relay = env.relay();
        wait_published(&env, 0).await;
        assert_eq!(env.stored_ids().await, ids);
        assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, 0);
        relay.kill9().await;
        env.insert(3).await;
        assert_eq!(count(&env, "PENDING").await, 3);
        assert_eq!(backlog(&env).await["unpublished"], 3);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_slot_publishes_nothing_twice_though_no_row_is_marked() {
        loses_its_slot("lean").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_slot_publishes_nothing_twice_though_rows_are_to_be_deleted() {
        loses_its_slot("delete").await;
    }

    /// Also where the last of them was killed.
    #[tokio::test(flavor = "multi_thread")]
    async fn how_rows_are_marked_may_change_between_runs() {
        let mut env = env("row").await;
        let mut ids = Vec::new();
        let (mut marked_before, mut kept) = (0, 0);
        for mark in ["row", "lean", "row", "lean", "delete", "lean", "delete", "row"] {
            env.set("TAILPOST_RELAY__MARK", mark);
            env.setup().await;
            let relay = env.relay();
            relay.wait_active().await;
            ids.extend(env.insert_each(40).await);
            kept += if mark == "delete" { 0 } else { 40 };
            wait_published(&env, kept).await;
            let now = marked(&env).await;
            assert!(mark == "row" || now <= marked_before, "{mark}: {now} of {marked_before}");
            assert_eq!(backlog(&env).await["unpublished"], 0, "{mark}");
            assert_eq!(env.stored_ids().await, ids, "{mark}");
            // These are stored, and what says that they are published is lost, mostly. The next one says
            // it, in its own way.
            ids.extend(env.insert_each(10).await);
            env.wait_stored(ids.len() as u64).await;
            relay.kill9().await;
            let left: i64 = env.query("SELECT count(*) FROM outbox_events").await;
            kept = left;
            let next = MARKS.iter().position(|it| *it == mark).expect("a mode");
            if mark == "delete" || MARKS[(next + 1) % 3] == "delete" {
                // Whether they are deleted depends on the moment: count what is left by then.
                let relay = env.relay();
                let what = "nothing waits";
                until(DEADLINE, what, async || count(&env, "PENDING").await == 0).await;
                relay.kill9().await;
                kept = env.query("SELECT count(*) FROM outbox_events").await;
            }
            assert!(!relay.log().contains("without passing the log"), "{}", relay.log());
            // Some of the last may have been marked before the relay died.
            marked_before = marked(&env).await;
        }
        let relay = env.relay();
        wait_published(&env, kept).await;
        env.wait_confirmed().await;
        assert_eq!(env.stored_ids().await, ids);
        relay.kill9().await;
        // The whole table is looked at from now on, and the stream says nothing of its rows.
        env.execute("DROP INDEX idx_outbox_txid").await;
        env.purge().await;
        ids.clear();
        let relay = env.relay();
        relay.wait_active().await;
        for _ in 0..4 {
            let before: String = env.query("SELECT watermark_at::TEXT FROM tailpost_state").await;
            ids.extend(env.insert_each(1).await);
            kept += 1;
            let another = format!("SELECT watermark_at::TEXT <> '{before}' FROM tailpost_state");
            let what = "there is another watermark";
            until(DEADLINE, what, async || env.query::<bool>(&another).await).await;
        }
        wait_published(&env, kept).await;
        assert_eq!(env.stored_ids().await, ids);
        assert_eq!(backlog(&env).await["unpublished"], 0, "counted in the whole table");
        assert!(!relay.log().contains("without passing the log"), "{}", relay.log());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rows_that_a_route_drops_are_done_with_however_rows_are_marked() {
        for mark in MARKS {
            let mut env = env(mark).await;
            let mut file =
                tempfile::Builder::new().suffix(".toml").tempfile().expect("create a file");
            let route = b"[[route]]\nevent_type = \"*Heartbeat\"\ndrop = true\n";
            file.write_all(route).expect("write a route");
            env.set("TAILPOST_CONFIG", file.path().to_str().expect("UTF-8"));
            let dropped = "INSERT INTO outbox_events
                (id, aggregate_type, aggregate_id, event_type, payload)
            SELECT gen_random_uuid(), 'm', 'm', 'AHeartbeat', '{}' FROM generate_series(1, 20)";
            env.execute(dropped).await;
            let ids = env.insert_each(5).await;
            // One that is killed at once, and one that finds what is left of it.
            let relay = env.relay();
            env.wait_stored(5).await;
            relay.kill9().await;
            let _relay = env.relay();
            wait_published(&env, if mark == "delete" { 0 } else { 25 }).await;
            assert_eq!(env.stored_ids().await, ids);
            let told = backlog(&env).await;
            assert_eq!(told["unpublished"], 0, "{mark}: {told}");
            let known = if mark == "row" { 20.into() } else { serde_json::Value::Null };
            assert_eq!(told["dropped"], known, "{mark}: {told}");
        }
    }

    /// It ends when everything says that it is published.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_drain_ends_when_all_that_it_published_is_known_to_be() {
        for mark in MARKS {
            let env = env(mark).await;
            let ids = env.insert(1_000).await;
            env.ends_with(0, &["relay", "--once"]).await;
            let kept = if mark == "delete" { 0 } else { 1_000 };
            assert_eq!(count(&env, "PUBLISHED").await, kept, "{mark}");
            assert_eq!(count(&env, "PENDING").await, 0, "{mark}");
            // What a killed one stored, the next one makes known.
            let relay = env.relay();
            relay.wait_active().await;
            env.insert(10).await;
            env.wait_stored(1_010).await;
            env.wait_confirmed().await;
            relay.kill9().await;
            if mark == "lean" {
                env.ends_with(0, &["relay", "--once"]).await;
                assert_eq!(count(&env, "PENDING").await, 0, "{mark}");
            }
            assert_eq!(env.stored_ids().await[..1_000], ids);
            assert_eq!(env.stored_count().await, 1_010);
        }
    }
}
