//! An outbox with partitions by day: made ahead, dropped behind, and as good as any other.

use lab::Port;
use serde_json::Value;
use support::{DEADLINE, TestEnv, get, until};
use uuid::Uuid;

use super::{LONG_AGO, age, env, left, maintain, stop, wait_watermark};
use crate::pages::shown::steps_below;

const PAGE: &str = include_str!("../../../docs/retention.md");

/// An outbox with partitions from its beginning, the oldest for today: what went by is another test's.
pub(super) async fn partitioned() -> TestEnv {
    let env = env().await;
    env.ends_with(0, &["setup", "--partitioned"]).await;
    let made = partitions(&env).await;
    env.execute(&format!("DROP TABLE {}", made[0])).await;
    env
}

/// A clock that steps back over midnight stops no producer.
// proves: G-RET-6
#[tokio::test(flavor = "multi_thread")]
async fn the_first_partition_is_for_the_day_before() {
    let env = env().await;
    env.ends_with(0, &["setup", "--partitioned"]).await;
    assert_eq!(insert_ago(&env, 1, 1).await.len(), 1);
    assert_eq!(maintain(&env, &[]).await["partitions"]["created"], 0);
}

/// A partition for the day so many days ago, and its name.
async fn day_ago(env: &TestEnv, days: i32) -> String {
    let sql = format!(
        "SELECT 'outbox_events_p' || to_char(day, 'YYYYMMDD'), day::text, (day + 1)::text
         FROM (SELECT (now() AT TIME ZONE 'UTC')::date - {days} AS day) AS it"
    );
    let row = env.client().await.query_one(&sql, &[]).await.expect("a day");
    let (name, since, until): (String, String, String) = (row.get(0), row.get(1), row.get(2));
    env.execute(&format!(
        "CREATE TABLE {name} PARTITION OF outbox_events
             FOR VALUES FROM ('{since} 00:00Z') TO ('{until} 00:00Z')"
    ))
    .await;
    name
}

/// Inserts events that have been there for so many days.
async fn insert_ago(env: &TestEnv, count: i32, days: i32) -> Vec<Uuid> {
    let sql = format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, inserted_at)
         SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'Placed', '{{}}',
             now() - interval '{days} days'
         FROM generate_series(1, {count}) AS n RETURNING id"
    );
    let rows = env.client().await.query(&sql, &[]).await.expect("insert events");
    rows.iter().map(|row| row.get(0)).collect()
}

pub(super) async fn partitions(env: &TestEnv) -> Vec<String> {
    env.query(
        "SELECT coalesce(array_agg(inhrelid::regclass::text ORDER BY inhrelid::regclass::text), '{}')
         FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass",
    )
    .await
}

