//! Who handles events, when workers stop, hang or lose their network.

use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use lab::{Direction, Port, Proxy};
use serde_json::json;
use support::{DEADLINE, TestEnv, assert_promise, get, until};

use super::http::set_up;
use super::service::Service;
use super::{Inbox, Worker};

const LEASE: Duration = Duration::from_secs(3);

async fn with_lease(mode: &str) -> Inbox {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", mode);
    inbox.set("WORKER_RUNS", "1");
    inbox.set("WORKER_LEASE_MS", "3000");
    inbox.set("WORKER_ACK_WAIT_MS", "2000");
    inbox
}

/// Waits until the standby has had an effect; returns how long that took.
async fn wait_takeover(inbox: &Inbox, standby: &Worker) -> Duration {
    let began = Instant::now();
    standby.wait_active().await;
    let took = began.elapsed();
    let before = inbox.count("effects").await;
    inbox.wait_count("effects", before + 1).await;
    took
}

/// A stop gives the claim back, however long the handler takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_middle_of_a_slow_handler_counts_no_attempt() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    inbox.set("WORKER_RUNS", "1");
    inbox.publish("o-1", json!({ "sleep_ms": 600_000 })).await;
    let worker = inbox.worker();
    inbox.wait_count("runs", 1).await;
    worker.stop().await;
    assert_eq!(inbox.count("inbox_messages WHERE attempts = 0").await, 1);
}

/// A worker that has lost the role keeps the lease of what a handler of its is still at,
/// so that its successor waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_slow_handler_is_renewed_also_when_the_role_is_lost() {
    lose_role_with_handler_at_work(true).await;
}

/// A worker that takes the role back at once has lost it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_lost_for_a_moment_ends_the_session_and_no_handler() {
    lose_role_with_handler_at_work(false).await;
}

/// The role is taken by another worker, which keeps it if it `is_there`: otherwise it is free again.
async fn lose_role_with_handler_at_work(is_there: bool) {
    let mut inbox = with_lease("leased").await;
    inbox.set("WORKER_LEASE_MS", "12000");
    inbox.publish("o-1", json!({ "sleep_ms": 600_000 })).await;
    let worker = inbox.worker();
    inbox.wait_count("runs", 1).await;
    let another = inbox.env.client().await;
    if is_there {
        // As each connection of a worker does.
        let mark = "SELECT pg_advisory_lock_shared(hashtextextended('another', 1))";
        another.batch_execute(mark).await.expect("mark the connection");
    }
    let steal = "UPDATE inbox_roles SET token = gen_random_uuid(), owner = 'another',
                 expires_at = now() + interval '1 hour'";
    another.batch_execute(steal).await.expect("take the role");
    worker.wait_log("another worker took over").await;
    for _ in 0..2 {
        let until: String = inbox.env.query("SELECT expires_at::text FROM inbox_messages").await;
        inbox.wait_count(&format!("inbox_messages WHERE expires_at > '{until}'"), 1).await;
    }
    assert_eq!(inbox.count("runs").await, 1);
    let owner = if is_there { "owner = 'another'" } else { "owner <> 'another'" };
    inbox.wait_count(&format!("inbox_roles WHERE {owner}"), 1).await;
}

/// It would stand by for ever, and all would be well.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_for_another_stream_says_that_its_consumer_has_a_worker() {
    const TOLD: &str = "another stream has the consumer";
    let (mut env, admin) = (set_up().await, Port::reserve().expect("a free port"));
    let subjects = vec!["other.>".to_owned()];
    let other = stream::Config { name: "OTHER".into(), subjects, ..stream::Config::default() };
    let nats = env.nats.client().await.expect("connect");
    jetstream::new(nats).create_stream(other).await.expect("another stream");
    let service = Service::start().await;
    let args = service.args();
    let run = |env: &TestEnv| {
        let inbox = env.spawn(&args.each_ref().map(String::as_str));
        inbox.announce("");
        inbox
    };
    let first = run(&env);
    until(DEADLINE, "it is at work", async || {
        env.query::<i64>("SELECT count(*) FROM inbox_roles WHERE state = 'active'").await == 1
    })
    .await;
    env.set("TAILPOST_INBOX__STREAM", "OTHER");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
    let second = run(&env);
    let ready = async || get(admin.addr(), "/readyz").await.unwrap_or_default();
    until(DEADLINE, "it says so", async || {
        let ready = ready().await;
        ready.contains(" 503 ") && ready.contains(TOLD)
    })
    .await;
    assert!(second.log().contains("\"OUTBOX\" as \"billing\". Stop it"), "{}", second.log());
    // The consumer moves.
    first.sigterm();
    first.wait_exit(DEADLINE).await;
    until(DEADLINE, "it is ready", async || ready().await.contains(" 200 ")).await;
}

