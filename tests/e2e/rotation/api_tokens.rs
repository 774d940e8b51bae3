//! The tokens of the HTTP API.

use std::time::Instant;

use lab::{NatsOptions, Port};
use support::{DEADLINE, ask, get, until};
use tokio::net::TcpStream;

use super::{Running, Secrets, database, make_tables, set_up};

// proves: G-CRED-5
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_the_api_are_replaced_under_load() {
    let mut env = set_up(database(&[], &[]), NatsOptions::default()).await;
    make_tables(&env).await;
    let ports = [(); 2].map(|()| Port::reserve().expect("a free port"));
    let [relay, inbox] = ports.each_ref().map(Port::addr);
    let tokens = ["first-s3cret", "second-s3cret", "third-s3cret"];
    let secrets = Secrets::new();
    secrets.renew("viewer", tokens[0]);
    env.set("TAILPOST_ADMIN__LISTEN", &relay.to_string());
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox.to_string());
    env.set("TAILPOST_ADMIN__TOKENS", &format!("viewer:{}", secrets.path("viewer").display()));
    let running = Running::start(env).await;
    for address in [relay, inbox] {
        until(DEADLINE, "it listens", async || get(address, "/livez").await.is_some()).await;
    }
    let code = async |token: &str, address| {
        let stream = TcpStream::connect(address).await.expect("connect");
        let headers = format!("Host: {address}\r\nAuthorization: Bearer {token}");
        let told = ask(stream, "GET", "/api/v1/status", &headers, "").await.expect("an answer");
        told.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for pair in tokens.windows(2) {
        let (old, new) = (pair[0], pair[1]);
        let started = Instant::now();
        secrets.renew("viewer", new);
        for address in [relay, inbox] {
            let is_good = async || code(new, address).await == "200";
            until(DEADLINE, "the new token is good", is_good).await;
            assert_eq!(code(old, address).await, "401", "the old one is not any more");
        }
        eprintln!("the new token was good within {:?}", started.elapsed());
        running.goes_on().await;
    }
    running.end(&tokens).await;
}
