//! Others change the durable consumer, or what its user may do, while the inbox runs.

use async_nats::jetstream::consumer::pull;
use support::{DEADLINE, TestEnv, until};

use super::http::{configure, set_up, wait_processed};
use super::service::{Service, emit};

async fn change(env: &TestEnv, change: impl Fn(&mut pull::Config)) {
    let stream = env.stream().await;
    let found = stream.consumer_info("billing").await.expect("the consumer").config;
    let mut config: pull::Config =
        async_nats::jetstream::consumer::FromConsumer::try_from_consumer_config(found)
            .expect("it is pulled from");
    change(&mut config);
    stream.update_consumer(config).await.expect("change the consumer");
}

/// The broker delivers no bodies any more, and then no events but others.
// proves: G-EFFECT-1
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_changed_while_the_inbox_runs_costs_no_event_and_no_body() {
    let env = set_up().await;
    let relay = env.relay();
    relay.announce("");
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    inbox.announce("");
    env.insert(10).await;
    wait_processed(&env, 10).await;
    change(&env, |it| it.headers_only = true).await;
    env.insert(10).await;
    wait_processed(&env, 20).await;
    change(&env, |it| it.filter_subject = "outbox.nothing.>".into()).await;
    env.insert(10).await;
    wait_processed(&env, 30).await;
    let calls = service.calls();
    assert!(calls.iter().all(|it| !it.payload.is_empty()), "each has its body");
    assert_eq!(calls.len(), 30, "each is handled once");
    let config = env.stream().await.consumer_info("billing").await.expect("the consumer").config;
    assert!(!config.headers_only && config.filter_subject.is_empty(), "it is put back");
}

/// As in a deployment that is undone and done again.
// proves: G-EFFECT-1
#[tokio::test(flavor = "multi_thread")]
async fn subjects_that_one_worker_leaves_out_are_handled_when_another_one_adds_them_again() {
    const BOTH: &str = "outbox.order.>, outbox.user.>";
    let mut env = set_up().await;
    let _folder = configure(&mut env);
    let _relay = env.relay();
    let service = Service::start().await;
    let (user, args) = ("SELECT outbox_emit('user', 'u', 'UserMade', '{}')", service.args());
    let mut handled = 0;
    // Whether a worker is for both, and how many events it handles: what is added first is new.
    for (is_for_both, has) in [(false, 1), (true, 2), (false, 1), (true, 3), (true, 2)] {
        let subjects = if is_for_both { BOTH } else { "outbox.order.>" };
        env.set("TAILPOST_INBOX__BILLING__SUBJECTS", subjects);
        env.ends_with(0, &["inbox", "setup"]).await;
        let inbox = env.spawn(&args.each_ref().map(String::as_str));
        inbox.announce("");
        until(DEADLINE, "it is for its subjects", async || {
            let found = env.stream().await.consumer_info("billing").await.expect("it").config;
            found.filter_subjects.len() == 2 * usize::from(is_for_both)
        })
        .await;
        env.query::<uuid::Uuid>(user).await;
        emit(&env, "o", "{}").await;
        handled += has;
        wait_processed(&env, handled).await;
        inbox.sigterm();
        inbox.wait_exit(DEADLINE).await;
    }
    let calls = service.calls();
    assert_eq!(calls.len(), usize::try_from(handled).expect("few"), "each is handled once");
}

mod long {
    use std::time::Duration;

    use lab::{NatsOptions, Port};
    use support::{TestEnvOptions, get};

    use super::*;

    /// The inbox's user may subscribe to this.
    fn users(denied: &[&str]) -> Vec<String> {
        vec![format!(
            "authorization {{ users: [
               {{ user: admin, password: admin }},
               {{ user: inbox, password: inbox, permissions: {{ subscribe: {{ deny: {denied:?} }} }} }}
             ] }}
             no_auth_user: admin"
        )]
    }

    /// The server ends the client's subscription to answers, and does not begin it again.
    // proves: G-SEEN-2
    #[tokio::test(flavor = "multi_thread")]
    async fn an_inbox_whose_answers_were_forbidden_for_a_while_goes_on() {
        let nats = NatsOptions { config: users(&[]), ..NatsOptions::default() };
        let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
        env.setup().await;
        env.ends_with(0, &["inbox", "setup"]).await;
        let relay = env.relay();
        relay.announce("");
        let service = Service::start().await;
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
        env.set("NATS_URL", &format!("nats://inbox:inbox@127.0.0.1:{}", env.nats.port()));
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        inbox.announce("");
        env.insert(10).await;
        wait_processed(&env, 10).await;
        env.nats.reload(users(&["_INBOX.>"]), None).await.expect("other permissions");
        let ready = async || get(admin.addr(), "/readyz").await.unwrap_or_default();
        until(2 * DEADLINE, "the broker is away", async || ready().await.contains("away")).await;
        env.nats.reload(users(&[]), None).await.expect("the permissions as before");
        env.insert(10).await;
        until(Duration::from_secs(60), "events are handled", async || service.calls().len() == 20)
            .await;
        until(DEADLINE, "it is ready", async || ready().await.contains("HTTP/1.1 200")).await;
    }
}
