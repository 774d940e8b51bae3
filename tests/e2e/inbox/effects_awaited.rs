//! Waiting until a consumer has processed an event.

use async_nats::jetstream::consumer;
use lab::Port;
use serde_json::Value;
use uuid::Uuid;

use super::http::{set_up, wait_processed};
use super::service::{Service, emit};

/// From the inbox that runs the consumer, and from the database.
// proves: G-WAIT-1
#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_did_with_an_event_is_told_with_an_exit_code() {
    let mut env = set_up().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
    // A pause is a random part of it.
    env.set("TAILPOST_INBOX__BACKOFF", "24h");
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer_to("bad", 422);
    service.answer_to("sick", 500);
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    inbox.wait_log("the consumer is ours").await;
    let well = emit(&env, "well", "{}").await;
    let wait_for = async |code: i32, id: Uuid, more: &[&str]| {
        let id = id.to_string();
        let args = ["wait", &id, "--json", "--processed-by", "billing"];
        let (stdout, _) = env.ends_with(code, &[&args[..], more].concat()).await;
        let said: Value = serde_json::from_str(&stdout).expect("JSON");
        assert_eq!(said["id"], id);
        said
    };
    assert_eq!(wait_for(0, well, &["--timeout", "5m"]).await["state"], "processed");
    let everything = ["wait", "--all", "--processed-by", "billing", "--timeout", "5m"];
    let (stdout, _) = env.ends_with(0, &everything).await;
    assert_eq!(stdout, "everything is published and answered\n");
    wait_processed(&env, 1).await;

    let (bad, sick) = (emit(&env, "bad", "{}").await, emit(&env, "sick", "{}").await);
    for direct in [&["--timeout", "5m"][..], &["--timeout", "5m", "--direct"]] {
        assert_eq!(wait_for(0, well, direct).await["state"], "processed");
        let said = wait_for(4, bad, direct).await;
        assert_eq!(said["state"], "dead");
        assert!(said["reason"].as_str().expect("a reason").contains("422"), "{said}");
    }
    for direct in [&["--timeout", "2s"][..], &["--timeout", "2s", "--direct"]] {
        let said = wait_for(6, sick, direct).await;
        assert_eq!((&said["state"], &said["attempts"]), (&"begun".into(), &1.into()), "{said}");
        assert_eq!(wait_for(3, Uuid::now_v7(), direct).await["state"], "unknown");
    }
    let (_, log) = env.ends_with(6, &[&everything[..4], &["--timeout", "1s"]].concat()).await;
    assert!(log.contains("1 messages are not answered"), "{log}");
    // Of a consumer that nobody runs: the stream's newest messages are not for one of them.
    let stream = env.stream().await;
    for (name, filter, code) in [("elsewhere", "outbox.nothing.>", 0), ("idle", "outbox.>", 6)] {
        let durable_name = Some(name.to_owned());
        let filter_subject = filter.to_owned();
        let config = consumer::pull::Config { durable_name, filter_subject, ..Default::default() };
        stream.create_consumer(config).await.expect("create a consumer");
        let args = ["wait", "--all", "--processed-by", name, "--timeout", "2s"];
        env.ends_with(code, &args).await;
    }
    let other = ["wait", &well.to_string(), "--processed-by", "mail"].map(str::to_owned);
    let (_, log) = env.ends_with(4, &other.each_ref().map(String::as_str)).await;
    assert!(log.contains("does not run that consumer, but billing"), "{log}");
}
