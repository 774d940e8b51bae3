//! Another number of shards than before: refused as long as rows could be published twice.

use std::collections::HashMap;

use support::{DEADLINE, TestEnv};
use uuid::Uuid;

use super::env;

/// How often each event is stored, in all the streams.
async fn stored(env: &TestEnv, streams: &[&str]) -> HashMap<Uuid, usize> {
    let mut stored = HashMap::new();
    for stream in streams {
        for message in env.stored_in(stream).await {
            *stored.entry(message.id).or_default() += 1;
        }
    }
    stored
}

async fn narrow(env: &TestEnv) {
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let mut config = env.stream().await.cached_info().config.clone();
    config.subjects = vec!["outbox.*.*".into()];
    jetstream.update_stream(&config).await.expect("edit the stream");
}

/// Where the stream that would tell what was published is gone, nobody guesses.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_old_stream_a_change_is_refused_while_rows_are_unmarked() {
    let mut env = env(2).await;
    env.setup().await;
    env.insert(20).await;
    env.ends_with(0, &["slot", "drop"]).await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    for stream in env.streams() {
        jetstream.delete_stream(&stream).await.expect("delete a stream");
    }
    env.set_shards(3);
    let (_, log) = env.ends_with(4, &["setup"]).await;
    assert!(log.contains("stream \"OUTBOX_0\", which would tell, does not exist"), "{log}");
    assert!(log.contains("DELETE FROM tailpost_state WHERE slot = 'tailpost_0of2'"), "{log}");
    env.execute("DELETE FROM tailpost_state").await;
    env.setup().await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(stored(&env, &["OUTBOX_0", "OUTBOX_1", "OUTBOX_2"]).await.len(), 20);
}

/// A publication that brings other rows than the shard's is refused, with what mends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_of_another_shard_is_refused_with_what_mends_it() {
    let env = env(2).await;
    env.setup().await;
    let change = "ALTER PUBLICATION tailpost_0of2 SET TABLE outbox_events";
    for filter in [
        "",
        " WHERE (aggregate_type = 'order')",
        " WHERE (hashtextextended(aggregate_id, 0) % 2 = 0)",
    ] {
        env.execute(&format!("{change}{filter}")).await;
        let (_, log) = env.ends_with(4, &["setup"]).await;
        let (_, fix) = log.split_once("run `").expect("advice");
        let (fix, _) = fix.split_once('`').expect("all of it");
        env.execute(fix).await;
        env.ends_with(0, &["setup"]).await;
    }
    env.insert(20).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(stored(&env, &["OUTBOX_0", "OUTBOX_1"]).await.len(), 20);
}

/// Of a copy in another cluster the record of the old slot says nothing, and its
/// stream is not asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_database_may_have_another_number_of_shards() {
    let mut env = env(1).await;
    env.setup().await;
    env.ends_with(0, &["relay", "--once"]).await;
    env.ends_with(0, &["slot", "drop"]).await;
    env.insert(50).await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    env.execute("UPDATE tailpost_state SET system_identifier = '7'").await;
    // As numbers of a cluster that was far ahead.
    env.execute("UPDATE outbox_events SET txid = '4000000000'").await;
    env.set_shards(2);
    env.ends_with(0, &["setup"]).await;
    env.ends_with(0, &["relay", "--once"]).await;
    let stored = stored(&env, &["OUTBOX_0", "OUTBOX_1"]).await;
    assert_eq!(stored.len(), 50, "a row with a number of the other cluster was not published");
    assert!(stored.values().all(|times| *times == 1), "published twice");
}

mod long {
    use super::*;

