//! Whatever PostgreSQL takes for a row of the outbox is published or parked, and the others go on.

use std::collections::BTreeMap;

use lab::{HostileRow, Port, Rows, Shape};
use support::{DEADLINE, TestEnv, get, until};
use uuid::Uuid;

const SEED: u64 = 20_261_121;

/// What became of a row.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Stored { subject: String, headers: BTreeMap<String, Vec<String>>, payload: String },
    Parked { reason: String, attempts: i32 },
}

async fn insert(env: &TestEnv, drawn: &[HostileRow]) -> Vec<Uuid> {
    let client = env.client().await;
    let mut ids = Vec::new();
    for drawn in drawn {
        let id = Uuid::new_v4();
        let sql = drawn.insert_as(id);
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{error:?}: {sql:.300}"));
        ids.push(id);
    }
    ids
}

/// What became of each event. What a message says of itself, or of its way, is left out.
async fn fates(env: &TestEnv) -> BTreeMap<Uuid, Fate> {
    let mut fates = BTreeMap::new();
    for it in env.stored().await {
        let own = |name: &str| {
            let ours = name.starts_with("Nats-") || name.starts_with("Tailpost-Position");
            !ours && name != "Tailpost-Event-Id"
        };
        let headers = it.headers.iter().filter(|(name, _)| own(name.as_ref()));
        let headers = headers.map(|(name, values)| {
            (name.to_string(), values.iter().map(ToString::to_string).collect())
        });
        let (subject, headers) = (it.subject, headers.collect());
        let stored = Fate::Stored { subject, headers, payload: it.payload };
        assert!(fates.insert(it.id, stored).is_none(), "{} is stored twice", it.id);
    }
    let sql = "SELECT id, reason, publish_attempts FROM outbox_dead_letter";
    for row in env.client().await.query(sql, &[]).await.expect("dead letters") {
        // A message's headers are longer by its place in the log, if it has one.
        let reason: String = row.get(1);
        let reason = reason.replace(|it: char| it.is_ascii_digit(), "");
        let parked = Fate::Parked { reason, attempts: row.get(2) };
        assert!(fates.insert(row.get(0), parked).is_none(), "stored and parked");
    }
    fates
}

/// A row that is given no time has that of its insertion.
fn without_time(mut fate: Fate) -> Fate {
    if let Fate::Stored { headers, .. } = &mut fate {
        headers.remove("Occurred-At");
    }
    fate
}

/// Sessions that something ended, but for those in which a busy machine kept somebody waiting.
fn ended_sessions(log: &str) -> Vec<&str> {
    let is_late = |line: &str| ["silent", "answer"].iter().any(|word| line.contains(word));
    log.lines().filter(|it| it.contains("starting anew") && !is_late(it)).collect()
}

/// With so many rows before the slot, behind it, while the relay runs, and in poll mode.
async fn publishes_or_parks_any_row(shape: Shape, on_park: &str, count: usize) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.execute(shape.create()).await;
    let mut rows = Rows::new(shape, SEED);
    let drawn: Vec<HostileRow> = (0..count).map(|_| rows.draw()).collect();
    // The table has to have the columns that the migrations add.
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    env.set("TAILPOST_RELAY__MODE", "fenced");
    env.set("TAILPOST_RELAY__ON_PARK", on_park);
    let before = insert(&env, &drawn).await;
    env.setup().await;
    let behind = insert(&env, &drawn).await;
    let relay = env.relay();
    relay.announce("");
    until(DEADLINE, "every row is published or parked", async || env.unmarked().await == 0).await;
    env.wait_confirmed().await;
    let live = insert(&env, &drawn).await;
    until(DEADLINE, "every live row is done with", async || env.unmarked().await == 0).await;
    env.wait_confirmed().await;
    // What a row does, its twins before and behind the slot do as well. A busy machine may lose a
    // connection meanwhile.
    let log = relay.log();
    let ended = ended_sessions(&log);
    assert!(ended.len() < 3, "a row was taken for an outage\n{}", ended.join("\n"));
    // Each of them is in the stream as its row says.
    let (told, _) = env.ends_with(0, &["verify"]).await;
    assert!(told.contains("findings       none"), "{told}");
    env.set("TAILPOST_RELAY__MODE", "poll");
    drop(relay);
    let polled = if on_park == "skip" { poll(&mut env, &drawn).await } else { Vec::new() };

    let mut fates = fates(&env).await;
    for (n, row) in drawn.iter().enumerate() {
        let mut fate = |id: &Uuid| {
            let fate = fates.remove(id);
            without_time(fate.unwrap_or_else(|| panic!("{id} is nowhere: {}", row.describe())))
        };
        let scanned = fate(&before[n]);
        if on_park == "skip" {
            assert_eq!(scanned, fate(&behind[n]), "{}", row.describe());
            assert_eq!(scanned, fate(&live[n]), "{}", row.describe());
            assert_eq!(scanned, fate(&polled[n]), "{}", row.describe());
        }
    }
}

