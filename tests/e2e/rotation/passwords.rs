//! The password of PostgreSQL, in a file and from a program.

use lab::NatsOptions;
use servers::PostgresTarget;
use support::TestEnv;

use super::{Running, Secrets, database, make_tables, set_up};

/// The passwords that follow each other.
const PASSWORDS: [&str; 3] = ["first-s3cret", "second-s3cret", "third-s3cret"];

/// A role with the first password, which relay and inbox log in as, by what is set then.
pub(super) async fn with_a_role() -> TestEnv {
    let mut env = set_up(database(&[], &[]), NatsOptions::default()).await;
    make_tables(&env).await;
    let create = "CREATE ROLE relay LOGIN SUPERUSER REPLICATION PASSWORD";
    env.execute(&format!("{create} '{}'", PASSWORDS[0])).await;
    env.set(
        "DATABASE_URL",
        &format!("postgres://relay@127.0.0.1:{}/postgres", env.postgres.port()),
    );
    env
}

/// Replaces the password twice under load, and ends all connections made with the old one.
async fn rotates(env: TestEnv, secrets: &Secrets) {
    let running = Running::start(env).await;
    let pid = running.relay.pid();
    for passwords in PASSWORDS.windows(2) {
        let (old, new) = (passwords[0], passwords[1]);
        secrets.renew("password", &format!("{new}\n"));
        running.env.execute(&format!("ALTER ROLE relay PASSWORD '{new}'")).await;
        running.end_connections("relay").await;
        let port = running.env.postgres.port();
        let by_old = format!("postgres://relay:{old}@127.0.0.1:{port}/postgres");
        let by_old: PostgresTarget = by_old.parse().expect("a target");
        let error = by_old.connect("test").await.map(drop).expect_err("the old one is revoked");
        assert!(error.is_refusal() && !error.is_transient(), "{error:?}");
    }
    // Whoever connects, connects like this.
    for args in [&["status"][..], &["setup"], &["verify"], &["inbox", "setup"]] {
        let (told, said) = running.env.ends_with(0, args).await;
        assert!(!PASSWORDS.iter().any(|it| told.contains(it) || said.contains(it)), "{told}{said}");
    }
    assert_eq!(running.relay.pid(), pid);
    running.end(&PASSWORDS).await;
}

// proves: G-CRED-1
#[tokio::test(flavor = "multi_thread")]
async fn a_password_in_a_file_is_replaced_under_load() {
    let mut env = with_a_role().await;
    let secrets = Secrets::new();
    secrets.renew("password", PASSWORDS[0]);
    let file = secrets.path("password");
    env.set("TAILPOST_POSTGRES__PASSWORD_FILE", file.to_str().expect("UTF-8"));
    rotates(env, &secrets).await;
}

/// Both are wrong: which one is meant nobody knows.
// proves: G-CRED-4
#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_given_in_one_place_or_refused() {
    let run = async |variables: &[(&str, &str)]| {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let variables: Vec<_> = variables.iter().map(owned).collect();
        let process = support::Relay::spawn(&["relay"], &variables);
        process.announce(""); // the code tells
        let code = process.wait_exit(support::DEADLINE).await.code();
        assert_eq!(code, Some(78), "{}", process.log());
        assert!(!process.log().contains("s3cret"), "{}", process.log());
        process.log()
    };
    let file = ("TAILPOST_POSTGRES__PASSWORD_FILE", "/no/such/file");
    let command = ("TAILPOST_POSTGRES__PASSWORD_COMMAND", "[\"/no/such/program\", \"s3cret\"]");
    let plain = ("DATABASE_URL", "postgres://ada@127.0.0.1:1/shop");
    let with_password = ("DATABASE_URL", "postgres://ada:s3cret@127.0.0.1:1/shop");
    let log = run(&[plain, file, command]).await;
    assert!(log.contains("password_command: postgres.password_file is set too"), "{log}");
    for given in [file, command] {
        let log = run(&[with_password, given]).await;
        assert!(log.contains(given.0) && log.contains("postgres.url has a password too"), "{log}");
    }
    let shell = ("TAILPOST_POSTGRES__PASSWORD_COMMAND", "cat /s3cret");
    assert!(run(&[plain, shell]).await.contains("a program and its arguments, such as [\""));
}

mod long {
    use super::*;

    // proves: G-CRED-1, G-CRED-4
    #[tokio::test(flavor = "multi_thread")]
    async fn a_password_of_a_program_is_replaced_under_load() {
        let mut env = with_a_role().await;
        let secrets = Secrets::new();
        secrets.renew("password", PASSWORDS[0]);
        let (file, runs) = (secrets.path("password"), secrets.path("runs"));
        let script =
            format!("echo run >> {}; echo s3cret >&2; cat {}", runs.display(), file.display());
        let argv = serde_json::json!(["sh", "-c", script]).to_string();
        env.set("TAILPOST_POSTGRES__PASSWORD_COMMAND", &argv);
        rotates(env, &secrets).await;
        let runs = std::fs::read_to_string(runs).expect("it ran").lines().count();
        assert!(runs >= 12, "it ran {runs} times, and not for each connection");
    }
}
