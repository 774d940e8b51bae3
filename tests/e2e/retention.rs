//! Rows that nobody needs any more are deleted, and no others are, whatever goes on.

mod beside_relay;
mod contradictions;
mod converted;
mod old_records;
mod partitioned;
mod watermarks;

use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, until};
use uuid::Uuid;

/// Longer ago than anything is kept here.
const LONG_AGO: &str = "now() - interval '100 days'";

/// Nothing is deleted but by [`maintain`]; what was published a second ago may be.
pub(crate) async fn env() -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "1s");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.set("TAILPOST_RETENTION__PUBLISHED", "1h");
    env
}

/// Runs `tailpost maintain`, and returns what it says of the outbox.
pub(crate) async fn maintain(env: &TestEnv, args: &[&str]) -> Value {
    let (told, said) = env.ends_with(0, &[&["maintain", "--json"], args].concat()).await;
    eprintln!("{told}{said}");
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    told["outbox"].clone()
}

/// Makes rows as old as those that may be deleted.
async fn age(env: &TestEnv, ids: &[Uuid]) {
    let client = env.client().await;
    let sql = format!("UPDATE outbox_events SET published_at = {LONG_AGO} WHERE id = ANY($1)");
    client.execute(&sql, &[&ids]).await.expect("age rows");
}

/// Waits until a watermark shows what is committed by now.
async fn wait_watermark(env: &TestEnv) {
    let now: i64 = env.query("SELECT pg_current_xact_id()::text::bigint").await;
    let shown = format!(
        "SELECT bool_and(pg_visible_in_snapshot('{now}'::xid8, watermark_snapshot))
         FROM tailpost_state"
    );
    until(DEADLINE, "a watermark shows what is committed", async || {
        env.query::<Option<bool>>(&shown).await.unwrap_or(false)
    })
    .await;
}

async fn left(env: &TestEnv) -> Vec<Uuid> {
    let rows = env.client().await.query("SELECT id FROM outbox_events ORDER BY id", &[]).await;
    rows.expect("read the outbox").iter().map(|row| row.get(0)).collect()
}

fn sorted(ids: &[&[Uuid]]) -> Vec<Uuid> {
    let mut ids = ids.concat();
    ids.sort_unstable();
    ids
}

async fn stop(relay: Relay) {
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
}

/// Of rows of every kind only those go that are resolved for long enough; a locked one
/// holds up nobody, and goes when it is free.
// proves: G-RET-1, G-RET-2
#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_resolved_for_long_is_deleted() {
    let env = env().await;
    env.setup().await;
    let relay = env.relay();
    let old = env.insert(40).await;
    let young = env.insert(10).await;
    env.wait_marked().await;
    age(&env, &old).await;
    let (locked, owed, dead) = (old[0], old[1], old[2]);
    wait_watermark(&env).await;

    // From here on nothing is published, parked or marked.
    env.nats.pause().expect("pause NATS");
    let unpublished = env.insert(10).await;
    let plant = format!(
        "UPDATE outbox_events SET occurred_at = {LONG_AGO}, publish_attempts = 3
             WHERE published_at IS NULL;
         INSERT INTO tailpost_owed (id, stream) VALUES ('{owed}', 'OUTBOX');
         INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
             reason, dead_at)
         VALUES ('{dead}', 'order', 'o-1', 'Placed', '{{}}', 'in doubt', {LONG_AGO})"
    );
    env.execute(&plant).await;
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    let sql = "SELECT FROM outbox_events WHERE id = $1 FOR UPDATE";
    lock.execute(sql, &[&locked]).await.expect("lock a row");

    env.execute(
        "INSERT INTO tailpost_replays (id, slot, status, source, stream, asked_by, reason, last_place)
         VALUES (gen_random_uuid(), 'tailpost', 'paused', 'table', 'OUTBOX', 'ada', 'x', 1)",
    )
    .await;
    let told = maintain(&env, &[]).await;
    assert!(told["held_by"].as_str().is_some_and(|it| it.starts_with("replay ")), "{told}");
    assert_eq!(told["published"], 0, "a replay may need them");
    env.execute("UPDATE tailpost_replays SET status = 'cancelled'").await;

    let planned = maintain(&env, &["--dry-run"]).await;
    assert_eq!((&planned["published"], &planned["dry_run"]), (&38.into(), &true.into()));
    assert_eq!(left(&env).await.len(), 60, "a dry run deletes nothing");
    assert_eq!(maintain(&env, &[]).await["published"], 37, "all but the locked one");
    let kept = sorted(&[&old[..3], &young, &unpublished]);
    assert_eq!(left(&env).await, kept);
    lock.commit().await.expect("let go of the row");
    assert_eq!(maintain(&env, &[]).await["published"], 1);

    env.execute("DELETE FROM tailpost_owed; DELETE FROM outbox_dead_letter").await;
    env.nats.resume().expect("resume NATS");
    env.wait_stored(60).await;
    assert_eq!(env.stored_ids().await, [&old[..], &young, &unpublished].concat());
    stop(relay).await;
}