    /// As documented, while the application goes on writing.
    #[tokio::test(flavor = "multi_thread")]
    async fn from_two_shards_to_four_nothing_is_lost_or_published_twice_under_load() {
        let mut env = env(2).await;
        env.setup().await;
        let load = env.load(73, 500.0).await;
        let relay = env.relay();
        relay.wait_active_shards(2).await;
        load.wait_committed(200).await;
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
        env.ends_with(0, &["relay", "--once"]).await;
        env.ends_with(0, &["slot", "drop"]).await;
        load.wait_committed(100).await;

        env.set_shards(4);
        let (told, _) = env.ends_with(0, &["setup"]).await;
        assert!(told.contains("slot tailpost_0of2 published, which is gone"), "{told}");
        let _relay = env.relay();
        load.wait_committed(200).await;
        let written = load.stop().await;
        env.wait_marked().await;
        let stored = stored(&env, &["OUTBOX_0", "OUTBOX_1", "OUTBOX_2", "OUTBOX_3"]).await;
        assert_eq!(stored.len(), written.committed.len());
        assert!(stored.values().all(|count| *count == 1), "stored twice");
        assert!(written.committed.iter().all(|it| stored.contains_key(&it.id)), "lost");
    }

    /// Of two that set up different numbers of shards at the same time one is refused, or both.
    #[tokio::test(flavor = "multi_thread")]
    async fn two_numbers_of_shards_are_never_set_up_side_by_side() {
        let mut env = env(2).await;
        // The tables, so that the slots are what both make at the same time.
        env.setup().await;
        for _ in 0..5 {
            env.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
                .await;
            env.execute("DELETE FROM tailpost_state").await;
            let mut setups = Vec::new();
            for shards in [2, 3, 4] {
                env.set_shards(shards);
                let setup = env.spawn(&["setup"]);
                setup.announce("");
                setups.push(setup);
            }
            for setup in &setups {
                let code = setup.wait_exit(DEADLINE).await.code();
                assert!(matches!(code, Some(0 | 4)), "{code:?}: {}", setup.log());
            }
            let layouts =
                "SELECT count(DISTINCT substring(slot from '[0-9]+$')) FROM tailpost_state";
            assert_eq!(env.query::<i64>(layouts).await, 1, "two numbers of shards");
        }
    }

    /// What the only relay published and could not mark is not published
    /// again by one of two shards.
    #[tokio::test(flavor = "multi_thread")]
    async fn from_one_shard_to_two_nothing_is_published_twice_although_marks_lag() {
        let mut env = env(1).await;
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        env.insert(500).await;
        env.wait_stored(500).await;
        relay.kill9().await;
        drop(relay);
        assert_eq!(env.unmarked().await, 500, "killed before the marks");
        env.insert(100).await;

        env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
        env.set_shards(2);
        for command in [&["setup"][..], &["relay"], &["relay", "--once"]] {
            let (_, log) = env.ends_with(4, command).await;
            assert!(log.contains("slot \"tailpost\" is of relay.shards = 1:"), "{log}");
            assert!(log.contains("with relay.shards = 1 run `tailpost relay --once`"), "{log}");
        }
        let (told, _) = env.ends_with(3, &["status"]).await;
        assert!(told.contains("would publish rows twice"), "{told}");
        let slots = "SELECT count(*) FROM pg_replication_slots";
        assert_eq!(env.query::<i64>(slots).await, 1, "refused, and made all the same");

        // Half of the advice: nothing is drained.
        env.set_shards(1);
        env.ends_with(0, &["slot", "drop"]).await;
        env.set_shards(2);
        let (_, log) = env.ends_with(4, &["relay"]).await;
        assert!(log.contains("run `tailpost setup` with relay.shards = 2"), "{log}");
        let (_, log) = env.ends_with(4, &["setup"]).await;
        assert!(log.contains("nats stream edit OUTBOX --subjects 'outbox.*.*'"), "{log}");
        narrow(&env).await;
        let (told, _) = env.ends_with(0, &["setup"]).await;
        assert!(told.contains("DROP PUBLICATION tailpost"), "{told}");
        assert_eq!(env.unmarked().await, 100, "what the stream has is marked");
        env.insert(100).await;
        env.ends_with(0, &["relay", "--once"]).await;
        assert_eq!(env.unmarked().await, 0);
        let stored = stored(&env, &["OUTBOX", "OUTBOX_0", "OUTBOX_1"]).await;
        assert_eq!(stored.len(), 700);
        assert!(stored.values().all(|count| *count == 1), "stored twice");

        env.set_shards(1);
        let (_, log) = env.ends_with(4, &["relay"]).await;
        let named = r#"slots "tailpost_0of2", "tailpost_1of2" are of relay.shards = 2:"#;
        assert!(log.contains(named), "{log}");
    }
}
