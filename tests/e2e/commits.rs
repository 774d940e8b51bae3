//! What PostgreSQL committed is published, as and when it was committed.

use std::fmt::Write as _;

use futures_util::SinkExt;
use outbox::Event;
use serde_json::json;
use support::{Stored, TestEnv};
use tokio_postgres::Client;
use uuid::Uuid;

async fn emit(client: &Client, event_type: &str) {
    let sql = "SELECT outbox_emit('order', 'o-1', $1, '{}')";
    client.execute(sql, &[&event_type]).await.expect("emit an event");
}

async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.expect(sql);
}

async fn stored_types(env: &TestEnv) -> Vec<String> {
    let event_type = |it: Stored| it.header("Event-Type").unwrap_or_default().to_owned();
    env.stored().await.into_iter().map(event_type).collect()
}

// proves: G-COMMIT-1
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_published_before_commit_or_after_rollback() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let open = env.client().await;
    run(&open, "BEGIN").await;
    emit(&open, "Open").await;
    let rolled_back = env.client().await;
    run(&rolled_back, "BEGIN").await;
    emit(&rolled_back, "RolledBack").await;
    run(&rolled_back, "ROLLBACK").await;
    emit(&rolled_back, "Committed").await;

    env.wait_stored(1).await;
    env.wait_confirmed().await; // whatever came before has been looked at
    assert_eq!(stored_types(&env).await, ["Committed"]);

    run(&open, "COMMIT").await;
    env.wait_stored(2).await;
    env.wait_confirmed().await;
    assert_eq!(stored_types(&env).await, ["Committed", "Open"]);
}

// proves: G-ORDER-1
#[tokio::test(flavor = "multi_thread")]
async fn interleaved_transactions_are_published_in_the_order_of_their_commits() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let (a, b, c) = (env.client().await, env.client().await, env.client().await);
    run(&a, "BEGIN").await;
    emit(&a, "A1").await;
    run(&b, "BEGIN").await;
    emit(&b, "B1").await;
    run(&a, "SAVEPOINT undone").await;
    emit(&a, "A-undone").await;
    run(&a, "SAVEPOINT within; ROLLBACK TO undone").await;
    emit(&a, "A2").await;
    run(&b, "SAVEPOINT kept").await;
    emit(&b, "B2").await;
    run(&b, "RELEASE kept; COMMIT").await;
    emit(&c, "C1").await;
    run(&a, "SAVEPOINT kept").await;
    emit(&a, "A3").await;
    run(&a, "COMMIT").await;

    env.wait_stored(6).await;
    env.wait_marked().await;
    assert_eq!(stored_types(&env).await, ["B1", "B2", "C1", "A1", "A2", "A3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_events_of_one_aggregate_in_a_millisecond_both_arrive_in_order() {
    const PAIRS: u64 = 100;
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    // Neither the times nor the ids tell which of the two came first.
    let mut script = String::new();
    for pair in 0..PAIRS {
        for (id, step) in [(2, "First"), (1, "Second")] {
            writeln!(
                script,
                "BEGIN; INSERT INTO outbox_events
                     (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
                 VALUES ('{id:08}-0000-4000-8000-{pair:012}', 'order', 'o-{pair}', '{step}', '{{}}',
                     '2026-11-21 01:02:03.004005Z'); COMMIT;"
            )
            .expect("writing to a string");
        }
    }
    env.execute(&script).await;

    env.wait_stored(2 * PAIRS).await;
    env.wait_marked().await;
    let stored = env.stored().await;
    assert_eq!(stored.len() as u64, 2 * PAIRS);
    for (pair, events) in stored.chunks(2).enumerate() {
        let seen = |at: usize| (events[at].header("Aggregate-Id"), events[at].header("Event-Type"));
        let aggregate = format!("o-{pair}");
        assert_eq!(seen(0), (Some(aggregate.as_str()), Some("First")));
        assert_eq!(seen(1), (Some(aggregate.as_str()), Some("Second")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_the_function_and_of_the_crate_arrive_whole() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let mut client = env.client().await;
    let emitted: Uuid = env
        .query(
            r#"SELECT outbox_emit('order', 'o-1', 'OrderPlaced', '{"total": 1.50}', 3,
                '11111111-1111-4111-8111-111111111111', '22222222-2222-4222-8222-222222222222',
                '{"traceparent": "00-af-01"}')"#,
        )
        .await;
    let enqueued = Event::new("order", "o-2", "OrderShipped", &json!({ "parcels": [1, 2] }))
        .expect("valid")
        .with_version(2)
        .with_correlation(Uuid::new_v4())
        .with_causation(Uuid::new_v4())
        .with_header("tenant", "Zürich");
    let tx = client.transaction().await.expect("begin");
    outbox::enqueue(&tx, &enqueued).await.expect("enqueue");
    tx.commit().await.expect("commit");

    env.wait_stored(2).await;
    let arrived: Vec<Event> = env.stored().await.iter().map(Stored::event).collect();
    assert_eq!(arrived[0].id, emitted);
    assert_eq!(arrived[0].event_version, 3);
    assert_eq!(arrived[0].payload, r#"{"total": 1.50}"#);
    assert_eq!(
        arrived[0].correlation_id,
        Some(Uuid::from_u128(0x11111111_1111_4111_8111_111111111111))
    );
    assert_eq!(
        arrived[0].causation_id,
        Some(Uuid::from_u128(0x22222222_2222_4222_8222_222222222222))
    );
    assert_eq!(arrived[0].headers.as_deref(), Some(&br#"{"traceparent":"00-af-01"}"#[..]));
    // PostgreSQL prints JSON its own way.
    let expected = Event { payload: r#"{"parcels": [1, 2]}"#.into(), ..enqueued };
    assert!(arrived[1] == expected, "{:?}", arrived[1]);
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn rows_copied_into_the_outbox_arrive_once_and_in_order() {
        const ROWS: u64 = 10_000;
        let env = TestEnv::new().await;
        env.setup().await;
        let _relay = env.relay();
        let ids: Vec<Uuid> = (0..ROWS).map(|_| Uuid::new_v4()).collect();
        let rows = ids.iter().enumerate().fold(String::new(), |mut rows, (n, id)| {
            writeln!(rows, "{id}\torder\to-{}\tOrderPlaced\t{{\"n\": {n}}}", n % 97)
                .expect("a string");
            rows
        });
        let sql = "COPY outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
                   FROM STDIN";
        let client = env.client().await;
        let sink = client.copy_in::<_, std::io::Cursor<String>>(sql).await.expect(sql);
        let mut sink = std::pin::pin!(sink);
        sink.send(std::io::Cursor::new(rows)).await.expect("send rows");
        assert_eq!(sink.finish().await.expect("finish the copy"), ROWS);

        env.wait_stored(ROWS).await;
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
    }
}
