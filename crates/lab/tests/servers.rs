//! The servers start, stop, die, pause and come back, and leave nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests fail loudly")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream;
use lab::{Nats, NatsCluster, NatsOptions, Postgres, PostgresOptions};

async fn postgres() -> Postgres {
    Postgres::start(PostgresOptions::default()).await.unwrap()
}

async fn nats() -> Nats {
    Nats::start(NatsOptions::default()).await.unwrap()
}

async fn query(postgres: &Postgres, sql: &str) -> String {
    postgres.client("postgres").await.unwrap().query_one(sql, &[]).await.unwrap().get(0)
}

fn runs(pid: u32) -> bool {
    let stat = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    let stat = String::from_utf8(stat.stdout).unwrap();
    !stat.trim().is_empty() && !stat.starts_with('Z')
}

#[tokio::test]
async fn postgres_starts_ready_for_logical_replication_and_leaves_nothing() {
    let postgres = postgres().await;
    assert_eq!(query(&postgres, "SHOW wal_level").await, "logical");
    postgres.create_database("shop").await.unwrap();
    let client = postgres.client("shop").await.unwrap();
    let slot = "SELECT slot_name::text FROM pg_create_logical_replication_slot('s', 'pgoutput')";
    assert_eq!(client.query_one(slot, &[]).await.unwrap().get::<_, String>(0), "s");

    let (pid, folder) = (postgres.pid().unwrap(), postgres.socket_dir().to_path_buf());
    assert!(runs(pid) && folder.exists());
    drop(postgres);
    assert!(!runs(pid), "the server is gone");
    assert!(!folder.exists(), "the folder is gone");
}

#[tokio::test]
async fn committed_rows_survive_a_kill_and_a_fast_stop() {
    let mut postgres = postgres().await;
    let (port, client) = (postgres.port(), postgres.client("postgres").await.unwrap());
    client.batch_execute("CREATE TABLE t (n INT); INSERT INTO t VALUES (1)").await.unwrap();
    let old = postgres.pid().unwrap();

    postgres.kill().await.unwrap();
    assert!(!runs(old));
    assert!(postgres.client("postgres").await.is_err(), "nobody answers");
    assert!(postgres.pid().is_err());

    postgres.start_again().await.unwrap();
    assert_eq!(postgres.port(), port);
    let client = postgres.client("postgres").await.unwrap();
    client.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
    let took = postgres.stop_fast().await.unwrap();
    assert!(took < Duration::from_secs(20), "{took:?}");

    postgres.start_again().await.unwrap();
    assert_eq!(query(&postgres, "SELECT sum(n)::text FROM t").await, "3");
}

#[tokio::test]
async fn a_paused_postgres_answers_nobody_until_resumed() {
    let postgres = postgres().await;
    let client = postgres.client("postgres").await.unwrap();
    postgres.pause().unwrap();
    let query = client.query_one("SELECT 1", &[]);
    tokio::pin!(query);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut query).await;
    assert!(early.is_err(), "a backend answered while paused");
    postgres.resume().unwrap();
    assert_eq!(query.await.unwrap().get::<_, i32>(0), 1);
}

#[tokio::test]
async fn a_paused_server_can_be_dropped() {
    let (postgres, nats) = (postgres().await, nats().await);
    let _idle = postgres.client("postgres").await.unwrap();
    let pids = [postgres.pid().unwrap(), nats.pid().unwrap()];
    postgres.pause().unwrap();
    nats.pause().unwrap();
    drop((postgres, nats));
    assert!(!pids.into_iter().any(runs));
}

#[tokio::test]
async fn settings_and_files_reach_postgres() {
    let options = PostgresOptions {
        settings: vec![("work_mem".into(), "5MB".into()), ("cluster_name".into(), "it's".into())],
        files: vec![("note.txt".into(), "hello".into())],
        own_identity: true,
        ..PostgresOptions::default()
    };
    let (postgres, other) = (Postgres::start(options).await.unwrap(), postgres().await);
    assert_eq!(query(&postgres, "SHOW work_mem").await, "5MB");
    assert_eq!(query(&postgres, "SHOW cluster_name").await, "it's");
    assert_eq!(query(&postgres, "SELECT pg_read_file('note.txt')").await, "hello");
    let identity = "SELECT system_identifier::text FROM pg_control_system()";
    assert_ne!(query(&postgres, identity).await, query(&other, identity).await);
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let options = PostgresOptions {
        settings: vec![("no_such_setting".into(), "1".into())],
        ..PostgresOptions::default()
    };
    let error = Postgres::start(options).await.err().expect("must fail");
    assert!(format!("{error:#}").contains("no_such_setting"), "{error:#}");

    let options = NatsOptions { config: vec!["no_such: {".into()], ..NatsOptions::default() };
    let error = Nats::start(options).await.err().expect("must fail");
    assert!(format!("{error:#}").contains("Parse error"), "{error:#}");
}

#[tokio::test]
async fn a_synchronous_standby_holds_commits_up_while_paused() {
    let primary = postgres().await;
    let standby = Postgres::start_standby_of(&primary, "standby_1", true).await.unwrap();
    let client = primary.client("postgres").await.unwrap();
    let state = "SELECT coalesce(max(sync_state), '') FROM pg_stat_replication
                 WHERE application_name = 'standby_1'";
    while client.query_one(state, &[]).await.unwrap().get::<_, String>(0) != "sync" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    standby.pause().unwrap();
    let commit = client.batch_execute("CREATE TABLE t (n INT)");
    tokio::pin!(commit);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut commit).await;
    assert!(early.is_err(), "the commit did not wait for the standby");
    standby.resume().unwrap();
    commit.await.unwrap();
    assert_eq!(query(&standby, "SELECT pg_is_in_recovery()::text").await, "true");
}

