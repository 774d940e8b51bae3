//! Set-up makes what is missing, changes nothing that is there, and says what is wrong with it.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::{
    Config, DiscardPolicy, PersistenceMode, RetentionPolicy, Source, StorageType,
};
use support::{DEADLINE, Relay, TestEnv, until};

use crate::doctor::nats_commands;

// proves: G-SETUP-1
#[tokio::test(flavor = "multi_thread")]
async fn setup_can_run_again_also_beside_a_relay() {
    let env = TestEnv::new().await;
    let (first, _) = env.ends_with(0, &["setup"]).await;
    let made = |text: &str| text.lines().filter(|it| it.starts_with("created")).count();
    let migrations = first.lines().filter(|it| it.contains("  migration ")).count();
    assert_eq!(made(&first), migrations + 3, "publication, stream, slot:\n{first}");
    let config = env.stream().await.cached_info().config.clone();
    let (second, _) = env.ends_with(0, &["setup"]).await;
    assert_eq!(made(&second), 0, "{second}");

    let relay = env.relay();
    relay.wait_active().await;
    let ids = env.insert(10).await;
    let (third, _) = env.ends_with(0, &["setup"]).await;
    assert_eq!(made(&third), 0, "{third}");
    env.wait_stored(10).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    assert_eq!(env.stream().await.cached_info().config, config);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_plan_needs_no_server_and_runs_on_an_empty_database() {
    let mut env = TestEnv::new().await;
    env.postgres.create_database("empty").await.expect("create a database");
    let nowhere = [("TAILPOST_POSTGRES__TABLE", "shop.events"), ("TAILPOST_LOG__FORMAT", "text")];
    let nowhere = nowhere.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let process = Relay::spawn(&["setup", "--print"], &nowhere);
    assert!(process.wait_exit(DEADLINE).await.success(), "{}", process.log());
    let plan = process.stdout();
    assert!(plan.contains("CREATE TABLE") && plan.contains("\"name\": \"OUTBOX\""), "{plan}");

    psql(&env, "empty", &plan).await;
    let (migrations, _) = plan.split_once("CREATE PUBLICATION").expect("a publication");
    psql(&env, "empty", migrations).await; // again, without harm
    env.set("DATABASE_URL", &env.postgres.url("empty"));
    env.set("TAILPOST_POSTGRES__TABLE", "shop.events");
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("exists   migration 0001_outbox"), "{told}");
    assert!(told.contains("exists   publication tailpost"), "{told}");
}

/// With `psql` where there is one: packages of the server alone lack it.
async fn psql(env: &TestEnv, database: &str, script: &str) {
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("plan.sql");
    std::fs::write(&file, script).expect("write the script");
    let beside_the_server = env.postgres.bin_dir().join("psql");
    let on_path = PathBuf::from("psql");
    let psql = if beside_the_server.exists() { beside_the_server } else { on_path };
    let output = Command::new(psql)
        .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file"])
        .arg(&file)
        .arg(env.postgres.url(database))
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let client = env.postgres.client(database).await.expect("connect to PostgreSQL");
            client.batch_execute(script).await.expect("run the script");
        }
        Err(error) => panic!("run psql: {error}"),
    }
}

fn fit() -> Config {
    Config { name: "OUTBOX".into(), subjects: vec!["outbox.>".into()], ..Config::default() }
}

