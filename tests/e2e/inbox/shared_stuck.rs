//! One partition of a consumer that does not move is seen, although the others do.

use lab::Port;
use support::{DEADLINE, SCRAPER, TestEnv, ask, until};
use tokio::net::TcpStream;

use super::http::{configure, wait_processed};
use super::service::{Service, emit};

/// Of partition 1 of 4.
const AGGREGATE: &str = "o-2";

async fn asked(api: &Port, path: &str) -> String {
    let headers = format!("Host: {}\r\nAuthorization: Bearer {SCRAPER}", api.addr());
    let stream = TcpStream::connect(api.addr()).await.expect("it listens");
    ask(stream, "GET", path, &headers, "").await.unwrap_or_default()
}

async fn wait_ready(api: &Port) {
    until(DEADLINE, "it is ready", async || asked(api, "/readyz").await.contains(" 200 ")).await;
}

/// Waits until status, doctor and metrics name the partition.
async fn wait_told(env: &TestEnv, api: &Port, status: &str, check: &str) {
    let mut missing = Vec::new();
    until(DEADLINE, "it is told", async || {
        let (shown, _) = env.ends_with(0, &["status"]).await;
        let (checks, _) = env.ends_with(0, &["doctor", "--only", "inbox"]).await;
        let metrics = asked(api, "/metrics").await;
        let stalled = metrics.lines().find(|it| {
            it.starts_with("tailpost_inbox_stalled_seconds") && it.contains("\"billing-1\"")
        });
        let seconds = stalled.and_then(|it| it.rsplit(' ').next()?.parse::<f64>().ok());
        let is_stalled = seconds.is_some_and(|it| it >= 6.0);
        let all = [(shown.contains(status), shown), (checks.contains(check), checks)];
        let all = all.into_iter().chain([(is_stalled, stalled.unwrap_or("no metric").to_owned())]);
        let now: Vec<String> = all.filter(|it| !it.0).map(|it| it.1).collect();
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
    let mut env = TestEnv::new().await;
    let api = Port::reserve().expect("a free port");
    for (name, value) in [
        ("ADMIN__INBOX_LISTEN", &*api.addr().to_string()),
        ("ADMIN__TOKEN", SCRAPER),
        ("METRICS__INTERVAL", "300ms"),
        ("INBOX__LEASE", "3s"),
        ("INBOX__TIMEOUT", "2s"),
        ("INBOX__PARTITIONS", "4"),
        ("RELAY__PARTITIONS", "4"),
        ("RELAY__SUBJECT", "{partition}.outbox.{aggregate_type}.{event_type}"),
    ] {
        env.set(&format!("TAILPOST_{name}"), value);
    }
    let _file = configure(&mut env);
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let _relay = env.relay();
    let service = Service::start().await;
    let _worker = env.spawn(&service.args().each_ref().map(String::as_str));
    let active = "SELECT count(*) FROM inbox_roles WHERE state = 'active'";
    until(DEADLINE, "it has all", async || env.query::<i64>(active).await == 4).await;
    wait_ready(&api).await;

    let mut client = env.client().await;
    let stranger = client.transaction().await.expect("begin");
    let lock = "SELECT FROM inbox_roles WHERE partition = 1 FOR UPDATE";
    stranger.execute(lock, &[]).await.expect("lock its row");
    env.insert(40).await;
    until(DEADLINE, "it is not ready", async || {
        let told = asked(&api, "/readyz").await;
        told.contains(" 503 ") && (told.contains("partition 1)") || told.contains("billing-1"))
    })
    .await;
    wait_told(
        &env,
        &api,
        "no worker    has billing-1\n",
        "no worker has the partition of billing-1",
    )
    .await;
    let others = "SELECT count(*) FROM inbox_roles WHERE expires_at > now()";
    assert_eq!(env.query::<i64>(others).await, 3, "the others are renewed");
    stranger.rollback().await.expect("unlock it");
    wait_processed(&env, 40).await;
    wait_ready(&api).await;

    let hold = "SELECT pg_advisory_lock_shared(hashtextextended('a stranger', 1))";
    client.batch_execute(hold).await.expect("be there");
    // As a worker takes it: what the last one said of itself goes.
    let take = "UPDATE inbox_roles SET owner = 'a stranger', token = gen_random_uuid(),
        expires_at = now() + interval '1 hour', state = NULL, breaker = NULL, reason = NULL,
        next_probe_at = NULL WHERE partition = 1";
    env.execute(take).await;
    emit(&env, AGGREGATE, "{}").await;
    wait_told(&env, &api, "  stalled      billing-1: 1 events", "for billing-1, and none was")
        .await;
    env.insert(40).await;
    drop(client);
    wait_processed(&env, 81).await;
    wait_ready(&api).await;
}
