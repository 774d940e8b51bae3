//! What events without a row cannot do is refused, or said.

use lab::Port;
use support::{DEADLINE, TestEnv, until};
use tokio_postgres::IsolationLevel;
use uuid::Uuid;

use super::{emit, env, set, wait_published};

async fn refusal(env: &TestEnv, sql: &str) -> String {
    let error = env.client().await.batch_execute(sql).await.expect_err(sql);
    let error = error.as_db_error().expect("the server refuses").clone();
    format!("{} {}", error.message(), error.hint().unwrap_or_default())
}

/// The function runs with its owner's rights: what others make in its schema is not called.
#[tokio::test(flavor = "multi_thread")]
async fn functions_of_others_are_not_called_with_the_owners_rights() {
    let env = env(&[]).await;
    let others = [
        "convert_to(text, text) RETURNS bytea",
        "jsonb_build_object(text, uuid) RETURNS jsonb",
        "nextval(text) RETURNS bigint",
        "pg_logical_emit_message(boolean, text, text) RETURNS pg_lsn",
    ];
    for of in others {
        let body = "LANGUAGE plpgsql AS 'BEGIN RAISE ''called''; END'";
        env.execute(&format!("CREATE FUNCTION public.{of} {body}")).await;
    }
    let _relay = env.relay();
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    wait_published(&env, 1).await;
}

/// Where such events would be lost, nobody can write them.
// proves: G-OUT-3
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_nobody_would_publish_is_refused_when_it_is_written() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let id = Uuid::now_v7();
    let says = "no relay takes events that have no row";
    assert!(refusal(&env, &emit(true, id, "'{}'")).await.contains(says));
    // From the setting on, also before there is a relay.
    set(&mut env, &[]);
    env.setup().await;
    env.execute(&emit(true, id, "'{}'")).await;
    let relay = env.relay();
    wait_published(&env, 1).await;
    // A role that may do nothing else.
    env.execute("CREATE ROLE app").await;
    let other = Uuid::now_v7();
    env.execute(&format!("SET ROLE app; {}", emit(true, other, "'{}'"))).await;
    wait_published(&env, 2).await;
    let null = "SELECT outbox_emit_wal('order', NULL, 'Placed', '{}')";
    assert!(refusal(&env, null).await.contains("must not be null"));
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());

    // What was accepted is published before the setting is left.
    let last = Uuid::now_v7();
    env.execute(&emit(true, last, "'{}'")).await;
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "false");
    let (_, said) = env.ends_with(4, &["relay", "--once"]).await;
    assert!(said.contains("not published") && said.contains("relay.wal_messages = true"), "{said}");
    set(&mut env, &[]);
    env.ends_with(0, &["relay", "--once"]).await;
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "false");
    let relay = env.relay();
    relay.wait_active().await;
    assert!(refusal(&env, &emit(true, id, "'{}'")).await.contains(says));
    // What is forged from then on is passed over, which is said, and has its place all the same.
    relay.announce("the log has messages with the outbox's prefix");
    let row = Uuid::now_v7();
    env.execute(&format!(
        "BEGIN; SELECT pg_logical_emit_message(true, 'tailpost:public.outbox_events', 'x');
         {} COMMIT",
        emit(false, row, "'{}'")
    ))
    .await;
    wait_published(&env, 4).await;
    relay.wait_log("the log has messages with the outbox's prefix").await;
    let stored = env.stored().await;
    assert_eq!(stored.iter().map(|it| it.id).collect::<Vec<_>>(), [id, other, last, row]);
    assert!(stored[3].header("Tailpost-Position").expect("a position").ends_with("/1"));
}

// proves: G-OUT-3
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_would_lose_events_without_a_row_are_refused() {
    for (settings, says) in [
        (&[("TAILPOST_RELAY__MODE", "poll")][..], "relay.mode = \"poll\", which reads the table"),
        (&[("TAILPOST_RELAY__SHARDS", "2")], "take relay.shards = 1"),
    ] {
        let mut env = TestEnv::new().await;
        set(&mut env, settings);
        for command in ["setup", "relay"] {
            let (_, said) = env.ends_with(78, &[command]).await;
            let names = said.contains("relay.wal_messages");
            assert!(names && said.contains(says), "{said}");
        }
    }
}

