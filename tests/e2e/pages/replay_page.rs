//! docs/replay.md, command by command.

use support::{DEADLINE, TestEnv, until};

use super::shown::{Step, steps};

const PAGE: &str = include_str!("../../../docs/replay.md");

/// What the page calls the positions and the replays that differ from run to run.
const SINCE: &str = "0/15C8118";
const TOO_EARLY: &str = "0/1500000";
const KEPT: &str = "0/1681950";
const SLOW: &str = "64c17b1f-aad8-4486-8065-f4ec2a128306";

/// The page's commands, of each of its two scenes.
fn scenes() -> [Vec<Step>; 2] {
    let (page, _) = PAGE.split_once("\n## Sending one consumer back\n").expect("a part of its own");
    let mut before = steps(page);
    assert_eq!(before.len(), 13, "the test knows what happens between the page's commands");
    let mut log = before.split_off(4);
    before.extend(log.split_off(3));
    [before, log]
}

async fn position(env: &TestEnv) -> String {
    env.query("SELECT pg_current_wal_insert_lsn()::text").await
}

/// The replay that was asked for last, once it has published so many events.
async fn replay(env: &TestEnv, published: i64) -> String {
    let latest = "FROM tailpost_replays ORDER BY asked_at DESC LIMIT 1";
    let count = format!("SELECT published::bigint {latest}");
    until(DEADLINE, "it has come so far", async || env.query::<i64>(&count).await >= published)
        .await;
    env.query(&format!("SELECT id::text {latest}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_purged_is_filled_and_a_replay_is_paused_as_the_page_shows() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let since = position(&env).await;
    env.insert(1200).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    let [scene, _] = scenes();
    let [plan, purged, execute, whole, slow, pause, paused, resume, cancel, list] = &scene[..]
    else {
        panic!("{} commands", scene.len());
    };
    plan.play(&env, &[(SINCE, &since)]).await;
    env.purge().await;
    purged.play(&env, &[]).await;
    execute.play(&env, &[(SINCE, &since)]).await;
    whole.play(&env, &[]).await;
    assert_eq!(env.stored_count().await, 1200);

    slow.play(&env, &[]).await;
    let id = replay(&env, 1).await;
    for step in [pause, paused, resume, cancel, list] {
        step.play(&env, &[(SLOW, &id)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_a_source_as_the_page_shows() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_REWIND__RETAIN", "1GiB");
    env.setup().await;
    env.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '2GB'").await;
    env.execute("SELECT pg_reload_conf()").await;
    let _relay = env.relay();
    env.insert(1100).await;
    env.wait_marked().await;
    let is_kept = async || {
        let (told, _) = env.ends_with(0, &["status"]).await;
        told.contains(" ago, keeps ")
    };
    until(DEADLINE, "the rewind slot is there, and old enough to have a time", is_kept).await;
    let kept = position(&env).await;
    env.insert_each(10).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    let [_, scene] = scenes();
    let [status, from_log, too_early] = &scene[..] else { panic!("{} commands", scene.len()) };
    for step in [status, from_log, too_early] {
        step.play(&env, &[(KEPT, &kept), (TOO_EARLY, "0/1")]).await;
    }
}
