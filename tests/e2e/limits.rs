//! What is much takes time, not memory.

use support::{DEADLINE, Relay, Rig, RigOptions, get, until};
use testbed::{NatsOptions, Port};
use uuid::Uuid;

use crate::scanner::DOCUMENTED_TABLE;

const ROWS: i32 = 100_000;

/// What issue and requirements allow, in bytes.
const MEMORY_MAX: u64 = 64 << 20;

fn assert_bounded(relay: &Relay) {
    let peak = relay.peak_memory();
    eprintln!("peak of resident memory: {} KiB", peak >> 10);
    assert!(peak < MEMORY_MAX, "{peak} bytes of memory");
}

async fn assert_stored(rig: &Rig, expected: &[Uuid]) {
    rig.wait_stored(expected.len() as u64).await;
    rig.wait_marked().await;
    let stored = rig.stored_ids().await;
    let differs = stored.iter().zip(expected).position(|(stored, expected)| stored != expected);
    assert_eq!(differs, None, "the first message that is not the one expected");
    assert_eq!(stored.len(), expected.len());
}

/// R-REL-11, R-REL-05: a huge transaction, and a relay that dies in its middle.
// proves: G-MEM-1
#[tokio::test(flavor = "multi_thread")]
async fn a_huge_transaction_passes_in_little_memory_also_when_interrupted() {
    let mut rig = Rig::new().await;
    // The broker forgets ids at once: what is published twice is stored twice.
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let expected = rig.insert(ROWS).await;
    until(DEADLINE, "some of it is stored", async || rig.stored_count().await > 5_000).await;
    relay.kill9().await;
    let stored = rig.stored_count().await;
    assert!(stored < expected.len() as u64, "all was stored: the test proves nothing");
    drop(relay);

    let relay = rig.relay();
    assert_stored(&rig, &expected).await;
    assert_bounded(&relay);
}

/// R-REL-11: what waits outside of the window counts as well, on the way in and while the stream's
/// end is read.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_megabyte_pass_in_little_memory_also_while_the_broker_is_away() {
    const LARGE_ROWS: u64 = 100;
    const WINDOW_BYTES: u64 = 16 << 20;
    let nats = NatsOptions { max_payload: Some(4 << 20), ..NatsOptions::default() };
    let mut rig = Rig::with(RigOptions { nats, ..RigOptions::default() }).await;
    rig.setup().await;
    let admin = Port::reserve().expect("a free port");
    rig.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let relay = rig.relay();
    let mut expected = rig.insert(1).await;
    rig.wait_marked().await;
    rig.nats.kill().await.expect("kill the broker");
    let client = rig.client().await;
    for _ in 0..LARGE_ROWS {
        // By itself each, so that the server sends it at once.
        let sql =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   SELECT gen_random_uuid(), 'order', '7', 'Grew',
                       jsonb_build_object('text', string_agg(md5(random()::text), ''))
                   FROM generate_series(1, 32768) RETURNING id";
        expected.push(client.query_one(sql, &[]).await.expect("insert").get(0));
    }
    // No more is read once the window is full.
    until(DEADLINE, "the window is full", async || {
        let status = get(admin.addr(), "/api/v1/status").await.unwrap_or_default();
        let bytes = status.split("\"in_flight_bytes\":").nth(1).unwrap_or_default().trim_start();
        let digits: String = bytes.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().is_ok_and(|bytes| bytes >= WINDOW_BYTES)
    })
    .await;
    rig.nats.start_again().await.expect("start the broker again");
    assert_stored(&rig, &expected).await;
    assert_bounded(&relay);
    // What it had sent when the broker died is looked for in the stream: messages as large.
    relay.kill9().await;
    let relay = rig.relay();
    expected.extend(rig.insert(1).await);
    assert_stored(&rig, &expected).await;
    assert_bounded(&relay);
}

/// R-REL-11, R-REL-07: rows from before the slot, while newer ones wait behind them.
// proves: G-MEM-1
#[tokio::test(flavor = "multi_thread")]
async fn a_large_backlog_passes_in_little_memory() {
    let rig = Rig::new().await;
    rig.execute(DOCUMENTED_TABLE).await;
    let mut expected = rig.insert(ROWS).await;
    rig.setup().await;
    expected.extend(rig.insert(1_000).await);
    let relay = rig.relay();
    assert_stored(&rig, &expected).await;
    relay.wait_log("the scanner is done").await;
    assert_bounded(&relay);
}

/// R-REL-11: many rows that are large, also those that a broker at rest leaves waiting.
// proves: G-MEM-1
#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_wait_in_little_memory() {
    const LARGE: &str = "
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'OrderPlaced',
            jsonb_build_object('n', n, 'note', repeat('x', 20000))
        FROM generate_series(1, 4000) AS n";
    let rig = Rig::new().await;
    rig.execute(DOCUMENTED_TABLE).await;
    rig.execute(LARGE).await;
    rig.setup().await;
    rig.execute(LARGE).await;
    let relay = rig.relay();
    rig.wait_stored(2_000).await;
    rig.nats.pause().expect("pause NATS");
    let served = rig.insert(10).await;
    assert_eq!(served.len(), 10, "PostgreSQL serves while the broker is stalled");
    assert_bounded(&relay);
    rig.nats.resume().expect("resume NATS");
    rig.wait_stored(8_010).await;
    rig.wait_marked().await;
    assert_eq!(rig.stored_count().await, 8_010);
    assert_bounded(&relay);
}

/// R-REL-04, R-REL-11: what is rolled back costs nothing behind PostgreSQL.
// proves: G-COMMIT-1
#[tokio::test(flavor = "multi_thread")]
async fn a_huge_transaction_that_is_rolled_back_brings_nothing() {
    let rig = Rig::new().await;
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let mut client = rig.client().await;
    let transaction = client.transaction().await.expect("begin");
    let insert = "
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'o-1', 'OrderPlaced', '{}'
        FROM generate_series(1, 1000000)";
    transaction.execute(insert, &[]).await.expect("insert");
    transaction.rollback().await.expect("roll back");
    let expected = rig.insert(1).await;
    assert_stored(&rig, &expected).await;
    assert_bounded(&relay);
}

/// R-REL-11, R-DLQ-01: events that nobody mended for a long time.
#[tokio::test(flavor = "multi_thread")]
async fn a_great_many_dead_letters_take_little_memory_and_can_be_listed() {
    let mut rig = Rig::new().await;
    let admin = Port::reserve().expect("a port");
    rig.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    rig.setup().await;
    rig.execute(
        "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
             occurred_at, reason)
         SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'OrderPlaced', '{}', now(),
             'message size exceeds maximum allowed (10054)'
         FROM generate_series(1, 300000) AS n",
    )
    .await;
    let relay = rig.relay();
    relay.wait_active().await;
    let expected = rig.insert(10).await;
    let (told, _) = rig.ends_with(0, &["outbox", "dlq", "list"]).await;
    assert!(told.starts_with("300000 dead letters"), "{told}");
    assert!(told.contains("10000  message size exceeds"), "{told}");
    let requeue = ["outbox", "dlq", "requeue", "--all-matching", "--dry-run"];
    let (told, said) = rig.ends_with(0, &requeue).await;
    let plan = format!("{told}{said}");
    assert!(plan.contains("to requeue: 300000 dead letters"), "{plan}");
    assert_stored(&rig, &expected).await;
    assert_bounded(&relay);
}
