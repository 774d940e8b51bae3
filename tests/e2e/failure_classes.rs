//! What fails is told apart: the broker's fault waits, an event's own fault is counted.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use lab::NatsOptions;
use support::{DEADLINE, TestEnv, TestEnvOptions, assert_promise, until};

/// Longer than a relay takes to park what it parks at once, shorter than ten attempts.
const RETRIED_FOR: Duration = Duration::from_secs(3);

/// Events against which an attempt was counted.
const TRIED: &str = "SELECT count(*) FROM outbox_events WHERE publish_attempts > 0";

async fn change_stream(env: &TestEnv, change: impl FnOnce(&mut Config)) {
    let mut config = env.stream().await.cached_info().config.clone();
    change(&mut config);
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(config).await.expect("change the stream");
}

async fn emit(env: &TestEnv, kind: &str, n: i32) {
    let sql = format!(
        "SELECT outbox_emit('{kind}', 'a-' || n % 3, 'Happened', to_jsonb(n))
         FROM generate_series(1, {n}) AS n"
    );
    env.execute(&sql).await;
}

async fn dead_letters(env: &TestEnv) -> i64 {
    env.query("SELECT count(*) FROM outbox_dead_letter").await
}

/// A stream that is full is nobody's fault. Nothing is counted or parked, the log is held,
/// and it goes on by itself.
// proves: G-DEAD-2
#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_holds_everything_and_consumes_no_attempt() {
    let env = TestEnv::new().await;
    env.setup().await;
    change_stream(&env, |it| (it.max_messages, it.discard) = (10, DiscardPolicy::New)).await;
    let relay = env.relay();
    let ids = env.insert(30).await;
    env.wait_stored(10).await;
    relay.wait_log("maximum messages exceeded").await;
    let (before, held) = (env.confirmed().await, env.wal_end().await);
    tokio::time::sleep(RETRIED_FOR).await;
    assert!(env.confirmed().await < held, "confirmed what is not stored: {before}");
    assert_eq!(dead_letters(&env).await, 0);
    assert_eq!(env.query::<i64>(TRIED).await, 0);

    change_stream(&env, |it| it.max_messages = -1).await;
    env.wait_stored(30).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

/// Nobody takes the events until there is a stream again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_deleted_under_a_relay_costs_no_event_that_it_had_not_acknowledged() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    env.insert(10).await;
    env.wait_marked().await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    let mut ids = env.insert(30).await;
    until(DEADLINE, "the stream is missed", async || {
        relay.log().matches("the stream does not answer").count() >= 2
    })
    .await;
    ids.extend(env.insert_each(5).await);
    tokio::time::sleep(RETRIED_FOR).await;
    let confirmed = env.confirmed().await;
    assert_eq!((env.unmarked().await, dead_letters(&env).await), (35, 0));
    assert_eq!(env.query::<i64>(TRIED).await, 0);

    env.setup().await;
    env.wait_stored(35).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, ids);
    assert_eq!(env.epochs().await, 1, "it goes on with its slot");
    // Where the first commit of what the stream lacked is in the log.
    let lacked =
        "SELECT (min(commit_lsn) - '0/0'::PG_LSN)::BIGINT FROM outbox_events WHERE seq > 10";
    let lacked = env.query::<i64>(lacked).await.cast_unsigned();
    assert!(confirmed <= lacked, "{confirmed} is beyond what the stream acknowledged: {lacked}");
}

/// While the breaker is open nothing is tried; the connection that comes back closes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_comes_back_is_tried_at_once_however_long_it_was_away() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__ACK_TIMEOUT", "300ms");
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    env.nats.kill().await.expect("kill the broker");
    let ids = env.insert(10).await;
    until(DEADLINE, "the breaker opens", async || {
        relay.log().matches("the stream does not answer").count() >= 2
    })
    .await;
    env.nats.start_again().await.expect("start the broker");
    let started = Instant::now();
    env.wait_stored(10).await;
    assert_promise(Duration::from_secs(4), started.elapsed());
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

