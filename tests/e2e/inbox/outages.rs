//! Services that are away, and events that bring them down.

use std::time::{Duration, Instant};

use lab::{Direction, Port, Proxy};
use serde_json::{Value, json};
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, get, until};

use super::Inbox;
use super::http::{processed, set_up, wait_processed};
use super::service::{Service, emit};

/// Runs `billing`, which calls the service through a network that can be cut.
async fn run(env: &mut TestEnv, service: &Service) -> (Proxy, Relay, Port) {
    let network = Proxy::start(service.address()).await.expect("start a proxy");
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
    let url = format!("http://{}/events", network.addr());
    let args = ["inbox", "run", "--consumer", "billing", "--handler", &url];
    (network, env.spawn(&args), admin)
}

async fn wait_readyz(admin: &Port, texts: &[&str]) {
    let what = format!("/readyz says {texts:?}");
    until(DEADLINE, &what, async || {
        let told = get(admin.addr(), "/readyz").await.unwrap_or_default();
        texts.iter().all(|text| told.contains(text))
    })
    .await;
}

/// What `tailpost status` says of the worker. It learns of it at the worker's next heartbeat.
async fn wait_status(env: &TestEnv, says: impl Fn(&Value) -> bool) -> String {
    until(DEADLINE, "status says so", async || {
        let (json, _) = env.ends_with(0, &["status", "--json"]).await;
        let json: Value = serde_json::from_str(&json).expect("valid JSON");
        says(&json["consumers"][0]["worker"])
    })
    .await;
    env.ends_with(0, &["status"]).await.0
}

async fn assert_uncounted(env: &TestEnv) {
    let dead: i64 = env.query("SELECT count(*) FROM inbox_dead_letter").await;
    assert_eq!(dead, 0, "dead letters");
    let sql = "SELECT count(*) FROM inbox_messages WHERE attempts <> 1";
    assert_eq!(env.query::<i64>(sql).await, 0, "events with counted attempts");
}

/// For longer than its worker looks back.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_decided_while_the_database_was_away_is_done_when_it_is_back() {
    let mut inbox = Inbox::new().await;
    // Longer than anything is waited for.
    inbox.set("WORKER_BACKOFF_MS", "86400000");
    let postgres = ([127, 0, 0, 1], inbox.env.postgres.port()).into();
    let mut network = Proxy::start(postgres).await.expect("start a proxy");
    inbox.set("DATABASE_URL", &format!("postgres://postgres@{}/postgres", network.addr()));
    let _worker = inbox.worker();
    inbox.publish("o-1", json!({ "fail_before": 2 })).await;
    inbox.publish("o-1", json!({})).await;
    inbox.wait_count("inbox_messages WHERE status = 'FAILED'", 1).await;
    network.cut().await;
    let decide = "WITH marked AS (
            UPDATE inbox_messages SET status = 'PROCESSED', processed_at = now(),
                next_attempt_at = NULL
            WHERE status = 'FAILED' RETURNING *)
        INSERT INTO inbox_decisions (decision, decided_by, consumer, message_id, event_time)
        SELECT 'mark_processed', 'ada', consumer, message_id, event_time FROM marked";
    inbox.env.execute(decide).await;
    inbox.wait_count("inbox_decisions WHERE decided_at < now() - interval '8 s'", 1).await;
    network.restore().await.expect("mend the network");
    inbox.wait_count("effects", 1).await;
}

/// One event that gets a 500 may be to blame for it. All of them are not.
// proves: G-EFFECT-5
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_fails_whatever_it_is_sent_makes_no_dead_letters() {
    let mut env = set_up().await;
    // Fewer than an outage has, and long enough apart that five others fail meanwhile on any machine.
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "4");
    env.set("TAILPOST_INBOX__BACKOFF", "500ms");
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer(500);
    // That several events fail tells: one that comes long before the others fails by itself.
    env.insert(30).await;
    env.wait_stored(30).await;
    let (_network, _inbox, admin) = run(&mut env, &service).await;
    wait_readyz(&admin, &["HTTP/1.1 503", "\"state\":\"paused\",\"breaker\":\"open\""]).await;
    let before = service.calls().len();
    until(DEADLINE, "it is probed", async || service.calls().len() >= before + 5).await;
    service.answer(204);
    wait_processed(&env, 30).await;
    wait_readyz(&admin, &["HTTP/1.1 200", "\"breaker\":\"closed\""]).await;
    let dead: i64 = env.query("SELECT count(*) FROM inbox_dead_letter").await;
    assert_eq!(dead, 0, "dead letters");
}

