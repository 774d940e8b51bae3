//! An outbox that is in use gets partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{DEADLINE, TestEnv, until};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::partitioned::partitions;
use super::{age, env, maintain, stop, wait_watermark};

/// How long the longest insert may take while the table is moved: attempts wait for 200 ms each, and
/// machines are slow.
const LONGEST: Duration = Duration::from_secs(5);

/// Somebody who inserts all the time, each row by itself, and remembers the longest wait.
struct Producer {
    ended: Arc<AtomicBool>,
    task: JoinHandle<(u64, Duration)>,
}

impl Producer {
    async fn start(env: &TestEnv) -> Self {
        let (client, ended) = (env.client().await, Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&ended);
        let task = tokio::spawn(async move {
            let (mut count, mut longest) = (0, Duration::ZERO);
            while !asked.load(Ordering::Relaxed) {
                let began = Instant::now();
                let sql = "SELECT outbox_emit('order', 'emitted', 'Placed', '{}')";
                client.query(sql, &[]).await.expect("emit an event");
                longest = longest.max(began.elapsed());
                count += 1;
            }
            (count, longest)
        });
        Self { ended, task }
    }

    async fn stop(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        let (count, longest) = self.task.await.expect("the producer");
        eprintln!("the longest of {count} inserts took {longest:?}");
        assert!(longest < LONGEST, "{longest:?}");
        count
    }
}

/// What an application may have made beside the table.
const BESIDE: &str = "
    CREATE ROLE reader;
    GRANT SELECT, UPDATE (payload) ON outbox_events TO reader;
    COMMENT ON TABLE outbox_events IS 'of ours';
    CREATE VIEW recent AS SELECT id, aggregate_id FROM outbox_events WHERE event_type = 'Placed';
    CREATE INDEX idx_ours ON outbox_events (aggregate_id) WHERE event_type = 'Placed';
    CREATE TABLE inserts (n BIGINT);
    INSERT INTO inserts VALUES (0);
    CREATE FUNCTION count_emitted() RETURNS TRIGGER LANGUAGE plpgsql AS
        'BEGIN UPDATE inserts SET n = n + 1; RETURN NULL; END';
    CREATE TRIGGER counted AFTER INSERT ON outbox_events FOR EACH ROW
        WHEN (NEW.aggregate_id = 'emitted') EXECUTE FUNCTION count_emitted();
    CREATE POLICY all_rows ON outbox_events FOR SELECT TO reader USING (true);
    ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY;
    ALTER TABLE outbox_events SET (autovacuum_vacuum_scale_factor = 0.01)";

async fn converts(shards: u32, seed: u64) {
    let mut env = env().await;
    env.set_shards(shards);
    env.setup().await;
    env.execute(BESIDE).await;
    let relay = env.relay();
    let load = env.load(seed, 300.0).await;
    load.wait_committed(300).await;
    let slots = "SELECT string_agg(slot || epoch, ',' ORDER BY slot) FROM tailpost_state";
    let before: String = env.query(slots).await;
    let producer = Producer::start(&env).await;
    env.ends_with(0, &["setup", "--partitioned"]).await;
    load.wait_committed(300).await;
    let emitted = producer.stop().await;
    let kind = "SELECT relkind::text FROM pg_class WHERE oid = 'outbox_events'::regclass";
    assert_eq!(env.query::<String>(kind).await, "p");
    // A new session takes the slot as it is: nothing passed it by.
    stop(relay).await;
    let relay = env.relay();
    let written = load.stop().await;
    let count = written.committed.len() as u64 + emitted;
    env.wait_marked().await;
    let tally = env.tally(&written).await;
    tally.assert_exact();
    assert_eq!(tally.stored as u64, count);
    assert_eq!(env.query::<String>(slots).await, before, "no slot was made anew");
    if shards == 1 {
        let (told, _) = env.ends_with(0, &["verify"]).await;
        eprintln!("{told}");
    }

    let there = "SELECT relname || ' ' || coalesce(array_to_string(reloptions, ' '), '')
                 FROM pg_class WHERE relname LIKE 'outbox_events_p2%' AND relkind = 'r' ORDER BY relname DESC LIMIT 1";
    let newest: String = env.query(there).await;
    assert!(newest.contains("fillfactor=50"), "{newest}");
    assert!(newest.contains("autovacuum_vacuum_scale_factor=0.01"), "{newest}");
    assert_eq!(env.query::<i64>("SELECT n FROM inserts").await.cast_unsigned(), emitted);
    for holds in [
        "SELECT has_table_privilege('reader', 'outbox_events', 'SELECT')
             AND has_column_privilege('reader', 'outbox_events', 'payload', 'UPDATE')",
        "SELECT count(*) = (SELECT count(*) FROM outbox_events WHERE event_type = 'Placed')
         FROM recent",
        "SELECT count(*) = (SELECT count(*) FROM outbox_events) FROM outbox_status",
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'idx_ours'::regclass
             AND indrelid = 'outbox_events'::regclass",
        "SELECT obj_description('outbox_events'::regclass, 'pg_class') = 'of ours'",
        "SELECT relrowsecurity AND EXISTS (SELECT FROM pg_policies WHERE policyname = 'all_rows'
             AND tablename = 'outbox_events') FROM pg_class WHERE oid = 'outbox_events'::regclass",
        "SELECT count(DISTINCT seq) = count(*) FROM outbox_events",
    ] {
        assert!(env.query::<bool>(holds).await, "{holds}");
    }
    let (said, _) = env.ends_with(0, &["setup", "--partitioned"]).await;
    assert!(!said.contains("created"), "{said}");
    stop(relay).await;
}

