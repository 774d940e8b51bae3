//! `relay.mark`: whatever says that a row is published, each event is stored once and the status is
//! right, whatever crashes, and whichever it was before.

use std::io::Write;
use std::time::Duration;

use support::{DEADLINE, Relay, Rig, RigOptions, until};
use testbed::NatsOptions;
use uuid::Uuid;

const MODES: [&str; 3] = ["row", "watermark", "delete"];

/// A broker that forgets ids at once, so that a second publication would be stored; payloads over
/// 4 KiB are poison.
async fn rig(mark: &str) -> Rig {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut rig = Rig::with(RigOptions { nats, proxied: true, ..RigOptions::default() }).await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    rig.set("TAILPOST_RELAY__MARK", mark);
    rig.setup().await;
    rig
}

async fn count(rig: &Rig, status: &str) -> i64 {
    rig.query(&format!("SELECT count(*) FROM outbox_status WHERE status = '{status}'")).await
}

/// Waits until the status says of `published` rows that they are, and of no other that it is not.
async fn wait_published(rig: &Rig, published: i64) {
    let what = format!("{published} rows are published");
    until(DEADLINE, &what, async || {
        let waiting = count(rig, "PENDING").await + count(rig, "RETRYING").await;
        waiting == 0 && count(rig, "PUBLISHED").await == published
    })
    .await;
}

async fn marked(rig: &Rig) -> i64 {
    rig.query("SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL").await
}

async fn backlog(rig: &Rig) -> serde_json::Value {
    let (json, _) = rig.ends_with(0, &["status", "--json"]).await;
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
async fn killed_in_mid_drain(rig: &mut Rig) -> Vec<Uuid> {
    let mut ids = rig.insert(6_000).await;
    ids.extend(rig.insert_each(200).await);
    rig.set("TAILPOST_RELAY__WINDOW_EVENTS", "200");
    rig.to_nats().set_delay(Duration::from_millis(5));
    let mut goal = 0;
    for _ in 0..4 {
        let relay = rig.relay();
        rig.wait_stored(goal + 700).await;
        relay.kill9().await;
        goal = rig.stored_count().await;
        assert!(goal < 6_200, "killed in the middle: {goal}");
    }
    rig.to_nats().restore().await.expect("restore the network");
    rig.set("TAILPOST_RELAY__WINDOW_EVENTS", "8192");
    let relay = rig.relay();
    rig.wait_stored(6_200).await;
    relay.kill9().await;
    ids
}

/// R-REL-02, R-REL-03, R-REL-05, R-REL-06
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_mid_drain_a_watermark_says_of_every_row_that_it_is_published() {
    let mut rig = rig("watermark").await;
    let ids = killed_in_mid_drain(&mut rig).await;
    let relay = rig.relay();
    wait_published(&rig, 6_200).await;
    assert_eq!(rig.stored_ids().await, ids);
    assert_eq!(marked(&rig).await, 0, "nothing is written to a row");
    let updated = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox_events'";
    assert_eq!(rig.query::<i64>(updated).await, 0);
    assert_eq!(backlog(&rig).await["unpublished"], 0);
    rig.insert(7).await;
    wait_published(&rig, 6_207).await;
    // What is committed while nobody reads is not published.
    relay.kill9().await;
    rig.insert(3).await;
    assert_eq!(count(&rig, "PENDING").await, 3);
    let told = backlog(&rig).await;
    assert_eq!(told["unpublished"], 3, "{told}");
    assert!(told["oldest_unpublished_seconds"].as_f64().is_some_and(|it| it < 60.0), "{told}");
}

/// R-REL-02, R-REL-03, R-REL-05, R-REL-06
// proves: G-MARK-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_mid_drain_every_published_row_is_deleted_and_no_other() {
    let mut rig = rig("delete").await;
    let ids = killed_in_mid_drain(&mut rig).await;
    let relay = rig.relay();
    wait_published(&rig, 0).await;
    assert_eq!(rig.stored_ids().await, ids);
    assert_eq!(rig.query::<i64>("SELECT count(*) FROM outbox_events").await, 0);
    relay.kill9().await;
    rig.insert(3).await;
    assert_eq!(count(&rig, "PENDING").await, 3);
    assert_eq!(backlog(&rig).await["unpublished"], 3);
}