/// The service goes down whenever it sees one event, and answers all others.
// proves: G-EFFECT-5
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_brings_the_service_down_becomes_a_dead_letter() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "3");
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer_to("sick", 503);
    let (_network, _inbox, _admin) = run(&mut env, &service).await;
    let sick = emit(&env, "sick", "{}").await;
    let mut well = 0;
    let dead = "SELECT count(*) FROM inbox_dead_letter
        WHERE cause = 'max_attempts' AND attempts = 3 AND reason LIKE '503%'";
    until(DEADLINE, "the sick event is a dead letter", async || {
        well += 1;
        emit(&env, &format!("well-{}", well % 7), "{}").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        env.query::<i64>(dead).await == 1
    })
    .await;
    wait_processed(&env, well).await;
    let blamed: i64 = env.query("SELECT count(*) FROM inbox_messages WHERE attempts <> 1").await;
    assert_eq!(blamed, 1, "only the sick event's attempts count");
    // Each attempt that counts, and whatever it was probed with: more the seldomer others come.
    assert!((4..=20).contains(&service.calls_of(sick)), "{} calls", service.calls_of(sick));
}

/// How many attempts the dead letter had, and how long after the first of them it became one.
async fn given_up(env: &TestEnv) -> (i32, f64) {
    let letter = "inbox_dead_letter d JOIN inbox_messages m USING (consumer, message_id)
        WHERE d.cause = 'expired' AND m.status = 'DEAD'";
    let expired = format!("SELECT count(*) FROM {letter}");
    until(DEADLINE, "the event is given up", async || env.query::<i64>(&expired).await == 1).await;
    let took =
        format!("SELECT extract(epoch FROM d.dead_at - m.tried_since)::float8 FROM {letter}");
    (env.query(&format!("SELECT d.attempts FROM {letter}")).await, env.query(&took).await)
}

/// What is requeued is tried for as long once more.
// proves: G-EFFECT-5
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_fails_for_too_long_becomes_a_dead_letter() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "1000000");
    env.set("TAILPOST_INBOX__BACKOFF", "100ms,1h");
    env.set("TAILPOST_INBOX__GIVE_UP_AFTER", "2s");
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer_to("sick", 500);
    let (_network, _inbox, _admin) = run(&mut env, &service).await;
    let sick = emit(&env, "sick", "{}").await;
    let (attempts, took) = given_up(&env).await;
    // A pause of up to an hour ends when the time does, with the last attempt.
    assert!((2..=4).contains(&attempts) && took >= 2.0, "{attempts} attempts, {took} s");

    let requeue =
        ["inbox", "dlq", "requeue", &sick.to_string(), "--why", "again"].map(str::to_owned);
    let requeue: Vec<&str> = requeue.iter().map(String::as_str).collect();
    env.ends_with(0, &requeue).await;
    let tried = "SELECT count(*) FROM inbox_messages WHERE status <> 'DEAD' AND attempts > 0";
    until(DEADLINE, "it is tried again", async || env.query::<i64>(tried).await == 1).await;
    let (attempts, took) = given_up(&env).await;
    assert!((2..=4).contains(&attempts) && took >= 2.0, "{attempts} attempts, {took} s");

    service.answer_to("sick", 204);
    env.ends_with(0, &requeue).await;
    emit(&env, "well", "{}").await;
    wait_processed(&env, 2).await;
}

/// What was never tried is not given up, and the service stays paused. A claim that takes long makes no
/// event older than it is.
// proves: G-EFFECT-5
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_meets_an_outage_for_too_long_becomes_a_dead_letter() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__CONCURRENCY", "1");
    env.set("TAILPOST_INBOX__BACKOFF", "300ms");
    env.set("TAILPOST_INBOX__GIVE_UP_AFTER", "2s");
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer(503);
    env.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(1); RETURN NEW; END';
        CREATE TRIGGER dawdle BEFORE UPDATE ON inbox_messages
            FOR EACH ROW WHEN (NEW.claimed_at > OLD.claimed_at) EXECUTE FUNCTION dawdle()",
    )
    .await;
    let (_network, _inbox, admin) = run(&mut env, &service).await;
    emit(&env, "sick", "{}").await;
    let (attempts, took) = given_up(&env).await;
    assert!(attempts == 1 && took >= 2.0, "{attempts} attempts, {took} s: an outage counts none");
    let reason = "SELECT count(*) FROM inbox_dead_letter WHERE reason LIKE '503%'";
    assert_eq!(env.query::<i64>(reason).await, 1);
    emit(&env, "late", "{}").await;
    emit(&env, "later", "{}").await;
    wait_readyz(&admin, &["HTTP/1.1 503", "\"breaker\":\"open\""]).await;
    service.answer(204);
    wait_processed(&env, 2).await;
    let dead: i64 = env.query("SELECT count(*) FROM inbox_dead_letter").await;
    assert_eq!(dead, 1, "nothing that came later is given up");
}

/// Between the first and the last call there is the time that the rate asks for.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_called_no_more_often_than_the_rate_says() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__RATE", "20/s");
    let _relay = env.relay();
    let service = Service::start().await;
    env.insert(60).await;
    env.wait_stored(60).await;
    let begin = Instant::now();
    let (_network, _inbox, _admin) = run(&mut env, &service).await;
    wait_processed(&env, 60).await;
    // Two at once, and 58 in the time of 20 in a second.
    assert!(begin.elapsed() >= Duration::from_millis(2_900), "{:?}", begin.elapsed());
}