mod long {
    use super::*;

    /// A worker that is stopped, with transactions open, is replaced within twice
    /// its lease; when it goes on it does nothing.
    // proves: G-EFFECT-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_stopped_worker_is_replaced_and_does_nothing_when_it_goes_on() {
        for mode in ["transactional", "leased"] {
            let inbox = with_lease(mode).await;
            inbox.publish_many(0, 600, &json!({ "sleep_ms": 3 })).await;
            let first = inbox.worker();
            inbox.wait_count("effects", 20).await;
            let standby = inbox.worker();
            standby.wait_log("standing by").await;
            first.pause();
            let took = wait_takeover(&inbox, &standby).await;
            assert_promise(2 * LEASE, took);
            first.resume();
            first.wait_log("standing by").await;
            until(DEADLINE, "all have had their effect", async || {
                inbox.count("(SELECT DISTINCT event_id FROM effects) AS t").await == 600
            })
            .await;
            inbox.wait_acked().await;
            if mode == "transactional" {
                inbox.assert_exact(600).await;
            } else {
                // What was at work when it was stopped may have had its effect, and nothing else.
                assert!(inbox.count("effects").await <= 600 + 4, "{mode}");
            }
            // Who gives the role up is replaced at once.
            standby.stop().await;
            until(DEADLINE, "it has the role", async || {
                first.log().matches("the consumer is ours").count() == 2
            })
            .await;
            first.stop().await;
        }
    }

    /// As a worker that is stopped, but the network between is.
    // proves: G-EFFECT-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_that_is_cut_off_from_the_database_is_replaced() {
        let mut inbox = with_lease("transactional").await;
        let network = Proxy::start(([127, 0, 0, 1], inbox.env.postgres.port()).into()).await;
        let network = network.expect("start a proxy");
        inbox.publish_many(0, 400, &json!({ "sleep_ms": 3 })).await;
        let direct = inbox.env.postgres.url("postgres");
        inbox.set("DATABASE_URL", &format!("postgres://postgres@{}/postgres", network.addr()));
        let first = inbox.worker();
        inbox.wait_count("effects", 20).await;
        inbox.set("DATABASE_URL", &direct);
        let standby = inbox.worker();
        standby.wait_log("standing by").await;
        network.blackhole(Direction::Both);
        let took = wait_takeover(&inbox, &standby).await;
        assert_promise(2 * LEASE, took);
        first.wait_log("PostgreSQL does not answer").await;
        inbox.wait_count("effects", 400).await;
        inbox.wait_acked().await;
        inbox.assert_exact(400).await;
        standby.stop().await;
    }

    /// A stop ends while the broker is away; meanwhile operators see that it is.
    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_broker_the_consumer_is_not_ready_and_stops() {
        let mut env = set_up().await;
        let _relay = env.relay();
        let service = Service::start().await;
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        env.insert(20).await;
        super::super::http::wait_processed(&env, 20).await;
        let readyz = async |text: &str| {
            let told = get(admin.addr(), "/readyz").await.unwrap_or_default();
            told.contains(text)
        };
        // A durable that somebody deleted is made again.
        env.stream().await.delete_consumer("billing").await.expect("delete the consumer");
        inbox.wait_log("the durable consumer was deleted").await;
        env.insert(20).await;
        super::super::http::wait_processed(&env, 40).await;
        until(DEADLINE, "it is ready", async || readyz("HTTP/1.1 200").await).await;
        env.nats.kill().await.expect("kill NATS");
        until(DEADLINE, "it is not ready", async || readyz("the broker is away").await).await;
        inbox.sigterm();
        assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());
    }
}
