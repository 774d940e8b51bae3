//! The partitions that a worker has share its handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use support::{DEADLINE, until};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::http::{divide, wait_processed};
use super::service::emit;

/// A service that keeps every call until it is let go.
struct Gate {
    open: Semaphore,
    at_work: AtomicUsize,
    /// How many calls it had at a time.
    most: AtomicUsize,
}

async fn keep(State(gate): State<Arc<Gate>>) -> StatusCode {
    let at_work = gate.at_work.fetch_add(1, Ordering::SeqCst) + 1;
    gate.most.fetch_max(at_work, Ordering::SeqCst);
    gate.open.acquire().await.expect("nobody closes it").forget();
    gate.at_work.fetch_sub(1, Ordering::SeqCst);
    StatusCode::NO_CONTENT
}

/// What a worker holds open does not grow with the partitions.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_as_many_connections_whatever_the_partitions() {
    let (env, _file) = divide("64", &[]).await;
    let (gate, url) = start().await;
    gate.open.add_permits(1_000);
    let _relay = env.relay();
    let _inbox = env.spawn(&["inbox", "run", "--consumer", "billing", "--handler", &url]);
    let active = "SELECT count(*) FROM inbox_roles WHERE state = 'active'";
    until(DEADLINE, "it has all partitions", async || env.query::<i64>(active).await == 64).await;
    for _ in 0..10 {
        env.insert(20).await;
    }
    wait_processed(&env, 200).await;
    // Those that nobody uses are kept: this is the most that there were.
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost inbox billing'";
    let open = env.query::<i64>(open).await;
    assert!(open <= 10, "{open} connections");
}

async fn start() -> (Arc<Gate>, String) {
    let gate = Gate { open: Semaphore::new(0), at_work: 0.into(), most: 0.into() };
    let gate = Arc::new(gate);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(keep).with_state(Arc::clone(&gate));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (gate, url)
}

/// One partition may have all handlers while the others rest, and together they have no more.
// proves: G-EFFECT-3
#[tokio::test(flavor = "multi_thread")]
async fn the_handlers_of_a_worker_are_as_many_as_it_says_whatever_the_partitions() {
    let (env, _file) = divide("4", &[("INBOX__CONCURRENCY", "2")]).await;
    let (gate, url) = start().await;
    let _relay = env.relay();
    let _inbox = env.spawn(&["inbox", "run", "--consumer", "billing", "--handler", &url]);
    let active = "SELECT count(*) FROM inbox_roles WHERE state = 'active'";
    until(DEADLINE, "it has all partitions", async || env.query::<i64>(active).await == 4).await;

    // Both are of partition 0.
    emit(&env, "o-1", "{}").await;
    emit(&env, "o-5", "{}").await;
    let at_work = || gate.at_work.load(Ordering::SeqCst);
    until(DEADLINE, "both are being handled", async || at_work() == 2).await;
    for order in 1..=20 {
        emit(&env, &format!("o-{order}"), "{}").await;
    }
    let stream = env.stream().await;
    until(DEADLINE, "the worker has all", async || {
        let mut delivered = 0;
        for partition in 0..4 {
            let info = stream.consumer_info(format!("billing-{partition}")).await;
            delivered += info.expect("the consumer").num_ack_pending;
        }
        delivered == 22
    })
    .await;
    // One by one, so that each has to wait for its turn.
    for _ in 0..22 {
        until(DEADLINE, "there is one to be ended", async || at_work() > 0).await;
        gate.open.add_permits(1);
        until(DEADLINE, "it has ended", async || gate.open.available_permits() == 0).await;
    }
    wait_processed(&env, 22).await;
    assert_eq!(gate.most.load(Ordering::SeqCst), 2, "at a time");
}