/// Uses the table without a snapshot, which an index build would wait for if it is the older one.
const USE: &str = "LOCK TABLE outbox_events IN ACCESS SHARE MODE";

/// Begins a transaction that index builds wait for, and that has no lock of the outbox.
async fn snapshot(client: &mut Client) -> Transaction<'_> {
    let begun = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let old = begun.start().await.expect("begin");
    old.execute("SELECT FROM pg_class", &[]).await.expect("take a snapshot");
    old
}

async fn wait_gone(env: &TestEnv) {
    let gone =
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'tailpost setup'";
    until(DEADLINE, "its connections are gone", async || env.query::<bool>(gone).await).await;
}

/// One that was left for days, and one of a table that has what cannot be moved.
// proves: G-RET-7
#[tokio::test(flavor = "multi_thread")]
async fn a_conversion_is_resumed_days_later_and_refused_where_something_would_be_left() {
    let env = env().await;
    env.setup().await;
    env.execute(
        "CREATE TABLE orders (event UUID REFERENCES outbox_events (id));
         CREATE MATERIALIZED VIEW copied AS SELECT id FROM outbox_events;
         CREATE UNIQUE INDEX by_seq ON outbox_events (seq)",
    )
    .await;
    let (_, said) = env.ends_with(4, &["setup", "--partitioned"]).await;
    for what in ["orders_event_fkey", "materialized view copied", "by_seq", "Nothing was changed"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let kind = "SELECT relkind::text FROM pg_class WHERE oid = 'outbox_events'::regclass";
    assert_eq!(env.query::<String>(kind).await, "r");
    env.execute("DROP TABLE orders; DROP MATERIALIZED VIEW copied; DROP INDEX by_seq").await;

    // As an attempt of nine days ago left it.
    env.execute(
        "DO $$ DECLARE day DATE := (now() AT TIME ZONE 'UTC')::date - 8; BEGIN
             EXECUTE format('ALTER TABLE outbox_events ADD COLUMN inserted_at TIMESTAMPTZ NOT NULL
                 DEFAULT %L, ADD CONSTRAINT tailpost_before_%s CHECK (inserted_at < %L) NOT VALID',
                 day - interval '1 hour', to_char(day, 'YYYYMMDD'), day || ' 00:00Z');
         END $$",
    )
    .await;
    let relay = env.relay();
    let ids = env.insert(30).await;
    env.wait_stored(30).await;
    env.wait_marked().await;
    env.ends_with(0, &["setup", "--partitioned"]).await;
    let more = env.insert(10).await;
    env.wait_stored(40).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, [&ids[..], &more].concat());
    // Its day is over, and a row of today keeps it.
    let told = maintain(&env, &[]).await;
    assert_eq!(told["partitions"]["dropped"], 0, "{told}");
    age(&env, &ids).await;
    wait_watermark(&env).await;
    let told = maintain(&env, &[]).await;
    assert_eq!(told["partitions"]["dropped"], 1, "{told}");
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, 10);
    stop(relay).await;
}

/// What set-up makes belongs to whom the table belongs, so that a relay may drop it.
// proves: G-RET-7
#[tokio::test(flavor = "multi_thread")]
async fn partitions_belong_to_the_owner_of_the_outbox() {
    let env = env().await;
    env.setup().await;
    let owner = format!("owner_{}", uuid::Uuid::new_v4().simple());
    env.execute(&format!("CREATE ROLE {owner}; ALTER TABLE outbox_events OWNER TO {owner}")).await;
    env.ends_with(0, &["setup", "--partitioned"]).await;
    let others = format!(
        "SELECT count(*) FROM pg_partition_tree('outbox_events') JOIN pg_class c ON c.oid = relid
         WHERE pg_get_userbyid(relowner) <> '{owner}'"
    );
    assert_eq!(env.query::<i64>(&others).await, 0);
    assert!(partitions(&env).await.len() > 2);
}

