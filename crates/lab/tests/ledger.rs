//! The ledger finds every kind of mistake a relay could make; the workload tells it the truth.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail loudly")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{Context, stream};
use lab::{
    CommittedEvent, Ledger, Nats, NatsOptions, Postgres, PostgresOptions, Tally, Workload,
    WorkloadOptions, Written,
};
use outbox::wire::{Position, header};
use outbox::{Event, Table, migrations};
use uuid::Uuid;

struct TestEnv {
    postgres: Postgres,
    _nats: Nats,
    client: tokio_postgres::Client,
    jetstream: Context,
}

impl TestEnv {
    async fn start() -> Self {
        let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
        let mut client = postgres.client("postgres").await.unwrap();
        let layout = migrations::Layout::Marked;
        migrations::migrate(&mut client, &Table::default(), layout).await.unwrap();
        let nats = Nats::start(NatsOptions::default()).await.unwrap();
        let jetstream = nats.jetstream().await.unwrap();
        let subjects = vec!["outbox.>".to_owned()];
        let config = stream::Config { name: "OUTBOX".into(), subjects, ..Default::default() };
        jetstream.create_stream(config).await.unwrap();
        Self { postgres, _nats: nats, client, jetstream }
    }

    /// Commits events of two aggregates, one transaction each.
    async fn commit(&mut self, count: usize) -> Vec<Uuid> {
        let mut ids = Vec::new();
        for index in 0..count {
            let aggregate = format!("o-{}", index % 2);
            let event = Event::new("order", aggregate, "OrderChanged", &index).unwrap();
            let tx = self.client.transaction().await.unwrap();
            outbox::enqueue(&tx, &event).await.unwrap();
            tx.commit().await.unwrap();
            ids.push(event.id);
        }
        ids
    }

    async fn publish(&self, id: Uuid, lsn: u64) {
        let position = Position { system_id: 7, timeline: 1, lsn, ordinal: 0 };
        let mut stream = self.jetstream.get_stream("OUTBOX").await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        let mut headers = HeaderMap::new();
        headers.insert(header::EVENT_ID, id.to_string());
        headers.insert(header::POSITION, position.to_string());
        headers.insert(header::EXPECTED_LAST_SEQUENCE, last.to_string());
        let subject = "outbox.order.OrderChanged";
        let ack = self.jetstream.publish_with_headers(subject, headers, "{}".into()).await.unwrap();
        ack.await.unwrap();
    }

    async fn publish_all(&self, ids: &[Uuid]) {
        for (lsn, id) in (1..).zip(ids) {
            self.publish(*id, lsn).await;
        }
    }

    async fn ledger(&self) -> Ledger {
        let table = Table::default();
        Ledger::collect(&self.client, &table, &self.jetstream, "OUTBOX").await.unwrap()
    }

    async fn report(&self) -> Tally {
        self.ledger().await.report(&Written::default())
    }
}

/// Lost, duplicates, out of order, phantoms.
fn zeros(tally: &Tally) -> [usize; 4] {
    [tally.lost, tally.duplicates, tally.out_of_order, tally.phantoms]
}

#[tokio::test]
async fn an_exact_relay_is_exact() {
    let mut env = TestEnv::start().await;
    let empty = env.report().await;
    assert_eq!((empty.committed, empty.stored, zeros(&empty)), (0, 0, [0; 4]));

    let ids = env.commit(6).await;
    env.publish_all(&ids).await;
    let mark = "UPDATE outbox_events SET published_at = now() WHERE id = $1";
    env.client.execute(mark, &[&ids[0]]).await.unwrap();
    let tally = env.report().await;
    tally.assert_exact();
    assert_eq!((tally.committed, tally.stored, tally.marked), (6, 6, 1));
    assert!(!tally.is_marked());
    assert_eq!(env.ledger().await.messages().len(), 6);

    let mark = "UPDATE outbox_events SET published_at = now(), stream_seq = $2 WHERE id = $1";
    for (sequence, id) in (1_i64..).zip(&ids) {
        env.client.execute(mark, &[id, &sequence]).await.unwrap();
    }
    assert!(env.report().await.is_marked());
    env.client.execute(mark, &[&ids[0], &2_i64]).await.unwrap();
    assert_eq!(env.report().await.marked, 5, "a mark that names another message is wrong");
}

#[tokio::test]
async fn a_lost_event_is_found_unless_it_is_a_dead_letter() {
    let mut env = TestEnv::start().await;
    let ids = env.commit(4).await;
    env.publish_all(&ids[..2]).await;
    let columns = "id, aggregate_type, aggregate_id, event_type, payload";
    let bury = format!(
        "INSERT INTO outbox_dead_letter ({columns}, reason) \
         SELECT {columns}, 'test' FROM outbox_events WHERE id = $1"
    );
    env.client.execute(&bury, &[&ids[2]]).await.unwrap();
    env.client.execute("DELETE FROM outbox_events WHERE id = $1", &[&ids[2]]).await.unwrap();
    let tally = env.report().await;
    assert_eq!((tally.dead, zeros(&tally)), (1, [1, 0, 0, 0]));
    assert!(tally.offenders().contains(&ids[3].to_string()), "{}", tally.offenders());

    // A row that is gone without having been stored is known from the producer alone.
    env.client.execute("DELETE FROM outbox_events WHERE id = $1", &[&ids[3]]).await.unwrap();
    assert_eq!(zeros(&env.report().await), [0; 4]);
    let event = CommittedEvent {
        id: ids[3],
        aggregate: "o-1".into(),
        ordinal: 1,
        commit_sent: Instant::now(),
        commit_took: Duration::ZERO,
        committed_at: jiff::Timestamp::now(),
    };
    let written = Written { committed: vec![event], rolled_back: vec![] };
    assert_eq!(zeros(&env.ledger().await.report(&written)), [1, 0, 0, 0]);
}

