//! Pausing, resuming, cancelling; and what is refused.

use support::{DEADLINE, TestEnv, until};

use super::{ask, copies, ids, in_commit_order, shown, wait_done};

async fn published(env: &TestEnv, id: &str) -> i64 {
    env.query(&format!("SELECT published FROM tailpost_replays WHERE id = '{id}'")).await
}

/// What cannot be done is refused before anything is.
// proves: G-REPLAY-2
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replayed_is_refused() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let why = ["--execute", "--why", "x"];
    env.ends_with(2, &["replay"]).await;
    let (_, said) = env.ends_with(2, &["replay", "--all", "--execute"]).await;
    assert!(said.contains("--why"), "{said}");
    let other = [&["replay", "--all", "--to-subject-prefix", "elsewhere"][..], &why].concat();
    let (_, said) = env.ends_with(4, &other).await;
    assert!(said.contains("add the subject elsewhere.> to it"), "{said}");
    let bad = [&["replay", "--all", "--to-subject-prefix", "a.*"][..], &why].concat();
    let (_, said) = env.ends_with(4, &bad).await;
    assert!(said.contains("is no prefix of a subject"), "{said}");
    let (told, _) = env.ends_with(0, &[&["replay", "--all"][..], &why].concat()).await;
    assert_eq!(told, "Nothing is to be done.\n");
    env.set("TAILPOST_RELAY__MODE", "poll");
    let (_, said) = env.ends_with(4, &[&["replay", "--all"][..], &why].concat()).await;
    assert!(said.contains("relay.mode = \"poll\""), "{said}");
    assert_eq!(env.query::<i64>("SELECT count(*) FROM tailpost_replays").await, 0);
}

/// A relay that is to begin at a position begins nowhere else.
// proves: G-REPLAY-4
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_postgresql_would_move_without_a_word_is_refused() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    env.insert_each(3).await;
    env.wait_confirmed().await;
    let start = ["relay", "--once", "--start-lsn"];
    let (_, said) = env.ends_with(4, &[&start[..], &["0/1"]].concat()).await;
    assert!(said.contains("is in use"), "{said}");
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    let is_read = "SELECT active FROM pg_replication_slots";
    let is_free = async || !env.query::<bool>(is_read).await;
    until(DEADLINE, "the server notices that nobody reads the slot", is_free).await;
    let confirmed: String =
        env.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots").await;
    let (_, said) = env.ends_with(4, &[&start[..], &["0/1"]].concat()).await;
    assert!(said.contains(&format!("replay --from-lsn 0/1 --to-lsn {confirmed}")), "{said}");
    env.insert_each(2).await;
    let end: String = env.query("SELECT pg_current_wal_insert_lsn()::text").await;
    let (_, said) = env.ends_with(4, &[&start[..], &[&end]].concat()).await;
    assert!(said.contains("they would be skipped"), "{said}");
    assert_eq!(env.stored_count().await, 3);
    env.ends_with(0, &[&start[..], &[&confirmed]].concat()).await;
    assert_eq!(env.stored_count().await, 5);
    env.execute("CREATE TABLE others AS SELECT 1").await;
    let end: String = env.query("SELECT pg_current_wal_insert_lsn()::text").await;
    env.ends_with(0, &[&start[..], &[&end]].concat()).await;
    env.ends_with(2, &["relay", "--start-lsn", "here"]).await;
}

mod long {
    use super::*;

    /// Paused, nothing more is published, whatever becomes of the relay; resumed, it goes on
    /// where it was; cancelled, it is over. Who decided, and why, is kept.
    // proves: G-REPLAY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_replay_is_paused_resumed_and_cancelled() {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.setup().await;
        let relay = env.relay();
        env.insert(400).await;
        env.wait_marked().await;
        let all = in_commit_order(&env).await;
        let id = ask(&env, &["--all", "--source", "table", "--rate", "40"]).await;
        until(DEADLINE, "it has begun", async || published(&env, &id).await > 0).await;
        let (told, _) =
            env.ends_with(0, &["replays", "pause", &id, "--by", "ada", "--why", "lunch"]).await;
        assert!(told.contains("is paused"), "{told}");
        // One that was killed does not know that it was paused, and the next one does.
        relay.kill9().await;
        let relay = env.relay();
        relay.wait_active().await;
        let next = env.insert(3).await;
        env.wait_marked().await;
        let before = copies(&env, &id).await.len();
        assert!(before < all.len(), "it was paused in between");
        env.ends_with(4, &["replays", "pause", &id]).await;
        env.ends_with(0, &["replays", "resume", &id]).await;
        let done = wait_done(&env, &id).await;
        assert_eq!(ids(&copies(&env, &id).await), all);
        assert_eq!(done["decisions"][0]["decision"], "pause");
        assert_eq!(
            (&done["decisions"][0]["by"], &done["decisions"][0]["why"]),
            (&"ada".into(), &"lunch".into())
        );
        assert_eq!(done["decisions"][1]["decision"], "resume");
        env.ends_with(4, &["replays", "cancel", &id]).await;

        let id = ask(&env, &["--all", "--source", "table", "--rate", "10"]).await;
        until(DEADLINE, "it has begun", async || published(&env, &id).await > 0).await;
        env.ends_with(0, &["replays", "cancel", &id]).await;
        let last = ask(&env, &["--event-id", &next[0].to_string()]).await;
        wait_done(&env, &last).await;
        let cancelled = shown(&env, &id).await;
        assert_eq!(cancelled["status"], "cancelled");
        assert!(copies(&env, &id).await.len() < 100, "{cancelled}");
        let (table, _) = env.ends_with(0, &["replays", "list"]).await;
        assert!(table.contains("cancelled") && table.contains("by ada: a test"), "{table}");
        env.ends_with(1, &["replays", "show", &id, "--follow"]).await;
        env.ends_with(3, &["replays", "show", "6c0e1d1c-6c9b-4d55-9f9e-2f3f0f3f0f3f"]).await;
    }
}
