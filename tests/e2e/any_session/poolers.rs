//! Poolers between Tailpost and PostgreSQL.

use std::net::{Ipv4Addr, SocketAddr};

use support::{DEADLINE, TestEnv};

use super::pooler::{Lends, Pooler};
use crate::inbox::http::wait_processed;
use crate::inbox::service::Service;

/// Tailpost reaches PostgreSQL through the pooler only.
async fn through(lends: Lends) -> (TestEnv, Pooler) {
    let mut env = TestEnv::new().await;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, env.postgres.port()));
    let pooler = Pooler::start(server, lends).await;
    let url = format!("postgres://postgres@{}/postgres", pooler.addr);
    env.set("DATABASE_URL", &url);
    (env, pooler)
}

/// Every command, a relay that polls, and an inbox.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_lends_sessions_is_like_the_server() {
    let (mut env, _pooler) = through(Lends::Sessions).await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    let service = Service::start().await;
    let _relay = env.relay();
    let ids = env.insert(50).await;
    env.wait_marked().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let _inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    wait_processed(&env, 50).await;
    for args in [
        &["status"][..],
        &["doctor"],
        &["verify"],
        &["wait", "--all", "--timeout", "30s"],
        &["outbox", "dlq", "list", "--direct"],
        &["inbox", "dlq", "list"],
        &["explain", &ids[0].to_string()],
    ] {
        env.ends_with(0, args).await;
    }
}

/// It takes no connection for replication, and that is said with what helps.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_takes_no_replication_is_named() {
    let (mut env, pooler) = through(Lends::Sessions).await;
    let (_, told) = env.ends_with(4, &["setup"]).await;
    assert!(told.contains("no replication connection") && told.contains("pooler"), "{told}");
    let (found, _) = env.ends_with(1, &["doctor"]).await;
    assert!(found.contains("replication-connection") && found.contains("pooler"), "{found}");
    let url = env.postgres.url("postgres");
    env.set("DATABASE_URL", &url);
    env.setup().await;
    env.set("DATABASE_URL", &format!("postgres://postgres@{}/postgres", pooler.addr));
    let relay = env.relay();
    let status = relay.wait_exit(DEADLINE).await;
    assert_eq!(status.code(), Some(4), "{}", relay.log());
    assert!(relay.log().contains("pooler"), "{}", relay.log());
}

/// What is set for a session is then set for whoever has the server's session next.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_lends_transactions_is_refused_by_name() {
    let (mut env, pooler) = through(Lends::Transactions).await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    let (_, told) = env.ends_with(4, &["setup"]).await;
    assert!(told.contains("transaction mode"), "{told}");
    let (found, _) = env.ends_with(1, &["doctor"]).await;
    assert!(found.contains("transaction mode"), "{found}");
    let url = env.postgres.url("postgres");
    env.set("DATABASE_URL", &url);
    env.setup().await;
    env.set("DATABASE_URL", &format!("postgres://postgres@{}/postgres", pooler.addr));
    let relay = env.relay();
    let status = relay.wait_exit(DEADLINE).await;
    assert_eq!(status.code(), Some(4), "{}", relay.log());
    assert!(relay.log().contains("transaction mode"), "{}", relay.log());
}

/// An inbox, too: where it begins, and where the tables are there.
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_refuses_a_pooler_that_lends_transactions() {
    let (mut env, pooler) = through(Lends::Transactions).await;
    let through = format!("postgres://postgres@{}/postgres", pooler.addr);
    let (direct, service) = (env.postgres.url("postgres"), Service::start().await);
    env.set("DATABASE_URL", &direct);
    env.setup().await;
    for is_set_up in [false, true] {
        env.set("DATABASE_URL", &through);
        for args in [&["inbox", "setup"][..], &service.args().each_ref().map(String::as_str)] {
            let (_, told) = env.ends_with(4, args).await;
            assert!(told.contains("transaction mode"), "{is_set_up}, {args:?}: {told}");
            assert!(told.contains("pool_mode = session"), "{is_set_up}, {args:?}: {told}");
        }
        env.set("DATABASE_URL", &direct);
        env.ends_with(0, &["inbox", "setup"]).await;
    }
}
