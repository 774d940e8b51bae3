//! Faults of whole servers: each needs one of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lab::{NatsOptions, Postgres};
use serde_json::Value;
use support::{DEADLINE, TestEnv, TestEnvOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::clinic::Clinic;

/// The whole run, whatever the servers do.
const RUN_MAX: Duration = Duration::from_secs(30);

fn check<'a>(checks: &'a [Value], id: &str) -> &'a Value {
    checks.iter().find(|it| it["id"] == id).unwrap_or_else(|| panic!("no {id}: {checks:#?}"))
}

fn remedies(check: &Value) -> Vec<&str> {
    let remedies = check["remedies"].as_array().expect("remedies");
    remedies.iter().filter_map(|it| it["text"].as_str()).collect()
}

fn nats(config: &[&str]) -> TestEnvOptions {
    let config = config.iter().map(|it| (*it).to_owned()).collect();
    let nats = NatsOptions { config, ..NatsOptions::default() };
    TestEnvOptions { nats, ..TestEnvOptions::default() }
}

/// Every check is answered although nobody answers, and says so.
// proves: G-DOCTOR-2
#[tokio::test(flavor = "multi_thread")]
async fn frozen_servers_are_two_failed_checks_and_end_no_run() {
    let clinic = Clinic::open(TestEnv::new().await).await;
    let all = clinic.doctor(&[]).await.len();
    clinic.env.postgres.pause().expect("pause PostgreSQL");
    clinic.env.nats.pause().expect("pause NATS");
    let began = Instant::now();
    let checks = clinic.doctor(&[]).await;
    let took = began.elapsed();
    clinic.env.postgres.resume().expect("resume PostgreSQL");
    clinic.env.nats.resume().expect("resume NATS");
    assert!(took < RUN_MAX, "{took:?}");
    assert_eq!(checks.len(), all, "{checks:#?}");
    for check in &checks {
        let id = check["id"].as_str().expect("an id");
        let is_door = ["postgres-reachable", "nats-reachable", "replication-connection"];
        let expected = match id {
            "postgres-reachable" | "nats-reachable" => ["error"].as_slice(),
            // Of hosts and configuration alone.
            _ if is_door.contains(&id) => &["error", "skipped"],
            _ => &["ok", "skipped"],
        };
        let severity = check["severity"].as_str().expect("a severity");
        assert!(expected.contains(&severity), "{check:#}");
        assert_ne!(check["evidence"], "", "{check:#}");
    }
    eprintln!("took {took:?}");
}

/// Takes the parameter `replication` out of start-up messages, as poolers do that carry none.
async fn pooler(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(pool(client, server));
        }
    });
    address
}

