//! The right to hear the broker's answers is taken from the relay's user, and given back.

use lab::{NatsOptions, Port};
use serde_json::Value;
use support::{DEADLINE, TestEnv, TestEnvOptions, get, until};

/// The relay's user may not subscribe to these.
fn users(denied: &[&str]) -> Vec<String> {
    vec![format!(
        "authorization {{ users: [
           {{ user: admin, password: admin }},
           {{ user: relay, password: relay, permissions: {{ subscribe: {{ deny: {denied:?} }} }} }}
         ] }}
         no_auth_user: admin"
    )]
}

/// The server ends the subscription, does not begin it again with the right, and says nothing then.
async fn goes_on_when_it_may_hear_again(mode: &str) {
    let nats = NatsOptions { config: users(&[]), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__MODE", mode);
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.set("NATS_URL", &format!("nats://relay:relay@127.0.0.1:{}", env.nats.port()));
    let relay = env.relay();
    relay.announce("");
    let mut expected = env.insert(10).await;
    env.wait_stored(10).await;

    env.nats.reload(users(&["_INBOX.>"]), None).await.expect("other permissions");
    expected.extend(env.insert(10).await);
    let ready = async || get(admin.addr(), "/readyz").await.unwrap_or_default();
    let is_named = |told: &str| told.contains("may not subscribe to _INBOX.>");
    until(DEADLINE, "it is not ready", async || ready().await.contains("HTTP/1.1 503")).await;
    until(DEADLINE, "the cause is named", async || is_named(&relay.log())).await;
    let (status, said) = env.ends_with(5, &["status"]).await;
    assert!(is_named(&status), "{status}{said}");
    let only = ["doctor", "--json", "--only", "nats-permissions,nats-jetstream"];
    let (told, _) = env.ends_with(1, &only).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let checks = told["checks"].as_array().expect("checks");
    for check in checks {
        let is_cause = check["id"] == "nats-permissions";
        assert_eq!(check["severity"] == "error", is_cause, "{told:#}");
        assert!(is_named(&check["evidence"].to_string()), "{told:#}");
    }

    env.nats.reload(users(&[]), None).await.expect("the permissions as before");
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    until(DEADLINE, "it is ready", async || ready().await.contains("HTTP/1.1 200")).await;
    assert!(relay.exited().is_none(), "{}", relay.log());
    env.ends_with(0, &only).await;
}

// proves: G-SEEN-2
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_answers_were_forbidden_for_a_while_goes_on() {
    goes_on_when_it_may_hear_again("fenced").await;
}

// proves: G-SEEN-2
#[tokio::test(flavor = "multi_thread")]
async fn a_polling_relay_whose_answers_were_forbidden_for_a_while_goes_on() {
    goes_on_when_it_may_hear_again("poll").await;
}
