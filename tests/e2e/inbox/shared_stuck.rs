//! One partition of a consumer that does not move is seen, although the others do.

use lab::Port;
use support::{DEADLINE, SCRAPER, TestEnv, ask, until};
use tokio::net::TcpStream;

use super::http::{divide, wait_processed};
use super::service::{Service, emit};
use super::{TABLES, Worker};

/// Of partition 1 of 4.
const AGGREGATE: &str = "o-2";

pub(crate) async fn asked(api: &Port, path: &str) -> String {
    let headers = format!("Host: {}\r\nAuthorization: Bearer {SCRAPER}", api.addr());
    let Ok(stream) = TcpStream::connect(api.addr()).await else { return String::new() };
    ask(stream, "GET", path, &headers, "").await.unwrap_or_default()
}

async fn wait_ready(api: &Port) {
    until(DEADLINE, "it is ready", async || asked(api, "/readyz").await.contains(" 200 ")).await;
}

/// Waits until status, doctor and the metrics of a process name the partition.
async fn wait_told(env: &TestEnv, api: Option<&Port>, status: &str, check: &str) {
    let mut missing = Vec::new();
    until(DEADLINE, "it is told", async || {
        let (shown, _) = env.ends_with(0, &["status"]).await;
        let (checks, _) = env.ends_with(0, &["doctor", "--only", "inbox"]).await;
        let mut all = vec![(shown.contains(status), shown), (checks.contains(check), checks)];
        if let Some(api) = api {
            let metrics = asked(api, "/metrics").await;
            let stalled = metrics.lines().find(|it| {
                it.starts_with("tailpost_inbox_stalled_seconds") && it.contains("\"billing-1\"")
            });
            let seconds = stalled.and_then(|it| it.rsplit(' ').next()?.parse::<f64>().ok());
            let is_stalled = seconds.is_some_and(|it| it >= 6.0);
            all.push((is_stalled, stalled.unwrap_or("no metric").to_owned()));
        }
        let now: Vec<String> = all.into_iter().filter(|it| !it.0).map(|it| it.1).collect();
        if now.len() != missing.len() {
            eprintln!("not told: {now:#?}");
        }
        missing = now;
        missing.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_nobody_has_or_that_does_not_move_is_named() {
    let api = Port::reserve().expect("a free port");
    let settings = [
        ("ADMIN__INBOX_LISTEN", &*api.addr().to_string()),
        ("ADMIN__TOKEN", SCRAPER),
        ("METRICS__INTERVAL", "300ms"),
        ("INBOX__LEASE", "3s"),
        ("INBOX__TIMEOUT", "2s"),
    ];
    let (env, _file) = divide("4", &settings).await;
    let _relay = env.relay();
    let service = Service::start().await;
    // Once it had another worker.
    env.execute(
        "INSERT INTO inbox_roles (consumer, token, owner, expires_at, partition)
         VALUES ('billing', gen_random_uuid(), '', '-infinity', 1)",
    )
    .await;
    let mut client = env.client().await;
    let lock = "SELECT FROM inbox_roles WHERE partition = 1 FOR UPDATE";
    let wait_unready = async |told: &str| {
        until(DEADLINE, &format!("it is not ready: {told}"), async || {
            let ready = asked(&api, "/readyz").await;
            ready.contains(" 503 ") && ready.contains(told)
        })
        .await;
    };
    let stranger = client.transaction().await.expect("begin");
    stranger.execute(lock, &[]).await.expect("lock its row");
    let _worker = env.spawn(&service.args().each_ref().map(String::as_str));
    env.insert(40).await;
    wait_unready(" s no worker has had billing-1").await;
    stranger.rollback().await.expect("unlock it");
    wait_processed(&env, 40).await;
    wait_ready(&api).await;

    let stranger = client.transaction().await.expect("begin");
    stranger.execute(lock, &[]).await.expect("lock its row");
    env.insert(40).await;
    wait_unready(" (partition 1)").await;
    wait_told(
        &env,
        Some(&api),
        "no worker    has billing-1\n",
        "no worker has the partition of billing-1",
    )
    .await;
    let others = "SELECT count(*) FROM inbox_roles WHERE expires_at > now()";
    assert_eq!(env.query::<i64>(others).await, 3, "the others are renewed");
    stranger.rollback().await.expect("unlock it");
    wait_processed(&env, 80).await;
    wait_ready(&api).await;

    let hold = "SELECT pg_advisory_lock_shared(hashtextextended('a stranger', 1))";
    client.batch_execute(hold).await.expect("be there");
    // As a worker takes it: what the last one said of itself goes.
    let take = "UPDATE inbox_roles SET owner = 'a stranger', token = gen_random_uuid(),
        expires_at = now() + interval '1 hour', state = NULL, breaker = NULL, reason = NULL,
        next_probe_at = NULL WHERE partition = 1";
    env.execute(take).await;
    emit(&env, AGGREGATE, "{}").await;
    let status = "  stalled      billing-1: 1 events";
    wait_told(&env, Some(&api), status, "for billing-1, and none was").await;
    env.insert(40).await;
    drop(client);
    wait_processed(&env, 121).await;
    wait_ready(&api).await;
}

/// Its worker keeps the partition: who took it could not end the handler.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_with_a_handler_that_never_ends_is_named_and_the_others_go_on() {
    let (env, _file) = divide("4", &[("INBOX__LEASE", "3s"), ("INBOX__TIMEOUT", "2s")]).await;
    env.execute(TABLES).await;
    let _relay = env.relay();
    let variables = [
        ("DATABASE_URL", &*env.postgres.url("postgres")),
        ("NATS_URL", &env.nats.url()),
        ("WORKER_CONSUMER", "billing"),
        ("WORKER_PARTITIONS", "4"),
        ("WORKER_SUBJECTS", "{partition}.outbox.*.*"),
        ("WORKER_MODE", "leased"),
        ("WORKER_LEASE_MS", "3000"),
    ];
    let worker = Worker::spawn(&variables.map(|(name, value)| (name.into(), value.into())));
    emit(&env, AGGREGATE, r#"{"sleep_ms": 86400000}"#).await;
    env.insert(40).await;
    let others = format!("SELECT count(*) FROM effects WHERE aggregate_id <> '{AGGREGATE}'");
    until(DEADLINE, "the others are handled", async || env.query::<i64>(&others).await == 36).await;
    let status = "  stalled      billing-1: 5 events";
    wait_told(&env, None, status, "for billing-1, and none was").await;
    let kept = format!(
        "SELECT count(*) FROM inbox_roles WHERE expires_at > now() AND owner LIKE '{}:%'",
        worker.pid()
    );
    assert_eq!(env.query::<i64>(&kept).await, 4);
}