#[tokio::test]
async fn stored_messages_survive_a_kill_and_a_stop() {
    let mut nats = nats().await;
    let jetstream = nats.jetstream().await.unwrap();
    let config = stream::Config {
        name: "S".into(),
        subjects: vec!["s".into()],
        ..stream::Config::default()
    };
    jetstream.create_stream(config).await.unwrap();
    jetstream.publish("s", "one".into()).await.unwrap().await.unwrap();
    let (port, old) = (nats.port(), nats.pid().unwrap());

    nats.kill().await.unwrap();
    assert!(!runs(old));
    nats.start_again().await.unwrap();
    nats.stop().await.unwrap();
    nats.start_again().await.unwrap();
    assert_eq!(nats.port(), port);

    let stream = nats.jetstream().await.unwrap().get_stream("S").await.unwrap();
    assert_eq!(stream.get_raw_message(1).await.unwrap().payload, "one");
    let store = nats.store_dir();
    drop(nats);
    assert!(!store.exists());
}

#[tokio::test]
async fn a_paused_nats_answers_nobody_until_resumed() {
    let nats = nats().await;
    let client = nats.client().await.unwrap();
    nats.pause().unwrap();
    let answer = client.request("$JS.API.INFO", "".into());
    tokio::pin!(answer);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "answered while paused");
    nats.resume().unwrap();
    answer.await.unwrap();
}

#[tokio::test]
async fn nats_takes_the_limits_asked_for() {
    let options = NatsOptions {
        max_payload: Some(4096),
        jetstream: vec!["max_file_store: 10MB".into()],
        config: vec!["max_connections: 7".into()],
        ..NatsOptions::default()
    };
    let nats = Nats::start(options).await.unwrap();
    let client = nats.client().await.unwrap();
    assert_eq!(client.server_info().max_payload, 4096);
    let too_large =
        stream::Config { name: "S".into(), max_bytes: 20_000_000, ..stream::Config::default() };
    let error = nats.jetstream().await.unwrap().create_stream(too_large).await.err();
    assert!(error.expect("over the limit").to_string().contains("insufficient storage"));
}

/// Runs in two processes: the test starts itself again as the owner of servers, and kills that.
#[tokio::test]
async fn servers_and_folders_do_not_outlive_a_killed_owner() {
    const ROLE: &str = "TESTBED_TEST_OWNER";
    if std::env::var_os(ROLE).is_some() {
        return own_servers_forever().await;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "servers_and_folders_do_not_outlive_a_killed_owner", "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.filter_map(|it| it.strip_prefix("owned ").map(str::to_owned)).take(6);
    let told: Vec<String> = told.collect();
    let (pids, folders): (Vec<String>, Vec<String>) =
        told.into_iter().partition(|it| it.parse::<u32>().is_ok());
    let running = || pids.iter().any(|it| runs(it.parse().unwrap()));
    let left = || folders.iter().any(|it| Path::new(it).exists());
    assert!(running() && left());

    owner.kill().unwrap();
    owner.wait().unwrap();
    let killed = Instant::now();
    while running() || left() {
        assert!(killed.elapsed() < Duration::from_secs(20), "{pids:?} {folders:?} are left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One PostgreSQL with a connection, one paused, and a NATS.
async fn own_servers_forever() {
    let (busy, paused, nats) = (postgres().await, postgres().await, nats().await);
    let _connections = (busy.client("postgres").await, paused.client("postgres").await);
    paused.pause().unwrap();
    for postgres in [&busy, &paused] {
        println!("owned {}", postgres.pid().unwrap());
        println!("owned {}", postgres.socket_dir().display());
    }
    println!("owned {}\nowned {}", nats.pid().unwrap(), nats.store_dir().display());
    std::future::pending().await
}

mod long {
    use super::*;

    /// Three replicas go on while a minority is gone, and the minority is of no use by itself.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_cluster_outlives_an_isolated_leader_and_a_killed_one() {
        let mut cluster = NatsCluster::start(NatsOptions::default()).await.unwrap();
        let jetstream = cluster.jetstream().await.unwrap();
        let config = stream::Config {
            name: "S".into(),
            subjects: vec!["s".into()],
            num_replicas: 3,
            ..stream::Config::default()
        };
        jetstream.create_stream(config).await.unwrap();
        let first = cluster.leader("S").await.unwrap();

        cluster.isolate(first).await;
        let through_the_rest = async |cluster: &NatsCluster, gone: usize| {
            let rest = cluster.node((gone + 1) % 3).jetstream().await.unwrap();
            let started = Instant::now();
            loop {
                let sent = rest.publish("s", "x".into()).await.unwrap();
                if let Ok(ack) = sent.await {
                    return ack.sequence;
                }
                assert!(started.elapsed() < Duration::from_secs(30), "nobody takes over");
            }
        };
        let sequence = through_the_rest(&cluster, first).await;
        let alone = cluster.node(first).jetstream().await.unwrap();
        let sent = alone.publish("s", "x".into()).await.unwrap();
        let acked = tokio::time::timeout(Duration::from_secs(1), sent.into_future()).await;
        assert!(!matches!(acked, Ok(Ok(_))), "a minority stores nothing: {acked:?}");

        cluster.rejoin().await.unwrap();
        cluster.wait_current("S").await.unwrap();
        // Whoever leads then: the one that steps down may be elected again.
        cluster.step_down("S").await.unwrap();
        let second = cluster.leader("S").await.unwrap();
        cluster.node_mut(second).kill().await.unwrap();
        assert!(through_the_rest(&cluster, second).await > sequence);
        cluster.node_mut(second).start_again().await.unwrap();
        cluster.wait_current("S").await.unwrap();
    }
}
