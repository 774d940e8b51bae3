//! A credential that was revoked, and is renewed later than that.

use std::net::SocketAddr;

use lab::Port;
use support::{DEADLINE, Relay, TestEnv, ask, until};
use tokio::net::TcpStream;

use super::broker_logins::{before, token};
use super::passwords::with_a_role;
use super::{Running, Secrets, make_tables};

/// What it takes to see the details.
const TOKEN: &str = "t0ken-of-the-api";

/// The port of a relay's server that is to start.
pub(super) fn listen(env: &mut TestEnv, variable: &str) -> Port {
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__TOKEN", TOKEN);
    env.set(variable, &port.addr().to_string());
    port
}

pub(super) async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let stream = TcpStream::connect(address).await.ok()?;
    let headers = format!("Host: {address}\r\nAuthorization: Bearer {TOKEN}");
    ask(stream, "GET", path, &headers, "").await
}

/// Waits until readiness is this, and says this.
pub(super) async fn wait_ready(address: SocketAddr, code: u16, words: &str) {
    until(DEADLINE, &format!("/readyz is {code} and says `{words}`"), async || {
        let told = get(address, "/readyz").await.unwrap_or_default();
        let is_so = told.starts_with(&format!("HTTP/1.1 {code} ")) && told.contains(words);
        if is_so {
            eprintln!("{}", told.lines().last().unwrap_or_default());
        }
        is_so
    })
    .await;
}

/// How many lines of the log have both.
fn said(relay: &Relay, event: &str, hint: &str) -> usize {
    relay.log().lines().filter(|it| it.contains(event) && it.contains(hint)).count()
}

/// No password helps a role that no rule lets in: neither is it asked for, nor is it waited for.
// proves: G-CRED-6
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_no_rule_of_the_server_lets_in_is_not_asked_for_another_password() {
    let mut env = with_a_role().await;
    let secrets = Secrets::new();
    secrets.renew("password", "first-s3cret");
    let file = secrets.path("password");
    env.set("TAILPOST_POSTGRES__PASSWORD_FILE", file.to_str().expect("UTF-8"));
    env.execute("CREATE ROLE stranger LOGIN SUPERUSER REPLICATION PASSWORD 'first-s3cret'").await;
    env.execute("CREATE ROLE asleep NOLOGIN PASSWORD 'first-s3cret'").await;
    // Nobody answers there: each password is refused.
    let rules = "\
        local   all all                      trust\n\
        host    all postgres    127.0.0.1/32 trust\n\
        host    all asleep      127.0.0.1/32 scram-sha-256\n\
        host    all relay       127.0.0.1/32 radius radiusservers=127.0.0.1 radiussecrets=s3cret\n";
    env.postgres.write_file("pg_hba.conf", rules).expect("write the rules");
    env.postgres.reload().await.expect("reload");
    let hint = "renew what postgres.password_file gives";
    let port = env.postgres.port();
    let url = |role| format!("postgres://{role}@127.0.0.1:{port}/postgres");
    for (url, words) in [
        (url("stranger"), "no pg_hba.conf entry"),
        (url("asleep"), "run `ALTER ROLE \"asleep\" LOGIN`"),
    ] {
        env.set("DATABASE_URL", &url);
        let (_, told) = env.ends_with(4, &["setup"]).await;
        assert!(told.contains(words) && !told.contains(hint), "{told}");
        let relay = env.spawn(&["relay"]);
        assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
    }
    // The same SQLSTATE, and about what was shown.
    env.set("DATABASE_URL", &url("relay"));
    let (_, told) = env.ends_with(4, &["setup"]).await;
    assert!(told.contains("RADIUS authentication failed") && told.contains(hint), "{told}");
}

mod long {
    use super::*;

    // proves: G-CRED-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_password_that_is_renewed_late_is_asked_for_and_then_used() {
        let mut env = with_a_role().await;
        let secrets = Secrets::new();
        secrets.renew("password", "first-s3cret");
        let file = secrets.path("password");
        env.set("TAILPOST_POSTGRES__PASSWORD_FILE", file.to_str().expect("UTF-8"));
        let relay_port = listen(&mut env, "TAILPOST_ADMIN__LISTEN");
        let inbox_port = listen(&mut env, "TAILPOST_ADMIN__INBOX_LISTEN");
        let (relay, inbox) = (relay_port.addr(), inbox_port.addr());
        let running = Running::start(env).await;
        let before = running.sessions();
        running.env.execute("ALTER ROLE relay PASSWORD 'second-s3cret'").await;
        let end =
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'relay'";
        assert!(running.env.query::<i64>(end).await >= 4);
        let hint = "renew what postgres.password_file gives";
        wait_ready(relay, 503, hint).await;
        wait_ready(inbox, 503, hint).await;
        until(DEADLINE, "it is tried again and again", async || {
            Running::refusals(&running.relay) >= 4
        })
        .await;
        assert_eq!(said(&running.relay, "starting anew", hint), 1, "{}", running.relay.log());
        let status = get(relay, "/api/v1/status").await.expect("an answer");
        assert!(status.contains(hint), "{status}");
        let (_, told) = running.env.ends_with(4, &["status"]).await;
        assert!(told.contains(hint) && told.contains("password authentication failed"), "{told}");

        // Nothing, for a moment: it is no worse.
        std::fs::write(&file, "").expect("write");
        running.relay.wait_log("could not load postgres.password_file").await;
        secrets.renew("password", "second-s3cret");
        until(DEADLINE, "the relay is back", async || running.sessions() > before).await;
        wait_ready(relay, 200, "").await;
        wait_ready(inbox, 200, "").await;
        running.goes_on().await;
        running.end(&["first-s3cret", "second-s3cret"]).await;
    }

    // proves: G-CRED-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_token_that_is_renewed_late_is_asked_for_and_then_used() {
        let login = token();
        let secrets = Secrets::new();
        let mut env = before(&login, &secrets, "TAILPOST_NATS__TOKEN_FILE").await;
        let port = listen(&mut env, "TAILPOST_ADMIN__LISTEN");
        let relay = port.addr();
        make_tables(&env).await;
        let mut running = Running::start(env).await;
        let config = login.config[1].clone();
        running.env.nats.reload(vec![config], login.lab[1].as_deref()).await.expect("reload");
        let hint = "renew what nats.token_file gives";
        running.relay.wait_log(hint).await;
        wait_ready(relay, 503, hint).await;
        let event = "NATS client reported an error";
        assert_eq!(said(&running.relay, event, hint), 1, "{}", running.relay.log());
        let (told, _) = running.env.ends_with(4, &["setup"]).await;
        assert!(!told.contains("s3cret"), "{told}");
        secrets.renew("secret", &login.secrets[1]);
        wait_ready(relay, 200, "").await;
        running.goes_on().await;
        running.end(&login.unsaid()).await;
    }
}