/// Streams that would lose events: how each is made, what is said, and what mends it.
fn unfit() -> Vec<(Config, &'static str, &'static str)> {
    let origin = Source { name: "ORIGIN".into(), ..Source::default() };
    let mirror = Config { mirror: Some(origin.clone()), subjects: vec![], ..fit() };
    let subjects = |subject: &str| Config { subjects: vec![subject.into()], ..fit() };
    vec![
        (
            Config { storage: StorageType::Memory, ..fit() },
            "memory storage",
            "set stream.name to a new stream",
        ),
        (Config { no_ack: true, ..fit() }, "no_ack", "nats stream edit OUTBOX --ack"),
        (Config { sealed: true, ..fit() }, "sealed", "nats stream rm OUTBOX"),
        (
            Config { persist_mode: Some(PersistenceMode::Async), ..fit() },
            "persist_mode async",
            "set stream.name to a new stream",
        ),
        (
            Config { retention: RetentionPolicy::WorkQueue, ..fit() },
            "retention by limits",
            "relay.mode = \"keyed\"",
        ),
        (mirror, "mirror", "set stream.name to a new stream"),
        (subjects("outbox.order.*"), "subjects", "--subjects 'outbox.*.*'"),
        (subjects("events.>"), "subjects", "--subjects 'outbox.*.*'"),
        (Config { sources: Some(vec![origin]), ..fit() }, "sources", "relay.mode = \"keyed\""),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_would_lose_events_is_refused_with_what_mends_it() {
    let env = TestEnv::new().await;
    env.setup().await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let origin = Config { name: "ORIGIN".into(), subjects: vec!["x".into()], ..Config::default() };
    jetstream.create_stream(origin).await.expect("create a stream");
    for (config, reason, fix) in unfit() {
        jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
        let created = Config { sealed: false, ..config.clone() };
        jetstream.create_stream(created).await.expect("create a stream");
        if config.sealed {
            jetstream.update_stream(&config).await.expect("seal the stream");
        }
        let made = env.stream().await.cached_info().config.clone();
        for command in ["setup", "relay"] {
            let (_, log) = env.ends_with(4, &[command]).await;
            assert!(log.contains("stream \"OUTBOX\" cannot be used"), "{log}");
            assert!(log.contains(reason) && log.contains(fix), "{reason}, {fix}:\n{log}");
        }
        assert_eq!(env.stream().await.cached_info().config, made, "changed by a check");
    }
}

/// What only weakens is said, with what mends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_forgets_at_its_limits_is_warned_of() {
    let env = TestEnv::new().await;
    env.setup().await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let mut config = env.stream().await.cached_info().config.clone();
    (config.max_messages, config.discard) = (1_000, DiscardPolicy::Old);
    config.duplicate_window = Duration::from_secs(1);
    jetstream.update_stream(&config).await.expect("limit the stream");
    let relay = env.relay();
    relay.wait_active().await;
    let log = relay.log();
    for (weakness, fix) in [
        ("at its limits it discards old events", "--discard new"),
        ("its duplicate window of 1s is short", "--dupe-window"),
        ("a single server keeps the stream", "--replicas 3"),
    ] {
        assert!(log.contains(weakness) && log.contains(fix), "{weakness}, {fix}:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_publishes_updates_is_refused_with_what_mends_it() {
    let env = TestEnv::new().await;
    env.setup().await;
    for (change, fix) in [
        ("SET (publish = 'insert, update')", "SET (publish = 'insert')"),
        ("SET (publish_via_partition_root = false)", "SET (publish_via_partition_root = true)"),
        ("DROP TABLE outbox_events", "ADD TABLE \"public\".\"outbox_events\""),
    ] {
        env.execute(&format!("ALTER PUBLICATION tailpost {change}")).await;
        let (_, log) = env.ends_with(4, &["setup"]).await;
        let fix = format!("ALTER PUBLICATION tailpost {fix}");
        assert!(log.contains(&fix), "{fix}:\n{log}");
        env.execute(&fix).await;
        env.ends_with(0, &["setup"]).await;
    }
}

/// Rows that were left out of the log are not taken for published.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_the_publication_left_out_come_by_the_scanner_once_it_is_mended() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let mut relay = env.relay();
    let mut expected = env.insert(10).await;
    env.wait_marked().await;
    let lists;
    let mut changes = vec![("DROP TABLE outbox_events", "ADD TABLE outbox_events")];
    if env.postgres.version() >= 15 {
        let filter = "SET TABLE outbox_events WHERE (aggregate_type <> 'order')";
        changes.push((filter, "SET TABLE outbox_events"));
        let columns = "id, aggregate_type, aggregate_id, event_type, payload, occurred_at";
        lists = format!("SET TABLE outbox_events ({columns})");
        changes.push((&lists, "SET TABLE outbox_events"));
    }
    for (change, fix) in changes {
        relay.announce("error: publication");
        env.execute(&format!("ALTER PUBLICATION tailpost {change}")).await;
        expected.extend(env.insert_each(10).await);
        assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
        env.execute(&format!("ALTER PUBLICATION tailpost {fix}")).await;
        expected.extend(env.insert_each(10).await);
        relay = env.relay();
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
    }
}

/// DESIGN 11
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_before_setup_asks_for_it_and_a_misspelt_setting_is_refused() {
    let mut env = TestEnv::new().await;
    let (_, log) = env.ends_with(3, &["relay"]).await;
    assert!(log.contains("tailpost setup"), "{log}");

    env.set("TAILPOST_RELAY__WINDOW_EVENT", "5");
    let (_, log) = env.ends_with(78, &["relay"]).await;
    assert!(log.contains("WINDOW_EVENT") || log.contains("window_event"), "{log}");
    assert!(log.to_lowercase().contains("window_events"), "no suggestion: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_of_another_name_works_from_end_to_end() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_POSTGRES__TABLE", r#""Shop"."order events""#);
    env.set("TAILPOST_POSTGRES__SLOT", "shop");
    env.set("TAILPOST_POSTGRES__PUBLICATION", "shop");
    env.set("TAILPOST_RELAY__SUBJECT", "outbox.{aggregate_id}");
    env.setup().await;
    env.setup().await;
    let relay = env.relay();
    let emit = |id: &str| format!("SELECT \"Shop\".outbox_emit('order', '{id}', 'Placed', '{{}}')");
    for id in ["a", "b"] {
        env.execute(&emit(id)).await;
    }
    env.execute(&emit(&"x".repeat(300))).await;
    env.wait_stored(2).await;
    relay.kill9().await;
    drop(relay);
    env.drop_slot("shop").await; // the scanner's way
    env.execute(&emit("c")).await;
    let _relay = env.relay();
    env.wait_stored(3).await;
    let unmarked = "SELECT count(*) FROM \"Shop\".\"order events\" WHERE published_at IS NULL";
    support::until(DEADLINE, "rows are marked", async || env.query::<i64>(unmarked).await == 0)
        .await;
    let subjects: Vec<String> = env.stored().await.into_iter().map(|it| it.subject).collect();
    assert_eq!(subjects, ["outbox.a", "outbox.b", "outbox.c"]);
    let dead = "SELECT count(*) FROM \"Shop\".outbox_dead_letter";
    assert_eq!(env.query::<i64>(dead).await, 1);
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("order events"), "{told}");
}

/// Where all transactions of the time are rolled back that a slot waits for, PostgreSQL has a snapshot
/// that ends before it begins. It prints that, and does not read it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_made_although_all_that_it_waited_for_was_rolled_back() {
    let env = TestEnv::new().await;
    env.setup().await;
    let old = env.insert(3).await;
    env.ends_with(0, &["slot", "drop"]).await;
    let begin = async || {
        let client = env.client().await;
        let event = "BEGIN; SELECT outbox_emit('order', 'o-1', 'OrderPlaced', '{}')";
        client.batch_execute(event).await.expect("begin");
        client
    };
    let waited_for = "SELECT coalesce(max(l.transactionid::text::bigint), 0) FROM pg_locks l
        JOIN pg_stat_activity USING (pid)
        WHERE l.locktype = 'transactionid' AND NOT granted AND backend_type = 'walsender'";
    let waits_beyond = async |before: i64| {
        let beyond = async || env.query::<i64>(waited_for).await > before;
        until(DEADLINE, "the slot waits for a transaction", beyond).await;
        env.query::<i64>(waited_for).await
    };
    let first = begin().await;
    let setup = env.spawn(&["setup"]);
    let before = waits_beyond(0).await;
    let second = begin().await;
    first.batch_execute("ROLLBACK").await.expect("roll back");
    waits_beyond(before).await;
    let third = begin().await;
    second.batch_execute("ROLLBACK").await.expect("roll back");
    let status = setup.wait_exit(DEADLINE).await;
    assert!(status.success(), "{}", setup.log());
    third.batch_execute("COMMIT").await.expect("commit");
    let relay = env.relay();
    env.wait_stored(4).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    let stored = env.stored_ids().await;
    assert_eq!((stored.len(), &stored[..3]), (4, &old[..]));
}

/// The type of a column does not change while `outbox_emit` is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_up_makes_outbox_emit_again_for_a_payload_of_another_type() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.execute("DROP FUNCTION outbox_emit; ALTER TABLE outbox_events ALTER payload TYPE text")
        .await;
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("function outbox_emit"), "{told}");
    env.execute("SELECT outbox_emit('order', 'o-1', 'OrderPlaced', '{\"n\": 1}')").await;
    assert_eq!(env.query::<String>("SELECT payload FROM outbox_events").await, r#"{"n": 1}"#);
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(!told.contains("function outbox_emit"), "{told}");
}

