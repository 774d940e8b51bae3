//! The broker has events for a consumer, and delivers none.

use lab::Port;
use serde_json::Value;
use support::{DEADLINE, get, until};

use super::http::{configure, set_up, wait_processed};
use super::service::Service;
use crate::doctor::nats_commands::pause;

async fn wait_ready(admin: &Port, texts: &[&str]) {
    until(2 * DEADLINE, &format!("/readyz says {texts:?}"), async || {
        let told = get(admin.addr(), "/readyz").await.unwrap_or_default();
        texts.iter().all(|it| told.contains(it))
    })
    .await;
}

mod long {
    use super::*;

    // proves: G-STREAM-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_consumer_that_the_broker_pauses_is_not_ready_and_says_until_when() {
        let mut env = set_up().await;
        let _folder = configure(&mut env);
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
        let relay = env.relay();
        relay.announce("");
        let service = Service::start().await;
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        inbox.announce("");
        env.insert(10).await;
        wait_processed(&env, 10).await;
        pause(&env, "billing", Some("2100-01-01T00:00:00Z")).await;
        wait_ready(&admin, &["HTTP/1.1 200"]).await;
        env.insert(200).await;
        wait_ready(&admin, &["HTTP/1.1 503", "the broker delivers nothing"]).await;
        until(DEADLINE, "status says why", async || {
            let (told, _) = env.ends_with(0, &["status"]).await;
            told.contains("200 events wait") && told.contains("2100-01-01")
        })
        .await;
        let (told, _) = env.ends_with(1, &["doctor", "--json", "--only", "inbox-delivery"]).await;
        let told: Value = serde_json::from_str(&told).expect("JSON");
        let found = &told["checks"][0];
        assert!(found["evidence"].as_str().expect("text").contains("2100-01-01"), "{found}");
        assert_eq!(found["remedies"][0]["text"], "nats consumer resume OUTBOX billing", "{found}");
        // As the remedy does.
        pause(&env, "billing", None).await;
        wait_processed(&env, 210).await;
        wait_ready(&admin, &["HTTP/1.1 200"]).await;
        env.ends_with(0, &["doctor", "--only", "inbox-delivery"]).await;
    }
}