/// R-REL-02, R-REL-06, R-REL-12: of what was stored a part is covered by the last watermark (or marked),
/// and the stream has forgotten it; a part is not; and behind it there is the gap.
async fn loses_its_slot(mark: &str) {
    let mut rig = rig(mark).await;
    let relay = rig.relay();
    relay.wait_active().await;
    let mut ids = rig.insert_each(300).await;
    let kept = if mark == "delete" { 0 } else { 300 };
    wait_published(&rig, kept).await;
    rig.wait_confirmed().await;
    relay.kill9().await;
    rig.stream().await.purge().await.expect("purge the stream");
    ids.clear();
    rig.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    for _ in 0..2 {
        let relay = rig.relay();
        relay.wait_active().await;
        let stored = rig.stored_count().await;
        ids.extend(rig.insert_each(100).await);
        rig.wait_stored(stored + 100).await;
        // Without a watermark for it, mostly.
        relay.kill9().await;
        until(DEADLINE, "the slot is free", async || {
            let drop = "SELECT pg_drop_replication_slot('tailpost')";
            rig.client().await.batch_execute(drop).await.is_ok()
        })
        .await;
        ids.extend(rig.insert(50).await);
    }
    let relay = rig.relay();
    relay.wait_log("the scanner is done").await;
    ids.extend(rig.insert(10).await);
    rig.wait_stored(ids.len() as u64).await;
    assert_eq!(rig.stored_ids().await, ids);
    assert_eq!(rig.epochs().await, 3);
    stop(relay).await;
    rig.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let relay = rig.relay();
    let kept = if mark == "delete" { 0 } else { 300 + i64::try_from(ids.len()).expect("few") };
    wait_published(&rig, kept).await;
    assert_eq!(backlog(&rig).await["unpublished"], 0);
    stop(relay).await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// R-REL-02, R-REL-06, R-REL-12
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_slot_publishes_nothing_twice_though_no_row_is_marked() {
    loses_its_slot("watermark").await;
}

/// R-REL-02, R-REL-06, R-REL-12
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_slot_publishes_nothing_twice_though_rows_are_to_be_deleted() {
    loses_its_slot("delete").await;
}

/// R-REL-02, R-REL-06: also where the last of them was killed.
#[tokio::test(flavor = "multi_thread")]
async fn how_rows_are_marked_may_change_between_runs() {
    let mut rig = rig("row").await;
    let mut ids = Vec::new();
    let (mut marked_before, mut kept) = (0, 0);
    for mark in ["row", "watermark", "row", "watermark", "delete", "watermark", "delete", "row"] {
        rig.set("TAILPOST_RELAY__MARK", mark);
        rig.setup().await;
        let relay = rig.relay();
        relay.wait_active().await;
        ids.extend(rig.insert_each(40).await);
        kept += if mark == "delete" { 0 } else { 40 };
        wait_published(&rig, kept).await;
        let now = marked(&rig).await;
        assert!(mark == "row" || now <= marked_before, "{mark}: {now} of {marked_before}");
        assert_eq!(backlog(&rig).await["unpublished"], 0, "{mark}");
        assert_eq!(rig.stored_ids().await, ids, "{mark}");
        // These are stored, and what says that they are published is lost, mostly. The next one says
        // it, in its own way.
        ids.extend(rig.insert_each(10).await);
        rig.wait_stored(ids.len() as u64).await;
        relay.kill9().await;
        let left: i64 = rig.query("SELECT count(*) FROM outbox_events").await;
        kept = left;
        let next = MODES.iter().position(|it| *it == mark).expect("a mode");
        if mark == "delete" || MODES[(next + 1) % 3] == "delete" {
            // Whether they are deleted depends on the moment: count what is left by then.
            let relay = rig.relay();
            let what = "nothing waits";
            until(DEADLINE, what, async || count(&rig, "PENDING").await == 0).await;
            relay.kill9().await;
            kept = rig.query("SELECT count(*) FROM outbox_events").await;
        }
        assert!(!relay.log().contains("without passing the log"), "{}", relay.log());
        // Some of the last may have been marked before the relay died.
        marked_before = marked(&rig).await;
    }
    let relay = rig.relay();
    wait_published(&rig, kept).await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await, ids);
    relay.kill9().await;
    // The whole table is looked at from now on, and the stream says nothing of its rows.
    rig.execute("DROP INDEX idx_outbox_txid").await;
    rig.stream().await.purge().await.expect("purge the stream");
    ids.clear();
    let relay = rig.relay();
    relay.wait_active().await;
    for _ in 0..4 {
        let before: String = rig.query("SELECT watermark_at::TEXT FROM tailpost_state").await;
        ids.extend(rig.insert_each(1).await);
        kept += 1;
        let another = format!("SELECT watermark_at::TEXT <> '{before}' FROM tailpost_state");
        let what = "there is another watermark";
        until(DEADLINE, what, async || rig.query::<bool>(&another).await).await;
    }
    wait_published(&rig, kept).await;
    assert_eq!(rig.stored_ids().await, ids);
    assert_eq!(backlog(&rig).await["unpublished"], 0, "counted in the whole table");
    assert!(!relay.log().contains("without passing the log"), "{}", relay.log());
}