mod long {
    use super::*;

    /// As the init containers of several pods do it: with and without the outbox.
    // proves: G-SETUP-1
    #[tokio::test(flavor = "multi_thread")]
    async fn any_number_of_set_ups_may_begin_at_once() {
        const AT_ONCE: usize = 10;
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_POSTGRES__TABLE", "shop.outbox_events");
        let folder = tempfile::tempdir().expect("create a folder");
        let file = folder.path().join("tailpost.toml");
        let consumers =
            ["billing", "mail"].map(|it| format!("[inbox.{it}]\nhandler = 'http://[::1]'\n"));
        std::fs::write(&file, consumers.concat()).expect("write the configuration");
        let file = file.to_str().expect("UTF-8");
        let all: Vec<Relay> =
            (0..AT_ONCE).map(|_| env.spawn(&["setup", "--config", file])).collect();
        for one in &all {
            let status = one.wait_exit(DEADLINE).await;
            assert!(status.success(), "{status}:\n{}{}", one.stdout(), one.log());
        }
        // Nothing of the outbox was made twice.
        let lines = |text: &str, begin: &str| {
            let ours = |it: &&str| {
                it.starts_with(begin) && !it.contains("inbox") && !it.contains("consumer")
            };
            text.lines().filter(ours).count()
        };
        let (again, _) = env.ends_with(0, &["setup", "--config", file]).await;
        let made: usize = all.iter().map(|it| lines(&it.stdout(), "created")).sum();
        assert_eq!(made, lines(&again, "exists"), "{again}");

        env.execute("DROP TABLE shop.inbox_messages, shop.inbox_dead_letter CASCADE").await;
        let inboxes: Vec<Relay> =
            (0..AT_ONCE).map(|_| env.spawn(&["inbox", "setup", "--config", file])).collect();
        for one in &inboxes {
            let status = one.wait_exit(DEADLINE).await;
            assert!(status.success(), "{status}:\n{}{}", one.stdout(), one.log());
        }
    }
}

