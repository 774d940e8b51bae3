//! What somebody else drops of the inbox's tables is named, and `tailpost inbox setup` brings it back.

use lab::Port;
use support::{DEADLINE, SCRAPER, until};

use super::http::{set_up, wait_processed};
use super::service::Service;
use super::shared_stuck::asked;

/// Statements, and what is named then. Without its list of decisions or workers an inbox that runs alone
/// goes on; `doctor` names those.
const DROPPED: &[(&str, &str)] = &[
    ("ALTER TABLE inbox_messages DROP COLUMN tried_since", "tried_since"),
    ("ALTER TABLE inbox_messages DROP COLUMN lease_token CASCADE", "lease_token"),
    ("ALTER TABLE inbox_attempts DROP COLUMN took_ms, DROP COLUMN worker", "took_ms"),
    ("ALTER TABLE inbox_dead_letter DROP COLUMN payload", "payload"),
    ("ALTER TABLE inbox_roles DROP COLUMN handled_to", "handled_to"),
    ("DROP TABLE inbox_attempts", "inbox_attempts"),
    ("DROP TABLE inbox_dead_letter CASCADE", "inbox_dead_letter"),
    ("DROP TABLE inbox_roles", "inbox_roles"),
    ("DROP TABLE inbox_rewinds", "inbox_rewinds"),
    ("DROP TABLE inbox_controls", "inbox_controls"),
    ("DROP TABLE inbox_retention", "inbox_retention"),
    ("DROP TABLE inbox_messages CASCADE", "inbox_messages"),
];

const SET_UP: &str = "tailpost inbox setup";

/// Under an inbox that runs.
async fn ends_the_inbox(drop: &str, name: &str) {
    let api = Port::reserve().expect("a free port");
    let mut env = set_up().await;
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &api.addr().to_string());
    env.set("TAILPOST_ADMIN__TOKEN", SCRAPER);
    env.set("TAILPOST_METRICS__INTERVAL", "300ms");
    let service = Service::start().await;
    let args = service.args();
    let args = args.each_ref().map(String::as_str);
    let _relay = env.relay();
    let inbox = env.spawn(&args);
    env.insert(5).await;
    wait_processed(&env, 5).await;
    let is_ready = async || asked(&api, "/readyz").await.contains(" 200 ");
    until(DEADLINE, "it is ready", is_ready).await;
    env.execute(drop).await;
    env.insert(5).await;
    inbox.announce("");
    assert_eq!(inbox.wait_exit(DEADLINE).await.code(), Some(3), "{}", inbox.log());
    assert!(inbox.log().contains(name) && inbox.log().contains(SET_UP), "{}", inbox.log());
    env.ends_with(0, &["inbox", "setup"]).await;
    let _inbox = env.spawn(&args);
    wait_processed(&env, 10).await;
    until(DEADLINE, "it is ready again", is_ready).await;
}

// proves: G-SETUP-2
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_is_dropped_under_an_inbox_ends_it() {
    ends_the_inbox("ALTER TABLE inbox_messages DROP COLUMN tried_since", "tried_since").await;
}

// proves: G-SETUP-2
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_dropped_under_an_inbox_ends_it() {
    ends_the_inbox("DROP TABLE inbox_roles", "inbox_roles").await;
}

mod long {
    use super::*;

    // proves: G-SETUP-2
    #[tokio::test(flavor = "multi_thread")]
    async fn what_others_drop_of_the_inbox_ends_it_by_name_and_set_up_brings_it_back() {
        let env = set_up().await;
        let service = Service::start().await;
        let args = service.args();
        let args = args.each_ref().map(String::as_str);
        let mut failed = Vec::new();
        for (drop, name) in DROPPED {
            env.execute(drop).await;
            let inbox = env.spawn(&args);
            inbox.announce("");
            let ended = tokio::time::timeout(DEADLINE / 4, inbox.wait_exit(DEADLINE)).await;
            let log = inbox.log();
            let is_told = ended.as_ref().is_ok_and(|it| it.code() == Some(3));
            if !is_told || !log.contains(name) || !log.contains(SET_UP) {
                failed.push(format!("{drop}: {ended:?}\n{log}"));
            }
            env.ends_with(0, &["inbox", "setup"]).await;
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        let _relay = env.relay();
        let _inbox = env.spawn(&args);
        env.insert(5).await;
        wait_processed(&env, 5).await;
    }
}
