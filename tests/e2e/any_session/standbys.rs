//! Standbys that are to have each commit before it ends, or before a logical slot brings it (PostgreSQL
//! 17 and later).

use lab::{Port, PostgresOptions};
use support::{DEADLINE, TestEnv, TestEnvOptions, get, until};

use crate::inbox::http::{set_up, wait_processed};
use crate::inbox::service::{Service, emit};

/// The setting names a slot that is not there. One session waits, and everybody who asks is told.
// proves: G-SEEN-3
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_away_and_holds_events_back_is_named() {
    let postgres = PostgresOptions { version: Some(18), ..PostgresOptions::default() };
    let options = TestEnvOptions { postgres, ..TestEnvOptions::default() };
    let mut env = TestEnv::with(options).await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    env.execute("ALTER SYSTEM SET synchronized_standby_slots = 'replica_2'").await;
    env.postgres.reload().await.expect("reload");
    let began = "SELECT backend_start::text FROM pg_stat_activity JOIN pg_replication_slots
                 ON pid = active_pid WHERE slot_name = 'tailpost'";
    let reader: String = env.query(began).await;
    let ids = env.insert(10).await;

    let ready = async || get(admin.addr(), "/readyz").await.unwrap_or_default();
    until(DEADLINE, "the relay is not ready", async || {
        let told = ready().await;
        told.contains("HTTP/1.1 503") && told.contains("synchronized_standby_slots")
    })
    .await;
    let told = get(admin.addr(), "/api/v1/status").await.expect("an answer");
    assert!(told.contains("replica_2 (no such slot)"), "{told}");
    // Longer than a silent server is believed to live.
    let held = "SELECT coalesce(max(clock_timestamp() - occurred_at) > '17 s', false)
                FROM outbox_events";
    until(DEADLINE, "events are held back for long", async || env.query(held).await).await;
    assert_eq!(env.query::<String>(began).await, reader, "one session waits\n{}", relay.log());
    assert!(ready().await.contains("HTTP/1.1 503"));
    let told = relay.log().lines().filter(|it| it.contains("holds events back")).count();
    assert_eq!(told, 1, "{}", relay.log());
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains("holds events back") && status.contains("replica_2"), "{status}");
    let (found, _) = env.ends_with(1, &["doctor"]).await;
    assert!(found.contains("replication-standby-slots"), "{found}");
    let mut remedies = found.lines().filter_map(|it| it.trim().strip_prefix("-> psql> "));
    let remedy = remedies.find(|it| it.contains("synchronized_standby_slots"));
    env.execute(remedy.expect("a remedy")).await;
    env.postgres.reload().await.expect("reload");

    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    until(DEADLINE, "the relay is ready", async || ready().await.contains("HTTP/1.1 200")).await;
    env.ends_with(0, &["doctor"]).await;
}

/// No commit ends. The inbox says for what they wait, not only that nothing answers.
// proves: G-SEEN-2
#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_standby_that_is_away_is_named() {
    let mut env = set_up().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
    let _relay = env.relay();
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    emit(&env, "a", "{}").await;
    wait_processed(&env, 1).await;
    env.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    env.postgres.reload().await.expect("reload");

    let ready = async || get(admin.addr(), "/readyz").await.unwrap_or_default();
    until(DEADLINE, "the inbox is not ready", async || {
        let told = ready().await;
        told.contains("HTTP/1.1 503") && told.contains("commits wait for a synchronous standby")
    })
    .await;
    let named = inbox.log().lines().filter(|it| it.contains("synchronous standby")).count();
    assert_eq!(named, 1, "{}", inbox.log());
    let (found, _) = env.ends_with(1, &["doctor", "--only", "replication-commits"]).await;
    assert!(found.contains("synchronous_standby_names = nobody"), "{found}");
    let remedy = found.lines().find_map(|it| it.trim().strip_prefix("-> psql> "));
    env.execute(remedy.expect("a remedy")).await;
    env.postgres.reload().await.expect("reload");

    emit(&env, "a", "{}").await;
    wait_processed(&env, 2).await;
    until(DEADLINE, "the inbox is ready", async || ready().await.contains("HTTP/1.1 200")).await;
    env.ends_with(0, &["doctor", "--only", "replication-commits"]).await;
}