/// Whether the own stream is there or not. What is said is done, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_subjects_of_the_stream_is_named_with_what_ends_it() {
    let env = TestEnv::new().await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let stream = |name: &str, subjects: &[&str]| Config {
        name: name.into(),
        subjects: subjects.iter().map(|&it| it.into()).collect(),
        ..Config::default()
    };
    let one = stream("ONE", &["outbox.order.*", "other.x"]);
    jetstream.create_stream(one).await.expect("create a stream");
    let two = stream("TWO", &["outbox.bill.Paid", "other.y"]);
    jetstream.create_stream(two).await.expect("create a stream");
    let (_, told) = env.ends_with(4, &["setup"]).await;
    assert!(told.contains("stream ONE takes outbox.order.*"), "{told}");
    assert!(told.contains("stream TWO takes outbox.bill.Paid"), "{told}");
    let own = stream("OUTBOX", &["outbox.customer.*"]);
    jetstream.create_stream(own).await.expect("create a stream");
    let (_, again) = env.ends_with(4, &["setup"]).await;
    assert!(again.contains("stream ONE takes outbox.order.*"), "{again}");
    for other in ["ONE", "TWO"] {
        let commands = again.split('`').filter(|it| it.starts_with("nats stream edit"));
        let command = commands.into_iter().find(|it| it.contains(other)).expect("a command");
        nats_commands::run(&env, command).await;
    }
    let (_, told) = env.ends_with(4, &["setup"]).await;
    assert!(told.contains("OUTBOX") && !told.contains("ONE"), "{told}");
    jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    env.setup().await;
    let _relay = env.relay();
    let ids = env.insert(5).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}
