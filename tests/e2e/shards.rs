//! Several shards: each event in one of them, once and in order, whatever dies.

mod change;
mod cluster;

use std::collections::{HashMap, HashSet};

use lab::{NatsOptions, Port};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};
use uuid::Uuid;

/// Aggregates that are hard to tell apart, or to write: type and id.
const ODD: [(&str, &str); 12] = [
    ("order", ""),
    ("", "order"),
    ("a:b", "c"),
    ("a", "b:c"),
    ("a b", "c"),
    ("a", "b c"),
    ("o'r", "\"d\" \\ %"),
    ("größe", "日本語 🦀"),
    ("größe", "e\u{301}"),
    ("größe", "\u{e9}"),
    ("ORDER", "O-1"),
    ("order", "o-1"),
];

/// Servers whose broker forgets ids at once: what is published twice is stored twice.
async fn env(shards: u32) -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.set_shards(shards);
    env
}

/// Inserts one event of each odd aggregate, and of many plain ones.
async fn insert_odd(env: &TestEnv) {
    let client = env.client().await;
    for (kind, id) in ODD {
        let sql =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   VALUES (gen_random_uuid(), $1, $2, 'Placed', '{}')";
        client.execute(sql, &[&kind, &id]).await.expect("insert an event");
    }
    let sql = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               SELECT gen_random_uuid(), 'plain', n::text, 'Placed', '{}'
               FROM generate_series(1, 100) AS n";
    client.execute(sql, &[]).await.expect("insert events");
}

/// The streams that have events of each aggregate, and how many of it.
async fn places(env: &TestEnv) -> HashMap<(String, String), (HashSet<usize>, usize)> {
    let mut places: HashMap<_, (HashSet<usize>, usize)> = HashMap::new();
    for (number, stream) in env.streams().iter().enumerate() {
        for message in env.stored_in(stream).await {
            assert!(message.subject.starts_with(&format!("outbox.{number}.")), "{message:?}");
            let event = message.event();
            let aggregate = (event.aggregate_type.to_string(), event.aggregate_id.to_string());
            let place = places.entry(aggregate).or_default();
            place.0.insert(number);
            place.1 += 1;
        }
    }
    places
}

async fn epochs(env: &TestEnv) -> Vec<i64> {
    let sql = "SELECT array_agg(epoch ORDER BY slot COLLATE \"C\") FROM tailpost_state";
    env.query(sql).await
}

/// The row filter, which decides for the log, and the scanner's statement
/// are of one mind about every aggregate; and `--once` drains all shards.
#[tokio::test(flavor = "multi_thread")]
async fn filter_and_scanner_put_each_aggregate_into_the_same_shard() {
    let env = env(4).await;
    env.execute(crate::scanner::DOCUMENTED_TABLE).await;
    insert_odd(&env).await;
    env.setup().await;
    insert_odd(&env).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.unmarked().await, 0);
    let places = places(&env).await;
    assert_eq!(places.len(), ODD.len() + 100);
    for (aggregate, (streams, count)) in &places {
        assert_eq!((streams.len(), *count), (1, 2), "{aggregate:?}: {streams:?}");
    }
    let used: HashSet<_> = places.values().flat_map(|(streams, _)| streams).collect();
    assert_eq!(used.len(), 4, "a shard has none of a hundred aggregates");
    let scanned = "SELECT sum(gap_rows)::BIGINT FROM tailpost_state";
    assert_eq!(env.query::<i64>(scanned).await, ODD.len() as i64 + 100, "half came by the scanner");
}

/// One shard's slot is lost; the others have nothing to do with its gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_of_one_shard_is_filled_by_that_shard_alone() {
    let env = env(3).await;
    env.setup().await;
    env.insert(30).await;
    env.ends_with(0, &["relay", "--once"]).await;
    env.drop_slot("tailpost_1of3").await;
    let ids = env.insert(50).await;
    let relay = env.relay();
    env.wait_marked().await;
    assert_eq!(epochs(&env).await, [1, 2, 1]);
    env.assert_exact(&lab::Written::default()).await;
    let ours: HashSet<Uuid> = ids.into_iter().collect();
    let in_the_gap = env.stored_in("OUTBOX_1").await;
    let in_the_gap = in_the_gap.iter().filter(|it| ours.contains(&it.id)).count();
    assert!(in_the_gap > 0, "the shard has none of ten aggregates");
    let gaps = "SELECT array_agg(coalesce(gap_rows, 0) ORDER BY slot COLLATE \"C\")
                FROM tailpost_state";
    until(DEADLINE, "the gap is noted", async || {
        env.query::<Vec<i64>>(gaps).await == [0, in_the_gap as i64, 0]
    })
    .await;
    drop(relay);
}