/// Events without a row are numbered with the rows, before and after.
// proves: G-RET-7
#[tokio::test(flavor = "multi_thread")]
async fn events_without_a_row_are_accepted_before_and_after() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "true");
    env.setup().await;
    env.execute("ALTER SEQUENCE outbox_events_seq_seq RENAME TO numbers").await;
    env.execute("UPDATE tailpost_state SET wal_seq = 'public.numbers'").await;
    let emit = "SELECT outbox_emit_wal('order', 'o-1', 'Placed', '{}')";
    env.execute(emit).await;
    env.insert(3).await;
    // Whoever has emitted something is waited for.
    let mut client = env.client().await;
    let open = client.transaction().await.expect("begin");
    open.batch_execute(emit).await.expect("emit");
    let process = env.spawn(&["setup", "--partitioned"]);
    process.wait_log("trying again").await;
    open.commit().await.expect("commit");
    assert!(process.wait_exit(DEADLINE).await.success(), "{}", process.log());
    env.execute(emit).await;
    env.insert(3).await;
    let _relay = env.relay();
    env.wait_stored(9).await;
    env.wait_marked().await;
    let distinct = "SELECT count(DISTINCT seq) FROM outbox_events";
    assert_eq!(env.query::<i64>(distinct).await, 6);
    let next: i64 = env.query("SELECT max(seq) FROM outbox_events").await;
    assert!(next >= 9, "rows and messages share their numbers: {next}");
}

mod long {
    use super::*;

    /// An outbox gets partitions while producers write and a relay reads: each event once, in
    /// order, no slot made anew, and what belongs to the table is there as before.
    // proves: G-RET-7
    #[tokio::test(flavor = "multi_thread")]
    async fn an_outbox_in_use_gets_partitions() {
        converts(1, 51).await;
    }

    /// The same where publications have row filters.
    // proves: G-RET-7
    #[tokio::test(flavor = "multi_thread")]
    async fn an_outbox_in_shards_gets_partitions() {
        converts(2, 52).await;
    }

    /// Whoever is killed between two steps leaves a table that takes rows, and the next run goes
    /// on.
    // proves: G-RET-7
    #[tokio::test(flavor = "multi_thread")]
    async fn a_conversion_that_is_killed_between_two_steps_goes_on() {
        let env = env().await;
        env.setup().await;
        let relay = env.relay();
        let mut ids = env.insert(50).await;
        let args = ["setup", "--partitioned"];

        // Before the first: somebody uses the table.
        let (mut one, mut other) = (env.client().await, env.client().await);
        let open = one.transaction().await.expect("begin");
        open.batch_execute(USE).await.expect("use the table");
        let process = env.spawn(&args);
        process.wait_log("trying again").await;
        process.kill9().await;
        open.rollback().await.expect("end");
        wait_gone(&env).await;
        let column = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'outbox_events'::regclass
                          AND attname = 'inserted_at'";
        assert_eq!(env.query::<i64>(column).await, 0);
        ids.extend(env.insert(10).await);

        // In the middle of the index, which waits for old snapshots.
        let old = snapshot(&mut other).await;
        let process = env.spawn(&args);
        let index = "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
                     WHERE relname LIKE 'outbox_events_key_%' AND NOT indisvalid";
        until(DEADLINE, "the index is half made", async || env.query::<i64>(index).await == 1)
            .await;
        process.kill9().await;
        env.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'tailpost setup'",
        )
        .await;
        wait_gone(&env).await;
        old.rollback().await.expect("end");
        let half: u32 = env.query(&index.replace("count(*)", "max(indexrelid)")).await;
        ids.extend(env.insert(10).await);
        // However late it is, the table takes rows.
        let key = "SELECT count(DISTINCT inserted_at) FROM outbox_events";
        assert_eq!(env.query::<i64>(key).await, 1, "the time is that of the conversion");

        // Before the last: the table is used again, from when there is another index on.
        let old = snapshot(&mut other).await;
        let process = env.spawn(&args);
        let another = format!("{index} AND indexrelid <> {half}");
        until(DEADLINE, "it is made anew", async || env.query::<i64>(&another).await == 1).await;
        let open = one.transaction().await.expect("begin");
        open.batch_execute(USE).await.expect("use the table");
        old.rollback().await.expect("end");
        process.wait_log("trying again").await;
        let kind = "SELECT relkind::text FROM pg_class WHERE oid = 'outbox_events'::regclass";
        assert_eq!(env.query::<String>(kind).await, "r");
        process.kill9().await;
        open.rollback().await.expect("end");
        wait_gone(&env).await;
        ids.extend(env.insert(10).await);

        let (said, _) = env.ends_with(0, &args).await;
        assert!(said.contains("created  partitioned table"), "{said}");
        ids.extend(env.insert(10).await);
        assert_eq!(env.query::<String>(kind).await, "p");
        env.wait_stored(90).await;
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
        assert_eq!(env.epochs().await, 1);

        // The first partition goes when its day is over, and not before.
        age(&env, &ids).await;
        wait_watermark(&env).await;
        assert_eq!(maintain(&env, &[]).await["partitions"]["dropped"], 0);
        assert!(partitions(&env).await[0].starts_with("outbox_events_before_"));
        stop(relay).await;
    }
}