/// Partitions exist for a week to come; those go as a whole of which nobody needs a row.
// proves: G-RET-6
#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_made_ahead_and_dropped_behind() {
    let mut env = partitioned().await;
    let count = partitions(&env).await.len();
    assert!((8..=9).contains(&count), "today, a week, and what an interval adds: {count}");
    let relay = env.relay();
    let (old, older) = (day_ago(&env, 10).await, day_ago(&env, 12).await);
    let ids = [insert_ago(&env, 30, 10).await, insert_ago(&env, 30, 12).await].concat();
    let young = env.insert(10).await;
    env.wait_stored(70).await;
    env.wait_marked().await;
    age(&env, &ids).await;
    age(&env, &young).await;
    wait_watermark(&env).await;
    let planned = maintain(&env, &["--dry-run"]).await;
    assert_eq!(planned["partitions"]["dropped"], 2);
    assert!(partitions(&env).await.contains(&old));
    // Somebody has dropped what is to come.
    env.execute(
        "DO $$ DECLARE p TEXT; BEGIN
             FOR p IN SELECT inhrelid::regclass FROM pg_inherits
                 WHERE inhparent = 'outbox_events'::regclass AND inhrelid::regclass::text
                     > 'outbox_events_p' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')
             LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$",
    )
    .await;
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("inserts fail from then on: run `tailpost maintain`"), "{told}");
    let told = maintain(&env, &[]).await;
    assert_eq!(told["partitions"]["dropped"], 2);
    assert_eq!(told["partitions"]["created"], count - 1);
    assert_eq!(told["partitions"]["held"], serde_json::json!([]));
    let there = partitions(&env).await;
    assert!(!there.contains(&old) && !there.contains(&older) && there.len() == count, "{there:?}");
    assert_eq!(left(&env).await.len(), 10, "rows of today go with their day");
    let (told, _) = env.ends_with(0, &["status", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!(told["retention"]["partitions_dropped"], 2);
    let ahead = told["partitions"]["horizon_seconds"].as_f64().expect("a number");
    assert!((7.0..8.1).contains(&(ahead / 86_400.0)), "{ahead}");
    let warnings = told["warnings"].as_array().expect("a list");
    assert!(!warnings.iter().any(|it| it.as_str().is_some_and(|it| it.contains("partition"))));
    a_partition_is_held_as_the_page_shows(&env).await;
    stop(relay).await;

    // A relay does it by itself, and says so.
    env.set("TAILPOST_RETENTION__INTERVAL", "200ms");
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let again = day_ago(&env, 10).await;
    let relay = env.relay();
    let gone = async || !partitions(&env).await.contains(&again);
    until(DEADLINE, "the partition is gone", gone).await;
    until(DEADLINE, "the metrics show it", async || {
        let metrics = get(admin.addr(), "/metrics").await.unwrap_or_default();
        let value = |name: &str| {
            let line = metrics.lines().find(|it| it.starts_with(name))?;
            line.rsplit_once(' ')?.1.parse::<f64>().ok()
        };
        value("tailpost_partitions_dropped_total") == Some(1.0)
            && value("tailpost_partition_horizon_seconds").is_some_and(|it| it > 6.0 * 86_400.0)
    })
    .await;
    let ready = get(admin.addr(), "/readyz").await.unwrap_or_default();
    assert!(ready.contains("\"retention\":{\"ok\":true"), "{ready}");
    stop(relay).await;
    assert_eq!(env.stored_count().await, 71);
}

/// Of two old days, one has nothing, the other a row that cannot be published now.
async fn a_partition_is_held_as_the_page_shows(env: &TestEnv) {
    env.nats.pause().expect("pause NATS");
    let (_, needed) = (day_ago(env, 21).await, day_ago(env, 20).await);
    insert_ago(env, 1, 20).await;
    let [maintain] = steps_below(PAGE, "### Behind");
    maintain.play(env, &[]).await;
    env.nats.resume().expect("resume NATS");
    env.wait_stored(71).await;
    env.wait_marked().await;
    env.execute(&format!("DROP TABLE {needed}")).await;
}

/// A transaction that was open for days, and commits when its partition is on the way out:
/// the row is seen, the partition comes back, and the event is published.
// proves: G-RET-1
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_comes_while_its_partition_is_detached_brings_it_back() {
    let env = partitioned().await;
    let relay = env.relay();
    relay.wait_active().await;
    let day = day_ago(&env, 10).await;
    let mut client = env.client().await;
    let open = client.transaction().await.expect("begin");
    let sql = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
                   inserted_at)
               VALUES (gen_random_uuid(), 'order', 'late', 'Placed', '{}', now() - interval '10 days')
               RETURNING id";
    let late: Uuid = open.query_one(sql, &[]).await.expect("insert").get(0);
    let told = maintain(&env, &[]).await;
    let reason = told["partitions"]["held"][0]["reason"].as_str().expect("held");
    assert!(reason.contains("still open"), "{told}");
    open.commit().await.expect("commit");
    env.wait_stored(1).await;
    let told = maintain(&env, &[]).await;
    let reason = told["partitions"]["held"][0]["reason"].as_str().expect("held");
    assert!(reason.contains(&late.to_string()), "{told}");
    assert!(partitions(&env).await.contains(&day), "it is a partition again");
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, [late]);
    age(&env, &[late]).await;
    wait_watermark(&env).await;
    assert_eq!(maintain(&env, &[]).await["partitions"]["dropped"], 1);
    stop(relay).await;
}

