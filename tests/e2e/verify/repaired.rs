//! What is found is repaired, as far as it can be, and nothing else is touched.

use serde_json::{Value, json};
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use super::{insert_aggregates, nothing_is_found, other_modes, remove, report, wait_swept};

async fn published(window: &str, aggregates: usize) -> (TestEnv, support::Relay, Vec<Vec<Uuid>>) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", window);
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "500ms");
    env.setup().await;
    let relay = env.relay();
    let ids = insert_aggregates(&env, aggregates, 3).await;
    wait_swept(&env).await;
    (env, relay, ids)
}

async fn stop(relay: support::Relay) {
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
}

async fn repair(env: &TestEnv, code: i32, execute: bool) -> Value {
    let args: &[&str] = if execute { &["--repair", "--execute"] } else { &["--repair"] };
    report(env, code, args).await["repair"].clone()
}

/// Each event is stored once, the repaired ones behind all others.
async fn assert_stored_once(env: &TestEnv, ids: &[Vec<Uuid>], repaired: &[Uuid]) {
    let mut stored = env.stored_ids().await;
    let mut last = stored[stored.len() - repaired.len()..].to_vec();
    let mut expected = repaired.to_vec();
    last.sort_unstable();
    expected.sort_unstable();
    assert_eq!(last, expected, "what was repaired comes last");
    let mut all = ids.concat();
    stored.sort_unstable();
    all.sort_unstable();
    assert_eq!(stored, all, "each event is stored once");
}

// proves: G-VERIFY-3
#[tokio::test(flavor = "multi_thread")]
async fn gaps_and_missing_marks_are_repaired_and_then_nothing_is_found() {
    let (env, relay, ids) = published("100ms", 20).await;
    let gaps: Vec<Uuid> = ids[..5].iter().map(|it| it[1]).collect();
    for id in &gaps {
        remove(&env, *id).await;
    }
    let before: String = env.query(ROWS).await;
    let plan = repair(&env, 1, false).await;
    assert_eq!((&plan["executed"], &plan["gaps"]), (&json!(false), &json!(5)), "{plan}");
    assert_eq!(env.query::<String>(ROWS).await, before, "a plan changes nothing");
    let done = repair(&env, 0, true).await;
    assert_eq!((&done["executed"], &done["given"]), (&json!(true), &json!(5)), "{done}");
    env.wait_stored(60).await;
    wait_swept(&env).await;
    nothing_is_found(&env).await;
    assert_stored_once(&env, &ids, &gaps).await;

    // Nobody marks the rows, and there is a gap without a mark, while no relay runs.
    stop(relay).await;
    let (gap, unmarked) = (ids[5][0], ids[6].clone());
    remove(&env, gap).await;
    let unmark = |id: &Uuid| {
        format!(
            "UPDATE outbox_events SET published_at = NULL, stream = NULL, stream_seq = NULL
             WHERE id = '{id}'"
        )
    };
    for id in unmarked.iter().chain([&gap]) {
        env.execute(&unmark(id)).await;
    }
    let done = repair(&env, 0, true).await;
    assert_eq!((&done["given"], &done["marked"]), (&json!(1), &json!(3)), "{done}");
    assert_eq!(env.unmarked().await, 1, "the gap's");
    let _relay = env.relay();
    env.wait_stored(60).await;
    wait_swept(&env).await;
    nothing_is_found(&env).await;
    assert_stored_once(&env, &ids, &[gaps, vec![gap]].concat()).await;
}

const ROWS: &str = "SELECT md5(string_agg(o::text, ',' ORDER BY seq)) FROM outbox_events o";

/// A row that was published a moment ago would be marked again, and its message not stored.
// proves: G-VERIFY-3
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_whose_id_the_broker_knows_is_left_until_it_does_not() {
    let (env, _relay, ids) = published("1h", 1).await;
    remove(&env, ids[0][1]).await;
    let before: String = env.query(ROWS).await;
    let done = repair(&env, 1, true).await;
    assert_eq!((&done["given"], &done["young"]), (&json!(0), &json!(1)), "{done}");
    let wait = done["young_for_seconds"].as_f64().expect("seconds");
    assert!((3_500.0..3_605.0).contains(&wait), "{done}");
    assert_eq!(env.query::<String>(ROWS).await, before, "nothing was changed");
}

mod long {
    use super::*;

    /// While a repair waits for the broker to forget, it is killed, and rows change.
    // proves: G-VERIFY-3
    #[tokio::test(flavor = "multi_thread")]
    async fn a_repair_that_is_killed_is_run_again_and_rows_that_changed_are_left_alone() {
        let (env, _relay, ids) = published("15s", 3).await;
        let gaps: Vec<Uuid> = ids.iter().map(|it| it[1]).collect();
        for id in &gaps {
            remove(&env, *id).await;
        }
        let words = ["verify", "--repair", "--execute", "--json"];
        let first = env.spawn(&words);
        first.wait_log("until the broker has forgotten").await;
        first.kill9().await;
        assert_eq!(env.unmarked().await, 0, "nothing was given yet");

        let second = env.spawn(&words);
        second.wait_log("until the broker has forgotten").await;
        let changed = format!("UPDATE outbox_events SET stream_seq = 1 WHERE id = '{}'", gaps[0]);
        env.execute(&changed).await;
        let mut client = env.client().await;
        let lock = client.transaction().await.expect("begin");
        let held = "SELECT FROM outbox_events WHERE id = $1 FOR UPDATE";
        lock.execute(held, &[&gaps[1]]).await.expect("hold a row");
        assert_eq!(second.wait_exit(DEADLINE).await.code(), Some(1), "{}", second.log());
        lock.rollback().await.expect("let go");
        let told: Value = serde_json::from_str(&second.stdout()).expect("JSON");
        let done = &told["repair"];
        assert_eq!((&done["given"], &done["changed"]), (&json!(1), &json!(2)), "{done}");
        env.wait_stored(7).await;
        let names = format!("SELECT stream_seq FROM outbox_events WHERE id = '{}'", gaps[0]);
        assert_eq!(env.query::<i64>(&names).await, 1, "it is as somebody left it");

        let done = repair(&env, 0, true).await;
        assert_eq!((&done["given"], &done["changed"]), (&json!(2), &json!(0)), "{done}");
        env.wait_stored(9).await;
        wait_swept(&env).await;
        nothing_is_found(&env).await;
    }

    /// Rows that a watermark covers have no mark that could be taken back.
    // proves: G-VERIFY-3
    #[tokio::test(flavor = "multi_thread")]
    async fn gaps_are_repaired_by_watermark_and_in_keyed_mode() {
        for setting in [("TAILPOST_RELAY__MARK", "lean"), ("TAILPOST_RELAY__MODE", "keyed")] {
            let mut env = TestEnv::new().await;
            env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
            env.set("TAILPOST_RELAY__SCAN_INTERVAL", "500ms");
            let ids = other_modes::published(&mut env, &[setting]).await;
            let gap = ids[2][1];
            remove(&env, gap).await;
            let done = repair(&env, 0, true).await;
            assert_eq!(done["given"], 1, "{setting:?}: {done}");
            let _relay = env.relay();
            env.wait_stored(15).await;
            let marked =
                format!("SELECT published_at IS NOT NULL FROM outbox_events WHERE id = '{gap}'");
            until(DEADLINE, "it is marked", async || env.query::<bool>(&marked).await).await;
            nothing_is_found(&env).await;
            assert_stored_once(&env, &ids, &[gap]).await;
        }
    }
}