async fn poll(env: &mut TestEnv, drawn: &[HostileRow]) -> Vec<Uuid> {
    env.setup().await;
    let ids = insert(env, drawn).await;
    let relay = env.spawn(&["relay", "--once"]);
    relay.announce("");
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    assert_eq!(env.unmarked().await, 0);
    ids
}

// proves: G-DEAD-5
#[tokio::test(flavor = "multi_thread")]
async fn any_row_of_the_documented_table_is_published_or_parked_alike_by_every_path() {
    publishes_or_parks_any_row(Shape::Documented, "skip", 60).await;
}

/// What somebody else has marked is published.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_inserted_as_published_is_not_published_again() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let first = env.insert(3).await;
    env.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
             published_at)
         SELECT gen_random_uuid(), 'order', 'o-1', 'Restored', '{}', now()
         FROM generate_series(1, 10)",
    )
    .await;
    let last = env.insert(3).await;
    env.wait_stored(6).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, [first, last].concat());
}

const WITHOUT_ID: &str =
    "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
    VALUES ('order', 'o-1', 'Placed', '{\"n\": 0}')";

/// Nothing can be said about such a row: neither that it is published nor that it is parked.
async fn leaves_out_rows_without_an_id(mode: &str, on_park: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.set("TAILPOST_RELAY__MODE", mode);
    env.set("TAILPOST_RELAY__ON_PARK", on_park);
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    // As adopted from something that did not say that ids are there.
    let table = Shape::Adopted.create().replace("id UUID PRIMARY KEY", "id UUID UNIQUE");
    env.execute(&table).await;
    env.execute(WITHOUT_ID).await;
    let mut expected = env.insert(5).await;
    env.setup().await;
    let relay = env.relay();
    relay.announce("");
    env.wait_stored(5).await;
    env.execute(WITHOUT_ID).await;
    expected.extend(env.insert(5).await);
    until(DEADLINE, "all others are marked", async || env.unmarked().await == 2).await;
    if mode != "poll" {
        env.wait_confirmed().await;
    }
    let counts = "tailpost_outbox_unidentified_rows{";
    until(DEADLINE, "both are counted", async || {
        let metrics = get(admin.addr(), "/metrics").await.unwrap_or_default();
        metrics.lines().any(|it| it.starts_with(counts) && it.ends_with(" 2.0"))
    })
    .await;
    assert_eq!(env.stored_ids().await, expected);
    assert!(ended_sessions(&relay.log()).is_empty(), "{}", relay.log());
    assert_eq!(relay.log().matches("rows without an id").count(), 1, "{}", relay.log());
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains("2 rows have no id"), "{status}");

    // Somebody mends it: an id makes an event of a row, whoever was to bring it.
    env.execute("UPDATE outbox_events SET id = gen_random_uuid() WHERE id IS NULL").await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await.len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_an_id_is_reported_and_holds_nobody_up() {
    leaves_out_rows_without_an_id("fenced", "skip").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_an_id_holds_nobody_up_in_poll_mode() {
    leaves_out_rows_without_an_id("poll", "skip").await;
}

/// A column with a default takes a null that is given. What tells then is who inserted the
/// row, which PostgreSQL knows.
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_transaction_is_null_are_published_once_and_marked() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.execute(crate::scanner::DOCUMENTED_TABLE).await;
    env.execute("ALTER TABLE outbox_events ADD COLUMN txid XID8").await;
    let mut expected = env.insert(20).await;
    env.setup().await;
    // Its marks get lost with it.
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = env.relay();
    env.wait_stored(20).await;
    expected.extend(env.insert(20).await);
    env.wait_stored(40).await;
    env.wait_confirmed().await;
    relay.kill9().await;
    drop(relay);
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let relay = env.relay();
    expected.extend(env.insert(20).await);
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, expected);
    assert!(!relay.log().contains("without passing the log"), "{}", relay.log());
}

mod long {
    use super::*;

    // proves: G-DEAD-5
    #[tokio::test(flavor = "multi_thread")]
    async fn any_row_of_an_adopted_table_is_published_or_parked_alike_by_every_path() {
        publishes_or_parks_any_row(Shape::Adopted, "skip", 150).await;
    }

    // proves: G-DEAD-5
    #[tokio::test(flavor = "multi_thread")]
    async fn any_row_of_a_partitioned_table_is_published_or_parked_alike_by_every_path() {
        publishes_or_parks_any_row(Shape::Partitioned, "skip", 150).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_row_without_an_id_holds_nobody_up_where_parking_blocks_its_aggregate() {
        leaves_out_rows_without_an_id("fenced", "block_key").await;
    }

    /// Keys of any length are blocked.
    // proves: G-DEAD-5
    #[tokio::test(flavor = "multi_thread")]
    async fn any_row_is_published_or_parked_where_parking_blocks_its_aggregate() {
        publishes_or_parks_any_row(Shape::Adopted, "block_key", 150).await;
    }
}