/// R-REL-06: nothing tells where in the stream they were, and they are deleted nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_messages_were_purged_are_deleted_and_not_published_again() {
    let mut rig = rig("delete").await;
    rig.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = rig.relay();
    rig.insert_each(10).await;
    rig.wait_stored(10).await;
    rig.wait_confirmed().await;
    relay.kill9().await;
    rig.stream().await.purge().await.expect("purge the stream");
    rig.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let _relay = rig.relay();
    let rows = "SELECT count(*) FROM outbox_events";
    until(DEADLINE, "they are gone", async || rig.query::<i64>(rows).await == 0).await;
    assert_eq!(rig.stored_count().await, 0);
}

/// R-DLQ-03, R-REL-10: parked, found, mended, published, and then the row says so, or is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_stays_until_it_is_requeued_however_rows_are_marked() {
    for mark in MODES {
        let rig = rig(mark).await;
        let relay = rig.relay();
        rig.insert_each(5).await;
        let poison: Uuid = rig
            .query(
                "SELECT outbox_emit('order', 'a', 'Placed',
                     jsonb_build_object('x', repeat('x', 9000)))",
            )
            .await;
        rig.insert_each(5).await;
        until(DEADLINE, "one is parked", async || count(&rig, "DEAD").await == 1).await;
        wait_published(&rig, if mark == "delete" { 0 } else { 10 }).await;
        let id = poison.to_string();
        let mut file = tempfile::NamedTempFile::new().expect("create a file");
        file.write_all(b"{}").expect("write a payload");
        let path = file.path().to_str().expect("UTF-8");
        let wait = ["--payload-file", path, "--wait", "10s", "--direct"];
        let args = [&["outbox", "dlq", "requeue", &id][..], &wait].concat();
        let (told, _) = rig.ends_with(0, &args).await;
        let place = if mark == "delete" { "" } else { " as sequence 11" };
        assert_eq!(told.trim(), format!("{id} is published{place}"), "{mark}");
        assert_eq!(rig.stored_ids().await[10], poison, "{mark}");
        wait_published(&rig, if mark == "delete" { 0 } else { 11 }).await;
        assert_eq!(count(&rig, "DEAD").await, 0);
        // Nor does it come again.
        relay.kill9().await;
        let relay = rig.relay();
        relay.wait_active().await;
        rig.insert_each(1).await;
        rig.wait_stored(12).await;
        assert_eq!(rig.stored_count().await, 12, "{mark}");
    }
}