/// The slot holds what nothing else has.
// proves: G-OUT-3
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_holds_events_without_a_row_is_not_dropped() {
    let env = env(&[]).await;
    let relay = env.relay();
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    wait_published(&env, 1).await;
    env.ends_with(4, &["slot", "drop"]).await; // a relay reads it
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    wait_published(&env, 2).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    let unread = Uuid::now_v7();
    env.execute(&format!("BEGIN; {} COMMIT", emit(true, unread, "'{}'"))).await;
    let (_, said) = env.ends_with(4, &["slot", "drop"]).await;
    assert!(said.contains("that are not published") && said.contains("relay --once"), "{said}");
    // An open transaction may commit one.
    let mut client = env.client().await;
    let open = client.transaction().await.expect("begin");
    let late = Uuid::now_v7();
    open.batch_execute(&emit(true, late, "'{}'")).await.expect("emit");
    let (_, said) = env.ends_with(4, &["slot", "drop"]).await;
    assert!(said.contains("transactions are open"), "{said}");
    open.commit().await.expect("commit");
    // So may one that sees the table as it was, and has written nothing yet.
    let old = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let old = old.start().await.expect("begin");
    old.execute("SELECT FROM pg_class", &[]).await.expect("take a snapshot");
    let (_, said) = env.ends_with(4, &["slot", "drop"]).await;
    assert!(said.contains("transactions are open"), "{said}");
    old.rollback().await.expect("end");
    // What an interrupted look leaves behind is no look.
    env.execute("UPDATE tailpost_state SET wal_prefix = NULL").await;
    let (_, said) = env.ends_with(4, &["slot", "drop"]).await;
    assert!(said.contains("that are not published"), "{said}");
    // It goes on as before.
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.stored_count().await, 5);
    env.ends_with(0, &["slot", "drop"]).await;
    let says = "no relay takes events that have no row";
    assert!(refusal(&env, &emit(true, late, "'{}'")).await.contains(says));

    // Lost on purpose, or not: it is said.
    env.setup().await;
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    env.ends_with(0, &["slot", "drop", "--force"]).await;
    assert!(refusal(&env, &emit(true, late, "'{}'")).await.contains(says), "nothing holds it");
    let relay = env.relay();
    relay.announce("may be lost with the slot");
    relay.wait_active().await;
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    wait_published(&env, 6).await;
    assert!(relay.log().contains("may be lost with the slot"), "{}", relay.log());
}

/// A relay that is to take none any more names the command that loses what it has not read.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_relay_says_about_events_that_it_is_to_lose_is_run() {
    let mut env = env(&[]).await;
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "false");
    let (_, said) = env.ends_with(4, &["relay", "--once"]).await;
    let (_, command) = said.split_once("lose them: `tailpost ").expect(&said);
    let args: Vec<&str> = command.split('`').next().expect("a command").split(' ').collect();
    env.ends_with(0, &args).await;
    env.ends_with(0, &["setup"]).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.stored_count().await, 0, "lost on purpose");
}

/// No row tells, so the relay does.
// proves: G-OUT-3
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_an_event_without_a_row_is_answered_by_the_relay() {
    let mut env = TestEnv::new().await;
    let admin = Port::reserve().expect("a free port");
    set(&mut env, &[("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string())]);
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    let [before, later] = [Uuid::now_v7(), Uuid::now_v7()];
    let waiting = env.spawn(&["wait", &later.to_string(), "--timeout", "5m"]);
    let looks = "SELECT count(*) > 0 FROM pg_stat_activity
                 WHERE application_name = 'tailpost wait' AND query LIKE '%outbox_status%'";
    until(DEADLINE, "the table is asked", async || env.query::<bool>(looks).await).await;
    env.execute(&(emit(true, before, "'{}'") + &emit(true, later, "'{}'"))).await;
    assert!(waiting.wait_exit(DEADLINE).await.success(), "{}", waiting.log());
    assert_eq!(waiting.stdout(), "published in OUTBOX as 2\n");
    let (told, _) = env.ends_with(0, &["wait", &before.to_string(), "--timeout", "5m"]).await;
    assert_eq!(told, "published in OUTBOX as 1\n");
    let (told, _) = env.ends_with(0, &["wait", "--all", "--timeout", "5m"]).await;
    assert_eq!(told, "everything is published\n");
    // Without a relay the log is known not to be read to its end.
    env.nats.pause().expect("pause NATS");
    env.execute(&emit(true, Uuid::now_v7(), "'{}'")).await;
    let (_, said) = env.ends_with(6, &["wait", "--all", "--timeout", "1s"]).await;
    assert!(said.contains("1 events are not published"), "{said}");
    env.nats.resume().expect("resume NATS");
    env.ends_with(0, &["wait", "--all", "--timeout", "5m"]).await;
    let (_, said) = env.ends_with(3, &["explain", &before.to_string()]).await;
    assert!(said.contains("outbox_emit_wal"), "{said}");
    drop(admin);
}