/// What another shard's log is yet to bring is nothing to this one's sweeper, however long it
/// takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_shards_sweeper_leaves_the_rows_of_others_alone() {
    let env = env(2).await;
    env.setup().await;
    let first = env.spawn(&["relay", "--shard", "0"]);
    // Stored before what it covers is swept. A row is suspected at one, and judged at the next.
    let watermark = "SELECT coalesce(watermark_lsn - '0/0'::PG_LSN, 0)::BIGINT
                     FROM tailpost_state WHERE slot = 'tailpost_0of2'";
    for _ in 0..4 {
        env.insert(15).await;
        let end = env.wal_end().await;
        until(DEADLINE, "a watermark covers the rows", async || {
            env.query::<i64>(watermark).await.cast_unsigned() >= end
        })
        .await;
    }
    let left = env.unmarked().await;
    assert!((1..60).contains(&left), "{left} rows are in the second shard");
    let untouched = "SELECT count(*) FROM outbox_events
                     WHERE published_at IS NULL AND txid::text::BIGINT > 3";
    assert_eq!(env.query::<i64>(untouched).await, left, "rows were left to a scanner");
    let _second = env.spawn(&["relay", "--shard", "1"]);
    env.wait_marked().await;
    env.assert_exact(&lab::Written::default()).await;
    let gaps = "SELECT sum(coalesce(gap_rows, 0))::BIGINT FROM tailpost_state";
    assert_eq!(env.query::<i64>(gaps).await, 0, "the log brought all of them");
    drop(first);
}