/// Whoever supervises a process asks it from its start, and replaces one that does not answer.
// proves: G-SEEN-1
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_that_starts_without_its_servers_is_alive_and_says_what_it_waits_for() {
    let mut env =
        TestEnv::with(TestEnvOptions { proxied: true, ..TestEnvOptions::default() }).await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    env.to_nats().cut().await;
    env.to_postgres().cut().await;
    let service = Service::start().await;
    let (_network, inbox, admin) = run(&mut env, &service).await;
    let waits = "\"state\":\"starting\",\"breaker\":\"closed\",\"reason\":\"the broker is away\"";
    wait_readyz(&admin, &["HTTP/1.1 503", waits]).await;
    let alive = get(admin.addr(), "/livez").await.expect("an answer");
    assert!(alive.starts_with("HTTP/1.1 200 "), "{alive}");
    env.to_nats().restore().await.expect("listen again");
    wait_readyz(&admin, &["HTTP/1.1 503", "\"state\":\"paused\""]).await;
    env.to_postgres().restore().await.expect("listen again");
    wait_readyz(&admin, &["HTTP/1.1 200", "\"state\":\"active\""]).await;
    let metrics = get(admin.addr(), "/metrics").await.expect("an answer");
    assert!(metrics.contains("tailpost_inbox_active{env=\"default\",consumer=\"billing\"} 1"));
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());
}

/// What waits for events when the connection goes waits on the next one, not until it would have
/// asked again.
// proves: G-CRED-2
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_the_broker_that_is_made_anew_brings_events_at_once() {
    let mut env = TestEnv::proxied().await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let _relay = env.relay();
    let service = Service::start().await;
    let (_network, _inbox, admin) = run(&mut env, &service).await;
    wait_readyz(&admin, &["HTTP/1.1 200"]).await;
    let (mut slowest, mut slowest_relay) = (Duration::ZERO, Duration::ZERO);
    for round in 1..=12_u64 {
        env.to_nats().cut().await;
        env.to_nats().restore().await.expect("listen again");
        let began = Instant::now();
        env.insert(1).await;
        env.wait_stored(round).await;
        slowest_relay = slowest_relay.max(began.elapsed());
        let stored = Instant::now();
        wait_processed(&env, round.cast_signed()).await;
        slowest = slowest.max(stored.elapsed());
    }
    // What was asked for before ends after five seconds. The relay tells how slow the machine is.
    eprintln!("to the stream {slowest_relay:?} at most, from there to the effect {slowest:?}");
    assert!(slowest < Duration::from_secs(4) + 3 * slowest_relay, "{slowest:?}");
}

mod long {
    use super::*;

    /// Whatever an outage looks like, it costs no attempt; afterwards everything is
    /// handled, in order.
    // proves: G-EFFECT-5
    #[tokio::test(flavor = "multi_thread")]
    async fn an_outage_of_the_service_costs_no_attempt() {
        let mut env = set_up().await;
        env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "1");
        env.set("TAILPOST_INBOX__TIMEOUT", "1s");
        let _relay = env.relay();
        let service = Service::start().await;
        let (mut network, inbox, admin) = run(&mut env, &service).await;
        let mut expected = 0;
        for kind in ["refused", "silent", "503", "404"] {
            match kind {
                "refused" => network.cut().await,
                "silent" => network.blackhole(Direction::Both),
                status => service.answer(status.parse().expect("a status")),
            }
            env.insert(30).await;
            expected += 30;
            let paused = "\"state\":\"paused\",\"breaker\":\"open\"";
            wait_readyz(&admin, &["HTTP/1.1 503", paused]).await;
            if kind == "refused" {
                let text =
                    wait_status(&env, |it| it["breaker"] == "open" && it["is_valid"] == true);
                let text = text.await;
                assert!(text.contains("has the role until 2"), "{text}");
                assert!(text.contains(": the handler is away: "), "{text}");
            }
            let metrics = get(admin.addr(), "/metrics").await.expect("an answer");
            assert!(metrics.contains(
                "tailpost_inbox_breaker_opened_total{env=\"default\",consumer=\"billing\"}"
            ));
            assert_eq!(processed(&env).await, expected - 30, "{kind}");
            service.answer(204);
            network.cut().await;
            network.restore().await.expect("listen again");
            wait_processed(&env, expected).await;
            wait_readyz(&admin, &["HTTP/1.1 200", "\"breaker\":\"closed\""]).await;
            assert_uncounted(&env).await;
        }
        wait_status(&env, |it| it["breaker"] == "closed" && it["state"] == "active").await;
        inbox.sigterm();
        assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());
        let text = wait_status(&env, |it| it["is_valid"] == false).await;
        assert!(text.contains("gave the role up"), "{text}");
        let calls = service.calls();
        for aggregate in 0..10 {
            let aggregate = format!("o-{aggregate}");
            let mut order = Vec::new();
            for call in calls.iter().filter(|it| it.header("aggregate-id") == aggregate) {
                let seq: u64 = call.header("tailpost-stream-seq").parse().expect("a number");
                order.push(seq);
            }
            assert!(order.is_sorted(), "{aggregate}: {order:?}");
        }
    }
}