#[tokio::test]
async fn a_duplicate_is_found_and_is_no_disorder() {
    let mut env = TestEnv::start().await;
    let ids = env.commit(3).await;
    env.publish_all(&ids).await;
    env.publish(ids[0], 1).await;
    env.publish(ids[0], 1).await;
    let tally = env.report().await;
    assert_eq!((tally.stored, zeros(&tally)), (3, [0, 2, 0, 0]));
}

#[tokio::test]
async fn disorder_within_an_aggregate_is_found() {
    let mut env = TestEnv::start().await;
    let ids = env.commit(4).await;
    // 0 and 2 are of one aggregate. The positions pretend that all is well.
    env.publish_all(&[ids[2], ids[1], ids[0], ids[3]]).await;
    let tally = env.report().await;
    assert_eq!(zeros(&tally), [0, 0, 1, 0]);
    assert!(tally.offenders().contains(&ids[0].to_string()), "{}", tally.offenders());
}

#[tokio::test]
async fn disorder_of_positions_is_found_across_aggregates() {
    let mut env = TestEnv::start().await;
    let ids = env.commit(2).await;
    env.publish(ids[0], 20).await;
    env.publish(ids[1], 10).await;
    assert_eq!(zeros(&env.report().await), [0, 0, 1, 0]);
}

#[tokio::test]
async fn phantoms_are_found_unless_their_rows_were_deleted_on_purpose() {
    let mut env = TestEnv::start().await;
    let ids = env.commit(2).await;
    let (invented, rolled_back) = (Uuid::now_v7(), ids[1]);
    env.publish_all(&[ids[0], ids[1], invented]).await;
    let written = Written { committed: vec![], rolled_back: vec![rolled_back] };
    let tally = env.ledger().await.report(&written);
    assert_eq!(zeros(&tally), [0, 0, 0, 2]);
    assert!(tally.offenders().contains(&invented.to_string()), "{}", tally.offenders());
    let allowed = env.ledger().await.allowing([invented]).report(&Written::default());
    allowed.assert_exact();
}

#[tokio::test]
async fn the_workload_tells_the_truth_over_a_crash_of_the_server() {
    let mut env = TestEnv::start().await;
    let announced = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&announced);
    let options = WorkloadOptions {
        rolled_back: 0.3,
        before_commit: Some(Arc::new(move |ids: &[Uuid]| {
            counter.fetch_add(ids.len() as u64, Ordering::Relaxed);
        })),
        ..Default::default()
    };
    let workload = Workload::start(&env.postgres.url("postgres"), options).await.unwrap();
    let committed = |at_least| wait_for(&workload, at_least);
    committed(200).await;
    env.postgres.kill().await.unwrap();
    env.postgres.start_again().await.unwrap();
    committed(workload.committed() + 200).await;
    let written = workload.stop().await.unwrap();

    let client = env.postgres.client("postgres").await.unwrap();
    let rows = client.query("SELECT id FROM outbox_events ORDER BY id", &[]).await.unwrap();
    let rows: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    let mut ids: Vec<Uuid> = written.committed.iter().map(|it| it.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, rows, "exactly what it says is committed is there");
    assert!(!written.rolled_back.is_empty());
    assert!(written.rolled_back.iter().all(|id| rows.binary_search(id).is_err()));
    assert!(announced.load(Ordering::Relaxed) >= ids.len() as u64);

    let by_seq = "SELECT id FROM outbox_events WHERE aggregate_id = $1 ORDER BY seq";
    let aggregate = &written.committed[0].aggregate;
    let stored = client.query(by_seq, &[aggregate]).await.unwrap();
    let stored: Vec<Uuid> = stored.iter().map(|row| row.get(0)).collect();
    let told = written.committed.iter().filter(|it| it.aggregate == *aggregate);
    let (ordinals, told): (Vec<u64>, Vec<Uuid>) = told.map(|it| (it.ordinal, it.id)).unzip();
    assert_eq!(told, stored, "the order of seq is the order of commits");
    assert_eq!(ordinals, (0..ordinals.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_paced_workload_keeps_its_rate() {
    let env = TestEnv::start().await;
    let options = WorkloadOptions { rate: Some(200.0), ..Default::default() };
    let started = Instant::now();
    let workload = Workload::start(&env.postgres.url("postgres"), options).await.unwrap();
    wait_for(&workload, 200).await;
    let elapsed = started.elapsed();
    workload.stop().await.unwrap();
    assert!(elapsed > Duration::from_millis(900), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
}

#[tokio::test]
async fn a_workload_without_its_table_does_not_start() {
    let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
    let url = postgres.url("postgres");
    let error = Workload::start(&url, WorkloadOptions::default()).await.err().unwrap();
    let error = format!("{error:#}");
    assert!(error.contains("outbox_events"), "{error}");
}

async fn wait_for(workload: &Workload, committed: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while workload.committed() < committed {
        assert!(Instant::now() < deadline, "only {} events committed", workload.committed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