/// R-OPS: what operators see of several shards, running or not.
#[tokio::test(flavor = "multi_thread")]
async fn status_readiness_metrics_and_slots_tell_of_every_shard() {
    let mut env = env(2).await;
    let (plan, _) = env.ends_with(0, &["setup", "--print"]).await;
    for part in [
        "CREATE PUBLICATION tailpost_1of2",
        "\"OUTBOX_1\"",
        "outbox.1.*.*",
        "WHERE (((hash",
        "idx_outbox_txid",
    ] {
        assert!(plan.contains(part), "{part} is missing:\n{plan}");
    }
    env.setup().await;
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(!told.contains("created "), "the second time all is there:\n{told}");
    let indexed = "SELECT to_regclass('idx_outbox_txid') IS NOT NULL";
    assert!(env.query::<bool>(indexed).await, "shards look at each other's rows");
    env.insert(20).await;
    let (told, _) = env.ends_with(0, &["status", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let count = |shard: usize| told["shards"][shard]["unpublished"].as_u64().expect("a number");
    assert_eq!(count(0) + count(1), 20);
    assert!(count(0) > 0 && count(1) > 0, "{told}");
    assert_eq!(told["shards"][1]["slot"]["name"], "tailpost_1of2");
    assert_eq!(told["shards"][1]["stream"]["name"], "OUTBOX_1");

    let port = Port::reserve().expect("a port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    let relay = env.relay();
    relay.wait_active_shards(2).await;
    env.wait_marked().await;
    let (told, _) = env.ends_with(0, &["status"]).await;
    for part in ["relay 0        active", "relay 1        active", "shard 1        0 unpublished"] {
        assert!(told.contains(part), "{part} is missing:\n{told}");
    }
    let (told, _) = env.ends_with(0, &["slot", "list"]).await;
    assert!(told.contains("* tailpost_0of2") && told.contains("* tailpost_1of2"), "{told}");
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
}

/// What an operator has to mend in one shard ends the process; what passes by itself does
/// not.
#[tokio::test(flavor = "multi_thread")]
async fn a_shards_trouble_that_passes_leaves_the_others_alone_and_other_trouble_ends_all() {
    let env = env(2).await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_active_shards(2).await;
    env.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
         WHERE slot_name = 'tailpost_0of2'",
    )
    .await;
    relay.wait_active_shards(3).await;
    env.insert(20).await;
    env.wait_marked().await;
    // Or it found the slot in use and waited, as a standby does, while the walsender ended.
    assert!(relay.log().matches("starting anew").count() <= 1, "{}", relay.log());

    relay.announce("publication");
    env.execute("ALTER PUBLICATION tailpost_1of2 SET TABLE outbox_events").await;
    env.insert(1).await;
    assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
    let log = relay.log();
    assert!(log.contains("error: shard 1: publication \"tailpost_1of2\""), "{log}");
    assert!(log.contains("ALTER PUBLICATION tailpost_1of2 SET TABLE"), "{log}");
    assert!(log.contains("WHERE (((hashtextextended"), "{log}");
    assert!(log.contains(" stopped "), "the other stopped cleanly: {log}");
}

mod long {
    use super::*;

    // proves: G-ORDER-1
    #[tokio::test(flavor = "multi_thread")]
    async fn four_shards_killed_at_any_moment_store_each_event_once_in_order() {
        let mut env = TestEnv::proxied().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.set_shards(4);
        env.setup().await;
        let load = env.load(71, 1_000.0).await;
        let mut random = StdRng::seed_from_u64(71);
        for _ in 0..8 {
            let relay = env.relay();
            let active = random.random_range(0..=4);
            relay.wait_active_shards(active).await;
            let moment = std::time::Duration::from_micros(random.random_range(0..300_000));
            tokio::time::sleep(moment).await;
            if random.random_bool(0.5) {
                env.to_nats().cut().await;
            }
            relay.kill9().await;
            env.to_nats().restore().await.expect("restore the network");
        }
        let relay = env.relay();
        load.wait_committed(200).await;
        env.finish(load).await;
        assert_eq!(epochs(&env).await, [1; 4], "no relay took its own slot for another one");
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
        assert_eq!(relay.log().matches(" stopped ").count(), 4, "each stopped by itself");
    }

    /// A process for each shard, as on several machines.
    #[tokio::test(flavor = "multi_thread")]
    async fn shards_run_in_processes_of_their_own() {
        let env = env(2).await;
        env.setup().await;
        let load = env.load(72, 500.0).await;
        let (first, second) =
            (env.spawn(&["relay", "--shard", "0"]), env.spawn(&["relay", "--shard", "1"]));
        first.wait_active().await;
        second.wait_active().await;
        load.wait_committed(200).await;
        first.kill9().await;
        load.wait_committed(200).await;
        let _again = env.spawn(&["relay", "--shard", "0"]);
        env.finish(load).await;
        let (_, log) = env.ends_with(78, &["relay", "--shard", "2"]).await;
        assert!(log.contains("--shard") && log.contains("0 to 1"), "{log}");
    }

    /// With `--once` a shard that somebody else drains does not keep the others from being drained.
    #[tokio::test(flavor = "multi_thread")]
    async fn draining_all_shards_drains_those_that_are_free() {
        let env = env(3).await;
        env.setup().await;
        let other = env.spawn(&["relay", "--shard", "0"]);
        other.wait_active().await;
        env.insert(5_000).await;
        let (_, log) = env.ends_with(4, &["relay", "--once"]).await;
        assert!(
            log.contains("error: shard 0: replication slot \"tailpost_0of3\" is in use"),
            "{log}"
        );
        env.wait_marked().await;
    }

    /// A requeued event takes its aggregate's way.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_requeued_event_is_published_by_its_own_shard() {
        let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
        let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
        env.set("TAILPOST_RELAY__ON_PARK", "block_key");
        env.set_shards(2);
        env.setup().await;
        let relay = env.relay();
        // A poisoned event and a follower, of many aggregates.
        env.execute(
            "SELECT outbox_emit('order', 'o-' || n, 'Placed', jsonb_build_object('x', repeat('x', b)))
             FROM generate_series(1, 8) AS n, LATERAL (VALUES (1), (9000), (2)) AS sizes (b)",
        )
        .await;
        let dead = "SELECT count(*) FROM outbox_dead_letter WHERE discarded_at IS NULL";
        until(DEADLINE, "16 dead letters", async || env.query::<i64>(dead).await == 16).await;
        env.wait_marked().await;

        let args = ["outbox", "dlq", "list", "--direct", "--json", "--limit", "100"];
        let told: Value = serde_json::from_str(&env.ends_with(0, &args).await.0).expect("JSON");
        let letters = told["dead_letters"].as_array().expect("a list").clone();
        let before = places(&env).await;
        for letter in &letters {
            let id = letter["aggregate_id"].as_str().expect("an id").to_owned();
            let shard = usize::try_from(letter["shard"].as_u64().expect("a shard")).expect("small");
            assert_eq!(before[&("order".to_owned(), id)].0, HashSet::from([shard]), "{letter}");
        }
        // The relay of the second shard is away: nobody else releases what waits there.
        relay.kill9().await;
        drop(relay);
        let _first = env.spawn(&["relay", "--shard", "0"]);
        for letter in letters.iter().filter(|it| it["blocked_by"].is_null()) {
            let id = letter["id"].as_str().expect("an id");
            env.ends_with(0, &["outbox", "dlq", "discard", id, "--direct", "--yes", "--why", "x"])
                .await;
        }
        let followers = letters.iter().filter(|it| it["blocked_by"].is_string());
        let of_second = followers.filter(|it| it["shard"] == 1).count() as i64;
        assert!(
            (1..8).contains(&of_second),
            "{of_second} of eight aggregates are in the second shard"
        );
        until(DEADLINE, "the first's followers follow", async || {
            env.query::<i64>(dead).await == of_second
        })
        .await;
        env.wait_marked().await;
        assert_eq!(env.query::<i64>(dead).await, of_second, "released by another shard");
        let _second = env.spawn(&["relay", "--shard", "1"]);
        until(DEADLINE, "the followers follow", async || env.query::<i64>(dead).await == 0).await;
        env.wait_marked().await;
        for (aggregate, (streams, count)) in places(&env).await {
            assert_eq!((streams.len(), count), (1, 2), "{aggregate:?}");
        }
    }
}