/// R-REL-16
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_route_drops_are_done_with_however_rows_are_marked() {
    for mark in MODES {
        let mut rig = rig(mark).await;
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("create a file");
        let route = b"[[route]]\nevent_type = \"*Heartbeat\"\ndrop = true\n";
        file.write_all(route).expect("write a route");
        rig.set("TAILPOST_CONFIG", file.path().to_str().expect("UTF-8"));
        let dropped = "INSERT INTO outbox_events
                (id, aggregate_type, aggregate_id, event_type, payload)
            SELECT gen_random_uuid(), 'm', 'm', 'AHeartbeat', '{}' FROM generate_series(1, 20)";
        rig.execute(dropped).await;
        let ids = rig.insert_each(5).await;
        // One that is killed at once, and one that finds what is left of it.
        let relay = rig.relay();
        rig.wait_stored(5).await;
        relay.kill9().await;
        let _relay = rig.relay();
        wait_published(&rig, if mark == "delete" { 0 } else { 25 }).await;
        assert_eq!(rig.stored_ids().await, ids);
        let told = backlog(&rig).await;
        assert_eq!(told["unpublished"], 0, "{mark}: {told}");
        let known = if mark == "row" { 20.into() } else { serde_json::Value::Null };
        assert_eq!(told["dropped"], known, "{mark}: {told}");
    }
}

/// R-REL-06: it ends when everything says that it is published.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_when_all_that_it_published_is_known_to_be() {
    for mark in MODES {
        let rig = rig(mark).await;
        let ids = rig.insert(1_000).await;
        rig.ends_with(0, &["relay", "--once"]).await;
        let kept = if mark == "delete" { 0 } else { 1_000 };
        assert_eq!(count(&rig, "PUBLISHED").await, kept, "{mark}");
        assert_eq!(count(&rig, "PENDING").await, 0, "{mark}");
        // What a killed one stored, the next one makes known.
        let relay = rig.relay();
        relay.wait_active().await;
        rig.insert(10).await;
        rig.wait_stored(1_010).await;
        rig.wait_confirmed().await;
        relay.kill9().await;
        if mark == "watermark" {
            rig.ends_with(0, &["relay", "--once"]).await;
            assert_eq!(count(&rig, "PENDING").await, 0, "{mark}");
        }
        assert_eq!(rig.stored_ids().await[..1_000], ids);
        assert_eq!(rig.stored_count().await, 1_010);
    }
}

/// R-REL-08: claims are marked as they are given back; without a mark nothing tells.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_log_rows_are_marked_or_deleted_but_not_by_a_watermark() {
    let mut rig = rig("watermark").await;
    let mut ids = rig.insert_each(30).await;
    rig.ends_with(0, &["relay", "--once"]).await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "2m");
    rig.set("TAILPOST_RELAY__MODE", "poll");
    let (_, said) = rig.ends_with(78, &["relay", "--once"]).await;
    assert!(said.contains("relay.mark") && said.contains("only a row's own mark"), "{said}");

    // What the watermark said must be on the rows before somebody claims them.
    rig.set("TAILPOST_RELAY__MARK", "delete");
    let (_, said) = rig.ends_with(4, &["relay", "--once"]).await;
    assert!(said.contains("have no marks") && said.contains("docs/marking.md"), "{said}");
    assert_eq!(rig.stored_ids().await, ids);
    rig.execute(MARK_ALL).await;
    ids.extend(rig.insert_each(100).await);
    let relay = rig.relay();
    rig.wait_stored(60).await;
    relay.kill9().await;
    rig.ends_with(0, &["relay", "--once"]).await;
    assert_same(rig.stored_ids().await, ids);
    assert_eq!(rig.query::<i64>("SELECT count(*) FROM outbox_events").await, 30);
    assert_eq!(count(&rig, "PUBLISHED").await, 30);
}