/// Whoever was killed may hold its lock for a moment.
async fn maintain_or_busy(env: &TestEnv) {
    let process = env.spawn(&["maintain", "--json"]);
    process.announce("");
    let code = process.wait_exit(DEADLINE).await.code();
    assert!(matches!(code, Some(0 | 4)), "{}", process.log());
}

/// A transaction that has used the table and stays open keeps a partition, and makes nobody
/// wait who inserts, marks or scans.
// proves: G-RET-2
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_behind_a_partition_that_cannot_be_detached() {
    let env = partitioned().await;
    let relay = env.relay();
    relay.wait_active().await;
    day_ago(&env, 10).await;
    let mut client = env.client().await;
    let open = client.transaction().await.expect("begin");
    open.execute("SELECT FROM outbox_events", &[]).await.expect("use the table");
    let producer = env.client().await;
    producer.batch_execute("SET lock_timeout = '400ms'").await.expect("set");
    let process = env.spawn(&["maintain", "--json"]);
    let mut count = 0;
    while process.exited().is_none() {
        let sql =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   VALUES (gen_random_uuid(), 'order', 'live', 'Placed', '{}')";
        producer.execute(sql, &[]).await.expect("nobody who inserts waits");
        count += 1;
    }
    let told: Value = serde_json::from_str(&process.stdout()).expect("one JSON object");
    let reason = told["outbox"]["partitions"]["held"][0]["reason"].as_str().expect("held");
    assert!(reason.contains("still open"), "{told}");
    env.wait_stored(count).await;
    env.wait_marked().await;
    open.rollback().await.expect("end");
    assert_eq!(maintain(&env, &[]).await["partitions"]["dropped"], 1);
    stop(relay).await;
}

/// A day with partitions of its own is none of ours, and holds up no other.
// proves: G-RET-1
#[tokio::test(flavor = "multi_thread")]
async fn a_day_that_is_partitioned_itself_is_kept() {
    let env = partitioned().await;
    let (odd, plain) = (day_ago(&env, 12).await, day_ago(&env, 11).await);
    let bounds =
        format!("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = '{odd}'");
    let bounds: String = env.query(&bounds).await;
    env.execute(&format!(
        "DROP TABLE {odd};
         CREATE TABLE {odd} PARTITION OF outbox_events {bounds} PARTITION BY HASH (id);
         CREATE TABLE {odd}_all PARTITION OF {odd} FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    ))
    .await;
    insert_ago(&env, 3, 12).await;
    let told = maintain(&env, &[]).await;
    assert_eq!(told["partitions"]["dropped"], 1, "{told}");
    let held = &told["partitions"]["held"][0]["reason"];
    assert!(held.as_str().is_some_and(|it| it.contains("is no plain table")), "{told}");
    let left = partitions(&env).await;
    assert!(left.contains(&odd) && !left.contains(&plain), "{left:?}");
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, 3);
}

mod long {
    use super::*;