async fn pool(mut client: TcpStream, server: SocketAddr) -> std::io::Result<()> {
    let length = client.read_u32().await?;
    let mut message = vec![0; length as usize - 4];
    client.read_exact(&mut message).await?;
    let name = b"replication\0database\0";
    if let Some(at) = message.windows(name.len()).position(|it| it == name) {
        message.drain(at..at + name.len());
    }
    let mut server = TcpStream::connect(server).await?;
    server.write_u32(u32::try_from(message.len() + 4).expect("small")).await?;
    server.write_all(&message).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_place_of_the_server_is_found() {
    let mut clinic = Clinic::open(TestEnv::new().await).await;
    let direct = clinic.courier.clone();
    let server = SocketAddr::from(([127, 0, 0, 1], clinic.env.postgres.port()));
    let pooler = pooler(server).await;
    let url = format!("postgres://courier@{pooler}/postgres?sslmode=disable");
    clinic.env.set("DATABASE_URL", &url);
    let checks = clinic.doctor(&["--pre"]).await;
    let found = check(&checks, "replication-connection");
    assert_eq!(found["severity"], "error", "{found:#}");
    let evidence = found["evidence"].as_str().expect("evidence");
    assert!(evidence.contains("is a pooler") && evidence.contains("syntax error"), "{evidence}");
    assert!(remedies(found)[0].starts_with("name the database server itself"), "{found:#}");
    assert_eq!(check(&checks, "postgres-reachable")["severity"], "ok", "{checks:#?}");
    clinic.env.set("DATABASE_URL", &direct);
    let checks = clinic.doctor(&["--pre"]).await;
    assert_eq!(check(&checks, "replication-connection")["severity"], "ok", "{checks:#?}");
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_in_place_of_the_primary_is_found() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let standby = Postgres::start_standby_of(&env.postgres, "standby_1", false).await;
    let standby = standby.expect("start a standby");
    let primary = env.postgres.url("postgres");
    env.set("DATABASE_URL", &standby.url("postgres"));
    let (told, _) = env.ends_with(1, &["doctor", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let found = check(told["checks"].as_array().expect("checks"), "postgres-primary").clone();
    assert_eq!(found["severity"], "error", "{found:#}");
    let address = format!("127.0.0.1:{}", env.postgres.port());
    assert!(remedies(&found)[0].contains(&address), "{found:#}");
    env.set("DATABASE_URL", &primary);
    let (told, _) = env.ends_with(0, &["doctor", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let found = check(told["checks"].as_array().expect("checks"), "postgres-primary").clone();
    assert_eq!(found["severity"], "ok", "{found:#}");
}

/// What is printed for a user that may do too little is what a relay needs.
// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_that_are_printed_suffice() {
    let user = |permissions: &str| {
        format!(
            "authorization {{ users: [
               {{ user: admin, password: admin }},
               {{ user: relay, password: relay, {permissions} }}
             ] }}"
        )
    };
    let narrow = "permissions: { publish: { allow: [\"$JS.API.>\", \"$SYS.REQ.USER.INFO\"] } }";
    let mut env = TestEnv::with(nats(&[&user(narrow)])).await;
    let login =
        |env: &TestEnv, user: &str| format!("nats://{user}:{user}@127.0.0.1:{}", env.nats.port());
    env.set("NATS_URL", &login(&env, "admin"));
    env.setup().await;
    env.set("NATS_URL", &login(&env, "relay"));
    let (told, _) = env.ends_with(1, &["doctor", "--json", "--only", "nats"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let found = check(told["checks"].as_array().expect("checks"), "nats-permissions").clone();
    assert_eq!(found["severity"], "error", "{found:#}");
    let evidence = found["evidence"].as_str().expect("evidence");
    assert!(evidence.contains("may not publish outbox.*.*"), "{evidence}");
    let printed = remedies(&found)[0].to_owned();
    assert!(printed.starts_with("permissions: {"), "{printed}");

    let mut env = TestEnv::with(nats(&[&user(&printed)])).await;
    env.set("NATS_URL", &login(&env, "admin"));
    env.setup().await;
    env.set("NATS_URL", &login(&env, "relay"));
    env.ends_with(0, &["doctor", "--only", "nats-permissions,nats-jetstream"]).await;
    env.insert(10).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.unmarked().await, 0);

    env.set("NATS_URL", &login(&env, "relay").replace("relay@", "wrong@"));
    let (told, _) = env.ends_with(1, &["doctor", "--json", "--only", "nats"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let found = check(told["checks"].as_array().expect("checks"), "nats-reachable").clone();
    assert!(remedies(&found)[0].contains("nats.user and nats.password"), "{found:#}");
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_jetstream_and_a_small_max_payload_are_found() {
    let accounts = "accounts {
        WITH { jetstream: enabled, users: [{ user: with, password: with }] }
        BARE { users: [{ user: bare, password: bare }] }
    }";
    let mut options = nats(&[accounts]);
    options.nats.max_payload = Some(1024);
    let mut env = TestEnv::with(options).await;
    let login =
        |env: &TestEnv, user: &str| format!("nats://{user}:{user}@127.0.0.1:{}", env.nats.port());
    env.set("NATS_URL", &login(&env, "with"));
    env.setup().await;
    env.execute(
        "SELECT outbox_emit('order', 'o-1', 'Placed', jsonb_build_object('x', repeat('x', 2000)))",
    )
    .await;
    env.set("NATS_URL", &login(&env, "bare"));
    let (told, _) = env.ends_with(1, &["doctor", "--json", "--only", "nats"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let checks = told["checks"].as_array().expect("checks");
    assert_eq!(check(checks, "nats-jetstream")["severity"], "error", "{checks:#?}");
    assert!(remedies(check(checks, "nats-jetstream"))[0].contains("`jetstream: enabled`"));
    let payload = check(checks, "nats-payload");
    assert_eq!(payload["severity"], "error", "{payload:#}");
    assert!(remedies(payload)[0].starts_with("set max_payload: "), "{payload:#}");

    env.set("NATS_URL", &login(&env, "with"));
    env.ends_with(0, &["doctor", "--only", "nats", "--skip", "nats-payload"]).await;
}

/// A run that ends with a usage error, and one whose plugin output is read by a machine.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_checked_and_nagios_gets_one_line() {
    let clinic = Clinic::open(TestEnv::new().await).await;
    let (_, log) = clinic.env.ends_with(2, &["doctor", "--only", "nats-paylod"]).await;
    assert!(log.contains("did you mean `nats-payload`?"), "{log}");
    let nagios = ["doctor", "--output", "nagios", "--only", "stream-exists"];
    let (line, log) = clinic.env.ends_with(0, &nagios).await;
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("TAILPOST OK - 1 checks | errors=0;;0;0"), "{line}{log}");
    let jetstream = clinic.env.nats.jetstream().await.expect("connect to NATS");
    jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    let (line, log) = clinic.env.ends_with(2, &nagios).await;
    assert!(line.starts_with("TAILPOST CRITICAL - stream-exists (there is no stream"), "{line}");
    assert!(!log.contains("error:"), "{log}");
    let process = clinic.env.spawn(&["doctor", "--output", "nagios", "--only", "slot-exists"]);
    assert_eq!(process.wait_exit(DEADLINE).await.code(), Some(0), "{}", process.stdout());
    // relay-running warns.
    let warned = ["doctor", "--output", "nagios", "--only", "relay"];
    let (line, _) = clinic.env.ends_with(1, &warned).await;
    assert!(line.starts_with("TAILPOST WARNING - relay-running ("), "{line}");
    let (text, _) = clinic.env.ends_with(1, &["doctor"]).await;
    assert!(text.contains("ERROR   stream-exists: the stream exists\n"), "{text}");
    assert!(text.contains("    -> $ tailpost setup\n"), "{text}");
}

/// What one relay publishes, the other does too.
// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_another_slot_on_the_same_table_is_found() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let doctor = ["doctor", "--only", "replication-other-slots"];
    let (told, _) = env.ends_with(0, &doctor).await;
    assert!(told.contains("0 warnings"), "{told}");
    env.set("TAILPOST_POSTGRES__SLOT", "second");
    env.setup().await;
    let second = env.relay();
    second.wait_active().await;
    env.set("TAILPOST_POSTGRES__SLOT", "tailpost");
    let (told, _) = env.ends_with(0, &doctor).await;
    assert!(told.contains("reads the publication too, from second"), "{told}");
    second.sigterm();
    assert!(second.wait_exit(DEADLINE).await.success());
    let mut remedies = told.lines().filter_map(|it| it.trim().strip_prefix("-> psql> "));
    let drop = remedies.rfind(|it| it.contains("pg_drop_replication_slot"));
    env.wait_unread("second").await;
    env.execute(drop.expect("a remedy").split(" (").next().expect("a statement")).await;
    let (told, _) = env.ends_with(0, &doctor).await;
    assert!(told.contains("0 warnings"), "{told}");
}