/// No stream takes the subject. Attempts are written down, nothing overtakes it, and when
/// the stream takes it, it goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_the_stream_takes_in_time_costs_only_time() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    change_stream(&env, |it| it.subjects = vec!["outbox.order.*".into()]).await;
    emit(&env, "invoice", 2).await;
    emit(&env, "order", 5).await;
    let noted = "SELECT count(*) FROM outbox_status WHERE status = 'RETRYING'
                 AND publish_error LIKE '%does not take subject outbox.invoice.Happened%'
                 AND next_attempt_at IS NOT NULL AND publish_attempts > 1";
    until(DEADLINE, "attempts are noted", async || env.query::<i64>(noted).await == 1).await;
    assert_eq!(env.stored_count().await, 0, "overtaken");
    change_stream(&env, |it| it.subjects = vec!["outbox.>".into()]).await;
    env.wait_stored(7).await;
    env.wait_marked().await;
    let subjects: Vec<String> = env.stored().await.into_iter().map(|it| it.subject).collect();
    assert!(subjects[..2].iter().all(|it| it == "outbox.invoice.Happened"), "{subjects:?}");
    let left = "SELECT count(*) FROM outbox_events
                WHERE publish_error IS NOT NULL OR next_attempt_at IS NOT NULL";
    assert_eq!(env.query::<i64>(left).await, 0);
}

/// Attempts run out, and a subject holds the others up once, not event by event.
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_nobody_takes_holds_the_stream_up_once() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MAX_ATTEMPTS", "4");
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    change_stream(&env, |it| it.subjects = vec!["outbox.order.*".into()]).await;
    emit(&env, "invoice", 100).await;
    emit(&env, "order", 5).await;
    env.wait_stored(5).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(dead_letters(&env).await, 100);
    let attempts = "SELECT max(publish_attempts) FROM outbox_dead_letter";
    assert_eq!(env.query::<i32>(attempts).await, 4);
}

/// The broker does not answer a message that may not be published, and says so elsewhere.
// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_may_not_be_published_is_parked_and_the_others_go() {
    let users = "authorization { users: [
        { user: relay, password: relay, permissions: { publish: { deny: \"outbox.secret.>\" } } }
        { user: test } ] }";
    let config = vec![users.into(), "no_auth_user: test".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    env.set("NATS_URL", &env.nats.url().replace("://", "://relay:relay@"));
    env.set("TAILPOST_RELAY__MAX_ATTEMPTS", "4");
    let _relay = env.relay();
    emit(&env, "order", 5).await;
    emit(&env, "secret", 2).await;
    emit(&env, "order", 5).await;
    env.wait_stored(10).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(dead_letters(&env).await, 2);
    let reason: String = env.query("SELECT min(reason) FROM outbox_dead_letter").await;
    assert!(reason.contains("may not publish on outbox.secret.Happened"), "{reason}");
}

mod long {
    use super::*;

    /// Deleted amid many messages, some of which it had acknowledged.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_deleted_under_load_costs_only_what_it_held() {
        let env = TestEnv::new().await;
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        let jetstream = env.nats.jetstream().await.expect("connect to NATS");
        let delete = async {
            env.wait_stored(100).await;
            jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
        };
        let (ids, ()) = tokio::join!(env.insert_each(2_000), delete);
        relay.wait_log("the stream does not answer").await;
        env.setup().await;
        env.wait_marked().await;
        let stored = env.stored_ids().await;
        let held = ids.len() - stored.len();
        assert_eq!(stored, ids[held..]);
        // Rows in their order: what the deleted stream acknowledged, and then the other stream. What the log
        // brings again into that keeps the mark of the former one.
        let marks: Vec<i64> =
            env.query("SELECT array_agg(stream_seq ORDER BY seq) FROM outbox_events").await;
        assert_eq!(marks.len(), ids.len());
        for (at, mark) in
            (1..).zip(marks.iter().map(|it| usize::try_from(*it).expect("a sequence")))
        {
            assert!(
                mark == at || mark + held == at,
                "row {at} says {mark}, of which {held} are lost"
            );
        }
    }
}