/// A mark that is younger than the slot's watermark may be asked for: what the slot
/// brings again is judged by it.
// proves: G-RET-1
#[tokio::test(flavor = "multi_thread")]
async fn what_the_slot_may_bring_again_is_kept() {
    let env = env().await;
    env.setup().await;
    let relay = env.relay();
    let ids = env.insert(20).await;
    env.wait_marked().await;
    wait_watermark(&env).await;
    relay.kill9().await;
    drop(relay);
    // As if they had been marked since.
    age(&env, &ids).await;
    let told = maintain(&env, &[]).await;
    assert_eq!(told["published"], 0);
    assert!(told["held_by"].as_str().is_some_and(|it| it.contains("nobody reads slot tailpost")));
    let relay = env.relay();
    relay.wait_active().await;
    wait_watermark(&env).await;
    assert_eq!(maintain(&env, &[]).await["published"], 20);
    stop(relay).await;

    // Without the slot nothing brings them again.
    let ids = env.insert(5).await;
    env.ends_with(0, &["relay", "--once"]).await;
    age(&env, &ids).await;
    assert_eq!(maintain(&env, &[]).await["published"], 0);
    env.ends_with(0, &["slot", "drop"]).await;
    assert_eq!(maintain(&env, &[]).await["published"], 5);
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.stored_count().await, 25);
}

/// What somebody has to decide about stays, and what was decided about it.
// proves: G-RET-3
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_go_when_they_are_discarded_and_not_before() {
    let env = env().await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    let letter = |aggregate: &str, discarded: &str| {
        format!(
            "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
                 reason, dead_at, discarded_at)
             VALUES (gen_random_uuid(), 'order', '{aggregate}', 'Placed', '{{}}', 'x', {LONG_AGO},
                 {discarded});
             INSERT INTO outbox_dead_letter_audit (at, action, event_id, aggregate_type,
                 aggregate_id, event_type, actor, via)
             SELECT {LONG_AGO}, 'requeue', id, 'order', aggregate_id, 'Placed', 'ada', 'cli'
             FROM outbox_dead_letter WHERE aggregate_id = '{aggregate}';"
        )
    };
    let plant = [
        letter("undecided", "NULL"),
        letter("old", LONG_AGO),
        letter("fresh", "now() - interval '1 day'"),
        letter("in-doubt", LONG_AGO),
        "INSERT INTO tailpost_owed (id, parked)
         SELECT id, true FROM outbox_dead_letter WHERE aggregate_id = 'in-doubt'"
            .to_owned(),
    ];
    env.execute(&plant.concat()).await;
    wait_watermark(&env).await;
    let planned = maintain(&env, &["--dry-run"]).await;
    // What a relay makes up for it makes up for at once.
    let in_doubt = "SELECT count(*) FROM tailpost_owed";
    let extra = 1 - env.query::<i64>(in_doubt).await;
    assert!(planned["dead_letters"].as_i64().is_some_and(|it| it == 1 || it == 1 + extra));
    maintain(&env, &[]).await;
    let letters: Vec<String> = env
        .query(
            "SELECT coalesce(array_agg(aggregate_id ORDER BY aggregate_id), '{}')
             FROM outbox_dead_letter WHERE aggregate_id <> 'in-doubt'",
        )
        .await;
    assert_eq!(letters, ["fresh", "undecided"]);
    let audit = "SELECT array_agg(action ORDER BY id) FROM outbox_dead_letter_audit
                 WHERE aggregate_id = ";
    let of = async |it: &str| env.query::<Option<Vec<String>>>(&format!("{audit}'{it}'")).await;
    assert_eq!(of("undecided").await, Some(vec!["requeue".to_owned()]), "it is needed");
    assert_eq!(of("old").await, Some(vec!["purge".to_owned()]), "that it is gone is written down");
    stop(relay).await;
}

mod long {
    use super::*;

    /// Two at once do not get in each other's way, and a killed one leaves nothing behind.
    // proves: G-RET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn one_process_at_a_time_deletes_rows() {
        let env = env().await;
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        let sql = format!(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
                 published_at)
             SELECT gen_random_uuid(), 'order', 'o', 'Placed', '{{}}', {LONG_AGO}
             FROM generate_series(1, 30000)"
        );
        env.execute(&sql).await;
        wait_watermark(&env).await;
        let first = env.spawn(&["maintain", "--json"]);
        let some = async || env.query::<i64>("SELECT count(*) FROM outbox_events").await < 29_000;
        until(DEADLINE, "it has begun", some).await;
        let (_, said) = env.ends_with(4, &["maintain"]).await;
        assert!(said.contains("another process deletes old rows"), "{said}");
        first.kill9().await;
        drop(first);
        until(DEADLINE, "the lock is free", async || {
            let held =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost maintain'";
            env.query::<i64>(held).await == 0
        })
        .await;
        let before: i64 = env.query("SELECT count(*) FROM outbox_events").await;
        assert!(before > 0, "it was killed in the middle");
        let both = [env.spawn(&["maintain", "--json"]), env.spawn(&["maintain", "--json"])];
        let mut deleted = 0;
        for one in both {
            one.announce("");
            let code = one.wait_exit(DEADLINE).await.code();
            assert!(matches!(code, Some(0 | 4)), "{}", one.log());
            if code == Some(0) {
                let told: Value = serde_json::from_str(&one.stdout()).expect("one JSON object");
                deleted += told["outbox"]["published"].as_i64().expect("a number");
            }
        }
        assert_eq!(deleted, before);
        assert_eq!(left(&env).await.len(), 0);
        stop(relay).await;
    }
}