    /// Whoever publishes, marks and judges does so with partitions as without; a table of
    /// what each mode is.
    // proves: G-RET-6
    #[tokio::test(flavor = "multi_thread")]
    async fn partitions_by_day_change_nothing_for_relay_and_verify() {
        for (mode, mark, rows_left) in [
            ("fenced", "row", 70),
            ("fenced", "lean", 70),
            ("fenced", "delete", 0),
            ("poll", "row", 70),
            ("poll", "delete", 0),
        ] {
            eprintln!("--- {mode}, {mark}");
            let mut env = env().await;
            env.set("TAILPOST_RELAY__MODE", mode);
            env.set("TAILPOST_RELAY__MARK", mark);
            if mode == "poll" {
                env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "60s");
            }
            env.set("TAILPOST_RELAY__ON_PARK", if mode == "poll" { "skip" } else { "block_key" });
            env.ends_with(0, &["setup", "--partitioned"]).await;
            let (said, _) = env.ends_with(0, &["setup", "--partitioned"]).await;
            assert!(!said.contains("created"), "{said}");
            day_ago(&env, 3).await;
            let before = env.insert(20).await;
            let relay = env.relay();
            env.wait_stored(20).await;
            let old = insert_ago(&env, 20, 3).await;
            env.wait_stored(40).await;
            let bad =
                "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
                       headers)
                   VALUES (gen_random_uuid(), 'order', 'bad', 'Placed', '{}', '[]') RETURNING id";
            let bad: Uuid = env.query(bad).await;
            let dead = "SELECT count(*) FROM outbox_dead_letter";
            until(DEADLINE, "it is parked", async || env.query::<i64>(dead).await == 1).await;
            env.execute("UPDATE outbox_dead_letter SET headers = NULL").await;
            let id = bad.to_string();
            env.ends_with(0, &["outbox", "dlq", "requeue", &id, "--wait", "20s", "--direct"]).await;
            env.wait_stored(41).await;
            let young = env.insert(29).await;
            env.wait_stored(70).await;
            if mark != "lean" {
                env.wait_marked().await;
            }
            let stored = env.stored_ids().await;
            assert_eq!(stored, [&before[..], &old, &[bad], &young].concat());
            assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, rows_left);
            if mark != "delete" {
                env.wait_covered().await;
                let (told, _) = env.ends_with(0, &["verify", "--json"]).await;
                let told: Value = serde_json::from_str(&told).expect("one JSON object");
                assert_eq!(told["counts"].as_array().map(Vec::len), Some(0), "{told}");
                let (told, _) = env.ends_with(0, &["explain", &old[3].to_string()]).await;
                assert!(told.to_lowercase().contains("published"), "{told}");
            }
            if mode == "fenced" && mark == "row" {
                let id = old[5].to_string();
                let args = ["replay", "--event-id", &id, "--why", "x", "--execute"];
                env.ends_with(0, &args).await;
                env.wait_stored(71).await;
            }
            stop(relay).await;
        }
    }

    /// A row that is not published, a dead letter, a mark that is owed or may be asked for, and
    /// one of a replay keep their partition, which is named.
    // proves: G-RET-1, G-RET-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_partition_with_a_row_that_is_needed_is_kept_and_named() {
        let env = partitioned().await;
        let relay = env.relay();
        let mut days = Vec::new();
        let mut ids = Vec::new();
        for days_ago in 10..15 {
            days.push(day_ago(&env, days_ago).await);
            ids.push(insert_ago(&env, 5, days_ago).await);
        }
        env.wait_stored(25).await;
        env.wait_marked().await;
        age(&env, &ids.concat()).await;
        wait_watermark(&env).await;
        env.nats.pause().expect("pause NATS");
        let unpublished = insert_ago(&env, 1, 10).await;
        let (dead, owed, fresh) = (ids[1][2], ids[2][2], ids[3][2]);
        // What is owed is made up for at once, but not while the row is locked.
        let mut client = env.client().await;
        let lock = client.transaction().await.expect("begin");
        let sql = "SELECT FROM outbox_events WHERE id = $1 FOR UPDATE";
        lock.execute(sql, &[&owed]).await.expect("lock a row");
        env.execute(&format!(
            "INSERT INTO tailpost_owed (id, stream) VALUES ('{owed}', 'OUTBOX');
         INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
             reason, dead_at)
         VALUES ('{dead}', 'order', 'o-1', 'Placed', '{{}}', 'in doubt', {LONG_AGO});
         UPDATE outbox_events SET published_at = now() WHERE id = '{fresh}'"
        ))
        .await;
        let told = maintain(&env, &[]).await;
        lock.commit().await.expect("let go of the row");
        let held = told["partitions"]["held"].as_array().expect("a list").clone();
        let why = |partition: &str| {
            let it = held.iter().find(|it| it["partition"] == format!("public.{partition}"));
            it.and_then(|it| it["reason"].as_str()).unwrap_or_default().to_owned()
        };
        assert!(why(&days[0]).contains(&unpublished[0].to_string()), "{held:?}");
        assert!(why(&days[0]).contains("is not published"), "{held:?}");
        assert!(why(&days[1]).ends_with("is a dead letter"), "{held:?}");
        assert!(why(&days[2]).ends_with("is owed a mark"), "{held:?}");
        assert!(
            why(&days[3]).ends_with("was published less than retention.published ago"),
            "{held:?}"
        );
        // The open transaction has used the table: the last of them is not seen any more, and is not
        // gone.
        assert!(held.iter().any(|it| it["partition"] == format!("public.{}", days[4])), "{held:?}");
        let held_by: String = env.query("SELECT held_by FROM tailpost_retention").await;
        assert!(
            held_by.starts_with("partition public.") && held_by.contains("(and 4 more)"),
            "{held_by}"
        );

        env.nats.resume().expect("resume NATS");
        env.execute("DELETE FROM tailpost_owed; DELETE FROM outbox_dead_letter").await;
        env.wait_stored(26).await;
        env.wait_marked().await;
        age(&env, &[&unpublished[..], &[fresh]].concat()).await;
        wait_watermark(&env).await;
        // A slot may ask for what was marked since.
        until(DEADLINE, "all of them go", async || {
            maintain(&env, &[]).await;
            let there = partitions(&env).await;
            days.iter().all(|it| !there.contains(it))
        })
        .await;
        assert_eq!(env.query::<i64>("SELECT count(*) FROM tailpost_detached").await, 0);
        stop(relay).await;
    }

    /// A partition goes while the scanner reads the table, and who is killed between two steps
    /// is followed by one who goes on. Each event comes once, in order, and no producer waits.
    // proves: G-RET-1, G-RET-2, G-RET-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_partition_is_dropped_while_the_scanner_reads() {
        let env = partitioned().await;
        let old = day_ago(&env, 10).await;
        env.execute(&format!(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
             inserted_at, published_at)
         SELECT gen_random_uuid(), 'order', 'o', 'Placed', '{{}}', now() - interval '10 days',
             {LONG_AGO}
         FROM generate_series(1, 2000)"
        ))
        .await;
        env.ends_with(0, &["slot", "drop"]).await;
        let sql =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'Placed',
                   jsonb_build_object('text', repeat('x', 1000))
               FROM generate_series(1, 30000) AS n RETURNING id";
        let rows = env.client().await.query(sql, &[]).await.expect("insert events");
        let backlog: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        env.setup().await;
        let relay = env.relay();
        // The scan lasts until it is done.
        until(DEADLINE, "the scanner reads", async || {
            let reads =
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY (SELECT%outbox%'
                         AND state = 'active'";
            env.query::<i64>(reads).await > 0
        })
        .await;
        let scanned = env.stored_count().await;
        // Nobody takes what it reads: it holds the table, for as long as it likes.
        env.nats.pause().expect("pause NATS");
        let producer = env.client().await;
        producer.batch_execute("SET lock_timeout = '400ms'").await.expect("set");
        let first = env.spawn(&["maintain", "--json"]);
        let mut live = Vec::new();
        let detached = "SELECT count(*) FROM tailpost_detached";
        while first.exited().is_none() {
            let row = producer
                .query_one(
                    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                 VALUES (gen_random_uuid(), 'order', 'live', 'Placed', '{}') RETURNING id",
                    &[],
                )
                .await;
            live.push(row.expect("nobody who inserts waits").get::<_, Uuid>(0));
            if env.query::<i64>(detached).await > 0 {
                first.kill9().await;
                break;
            }
        }
        env.nats.resume().expect("resume NATS");
        until(DEADLINE, "it is gone", async || {
            maintain_or_busy(&env).await;
            !partitions(&env).await.contains(&old)
        })
        .await;
        eprintln!("{scanned} were stored before, {} since", env.stored_count().await);
        assert!(env.query::<bool>(&format!("SELECT to_regclass('{old}') IS NULL")).await);
        assert_eq!(env.query::<i64>(detached).await, 0);
        env.wait_stored((backlog.len() + live.len()) as u64).await;
        let stored = env.stored_ids().await;
        assert_eq!(
            stored.iter().filter(|it| !live.contains(it)).copied().collect::<Vec<_>>(),
            backlog
        );
        assert_eq!(stored.iter().filter(|it| live.contains(it)).copied().collect::<Vec<_>>(), live);
        env.wait_marked().await;
        stop(relay).await;
    }
}
