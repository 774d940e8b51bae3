//! `pg_upgrade`, while producers write whenever PostgreSQL runs.

use lab::Tally;
use support::{DEADLINE, TestEnv, until};

use super::{env, prepared, stop};

/// Nothing lost, nothing doubled, and the rows of the gap in the order of the table.
async fn assert_kept(env: &TestEnv, written: &lab::Written) -> Tally {
    env.wait_marked().await;
    let tally = env.tally(written).await;
    assert_eq!((tally.lost, tally.duplicates, tally.phantoms), (0, 0, 0), "{tally}");
    env.ends_with(0, &["verify"]).await;
    tally
}

async fn upgraded(from: u32, to: u32) {
    let mut env = env(from, &[]).await;
    let relay = env.relay();
    relay.wait_active().await;
    let load = env.load(81, 300.0).await;
    load.wait_committed(300).await;
    let report = prepared(&env, 0, "30s").await;
    assert_eq!(report["server"], from, "{report}");
    assert_eq!(report["next"][1]["run"], "tailpost slot drop", "{report}");
    load.wait_committed(50).await; // producers go on all the time
    stop(relay).await;
    load.wait_committed(50).await;
    env.ends_with(0, &["slot", "drop"]).await;
    load.wait_committed(50).await;
    env.postgres.stop_fast().await.expect("stop PostgreSQL");
    env.postgres.upgrade_to(to).await.expect("upgrade");
    env.postgres.start_again().await.expect("start PostgreSQL");
    assert_eq!(env.postgres.version(), to);
    load.wait_committed(50).await; // and nobody has run anything yet
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("exists   publication tailpost"), "{told}");
    assert!(told.contains("created  slot tailpost"), "{told}");
    let relay = env.relay();
    relay.wait_active().await;
    load.wait_committed(200).await;
    let written = load.stop().await;
    assert_kept(&env, &written).await;
    assert_eq!(env.epochs().await, 2);
    // What commits from now on is in the order of the commits again.
    let before = env.stored_count().await;
    let ids = env.insert_each(20).await;
    env.wait_marked().await;
    let stored = env.stored_ids().await;
    assert_eq!(stored[usize::try_from(before).expect("fits")..], ids[..]);
}

mod long {
    use super::*;

    // proves: G-UPGRADE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn pg_upgrade_from_15_to_17_loses_and_doubles_nothing_while_producers_write() {
        upgraded(15, 17).await;
    }

    // proves: G-UPGRADE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn pg_upgrade_from_16_to_18_loses_and_doubles_nothing_while_producers_write() {
        upgraded(16, 18).await;
    }

    /// From 17 on `pg_upgrade` takes slots along, if nothing is left in their log, and refuses
    /// otherwise. Nobody dropped the slot, or ran `setup`.
    // proves: G-UPGRADE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_slot_that_pg_upgrade_takes_along_is_made_anew_and_costs_no_event() {
        let mut env = env(17, &[]).await;
        let relay = env.relay();
        relay.wait_active().await;
        let mut ids = env.insert_each(50).await;
        prepared(&env, 0, "30s").await;
        relay.kill9().await;
        ids.extend(env.insert_each(1).await);
        env.postgres.stop_fast().await.expect("stop PostgreSQL");
        let refused = env.postgres.upgrade_to(18).await.expect_err("the slot's log has an event");
        assert!(format!("{refused:#}").contains("cannot be upgraded"), "{refused:#}");
        env.postgres.start_again().await.expect("start PostgreSQL");
        env.ends_with(0, &["relay", "--once"]).await;
        // What a relay writes itself is in the log behind what it confirms. Of that, what is on the disk can
        // be passed.
        until(DEADLINE, "nothing is left in the slot's log", async || {
            env.advance_slot("tailpost", "pg_current_wal_insert_lsn()").await;
            env.confirmed().await >= env.wal_end().await
        })
        .await;
        env.postgres.stop_fast().await.expect("stop PostgreSQL");
        env.postgres.upgrade_to(18).await.expect("upgrade");
        env.postgres.start_again().await.expect("start PostgreSQL");
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tailpost'";
        assert_eq!(env.query::<i64>(slots).await, 1, "it was taken along");
        ids.extend(env.insert_each(10).await);
        let relay = env.relay();
        relay.wait_log("copied from another cluster").await;
        ids.extend(env.insert_each(10).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
        env.wait_confirmed().await;
        env.ends_with(0, &["verify"]).await;
    }
}