/// As docs/marking.md has it.
const MARK_ALL: &str = "
    UPDATE outbox_events AS event SET published_at = now()
    FROM outbox_status AS status
    WHERE status.id = event.id AND status.status = 'PUBLISHED' AND event.published_at IS NULL;
    DELETE FROM tailpost_published;";

/// R-REL-12: of a copy that another cluster has, transaction numbers say nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_watermark_said_is_not_forgotten_in_a_copy_of_the_database() {
    let rig = rig("watermark").await;
    let relay = rig.relay();
    let mut ids = rig.insert_each(50).await;
    wait_published(&rig, 50).await;
    stop(relay).await;
    rig.stream().await.purge().await.expect("purge the stream");
    ids.clear();
    ids.extend(rig.insert_each(20).await);
    rig.execute("UPDATE tailpost_state SET system_identifier = '7'").await;
    // The new cluster gives numbers again that the other one had used.
    let again = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, txid)
                 SELECT gen_random_uuid(), 'order', 'o', 'Placed', '{}', max(txid) FROM outbox_events
                 WHERE id IN (SELECT id FROM outbox_status WHERE status = 'PUBLISHED')
                 RETURNING id";
    ids.push(rig.query(again).await);
    let relay = rig.relay();
    relay.wait_log("copied from another cluster").await;
    ids.extend(rig.insert_each(5).await);
    wait_published(&rig, 76).await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// R-OUT-08: a relay that lacks the index says what makes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_needs_what_setup_makes() {
    let mut rig = rig("row").await;
    rig.set("TAILPOST_RELAY__MARK", "watermark");
    let (_, said) = rig.ends_with(3, &["relay", "--once"]).await;
    assert!(said.contains("idx_outbox_txid") && said.contains("tailpost setup"), "{said}");
    let (told, _) = rig.ends_with(0, &["setup"]).await;
    assert!(told.contains("created  index of transactions"), "{told}");
    let (told, _) = rig.ends_with(0, &["setup"]).await;
    assert!(told.contains("exists   index of transactions"), "{told}");
    rig.ends_with(0, &["relay", "--once"]).await;
}

/// R-OUT-08: an index that was left half made.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_cannot_be_used_is_named_with_what_mends_it() {
    let mut rig = rig("row").await;
    rig.set("TAILPOST_RELAY__MARK", "watermark");
    rig.execute(
        "CREATE INDEX idx_outbox_txid ON outbox_events (txid);
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_outbox_txid'::regclass",
    )
    .await;
    let (_, said) = rig.ends_with(4, &["setup"]).await;
    assert!(said.contains("cannot be used") && said.contains("DROP INDEX"), "{said}");
    rig.execute("DROP INDEX idx_outbox_txid").await;
    rig.ends_with(0, &["setup"]).await;
    rig.ends_with(0, &["relay", "--once"]).await;
}

/// R-REL-06, R-REL-12: what a relay believes that lost its slot does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_of_another_slot_says_nothing() {
    let rig = rig("watermark").await;
    let relay = rig.relay();
    rig.insert_each(10).await;
    wait_published(&rig, 10).await;
    rig.execute("UPDATE tailpost_state SET start_snapshot = pg_current_snapshot()").await;
    rig.insert_each(10).await;
    rig.wait_stored(20).await;
    relay.wait_log("the slot's state is gone").await;
    assert_eq!((count(&rig, "PUBLISHED").await, count(&rig, "PENDING").await), (10, 10));
    assert_eq!(rig.query::<i64>("SELECT count(*) FROM tailpost_published").await, 1);
}
