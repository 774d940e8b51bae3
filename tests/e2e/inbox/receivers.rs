//! Services that know nothing of Tailpost take what is sent, with the public libraries for Standard
//! Webhooks and for CloudEvents, and reject what was changed on its way.

use std::collections::BTreeMap;

use outbox::Event;
use serde_json::{Value, json};
use support::{DEADLINE, TestEnv, until};
use tokio::net::TcpStream;

use super::http::{set_up, wait_processed};
use super::programs::Program;
use super::service::{Call, Service};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// The key of RFC 8032, 7.1, and its public part.
const PRIVATE: &str = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
const PUBLIC: &str = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

const FORMS: [&str; 3] = ["standard", "cloudevents", "cloudevents-structured"];

/// A process that takes webhooks.
struct Receiver {
    name: &'static str,
    program: Program,
}

impl Receiver {
    async fn start(name: &'static str, file: &str, secret: &str) -> Self {
        Self { name, program: Program::start("webhooks", file, &[secret], &[]).await }
    }

    /// What it took for this consumer, by id.
    fn taken(&self, consumer: &str) -> BTreeMap<String, Value> {
        let lines = self.program.lines().into_iter();
        let ours = lines.filter(|it| it["consumer"] == consumer);
        ours.map(|it| (it["id"].as_str().unwrap_or_default().to_owned(), it)).collect()
    }

    /// The status of its answer to these headers and this body.
    async fn status(&self, headers: &BTreeMap<String, String>, body: &str) -> u16 {
        let lines: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let stream = TcpStream::connect(self.program.address()).await.expect("it listens");
        let answer = support::ask(stream, "POST", "/", &lines.join("\r\n"), body).await;
        let answer = answer.unwrap_or_default();
        answer.get(9..12).and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }
}

/// Events with values that are hard to carry.
fn awkward() -> Vec<Event> {
    let long = "x".repeat(2000);
    let ids = ["o-1", "a \"b\" 100% %20", "é 😀 \u{2028}", " space ", &long];
    let payload = json!({ "text": "é \"q\" 100% 😀\n", "n": 1.5, "list": [1, null, true] });
    let event = |id: &&str| Event::new("order line", *id, "Order \"Placed\" é 100%", &payload);
    ids.iter().map(|it| event(it).expect("an event").with_header("traceparent", TRACE)).collect()
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn commit(env: &TestEnv, events: &[Event]) {
    let mut client = env.client().await;
    let transaction = client.transaction().await.expect("begin");
    for event in events {
        outbox::enqueue(&transaction, event).await.expect("enqueue");
    }
    transaction.commit().await.expect("commit");
}

/// A consumer of each form for each receiver, and one for the recorder.
fn configuration(receivers: &[Receiver], recorder: &Service) -> String {
    let mut text = format!("[inbox]\nsecrets = ['{SECRET}', '{PRIVATE}']\n");
    for form in FORMS {
        let handlers = receivers.iter().map(|it| (it.name, it.program.url()));
        for (name, url) in handlers.chain([("recorder", recorder.url())]) {
            text += &format!("[inbox.{name}-{form}]\nhandler = '{url}'\nbody = '{form}'\n");
        }
    }
    text
}

fn check(event: &Event, form: &str, taken: &Value, with_relay: bool) {
    let text = |it: &str| taken[it].as_str().unwrap_or_default().to_owned();
    let data: Value = serde_json::from_slice(&event.payload).expect("JSON");
    assert_eq!(taken["data"], data, "{form}");
    if form == "standard" {
        assert_eq!(text("type"), &*event.event_type);
        return;
    }
    let (source, kind) = match with_relay {
        true => ("/shop/order%20line", format!("com.example.{}", event.event_type)),
        false => ("/order%20line", event.event_type.to_string()),
    };
    assert_eq!((text("source"), text("type")), (source.to_owned(), kind), "{form}");
    assert_eq!(text("specversion"), "1.0");
    assert_eq!(text("subject"), &*event.aggregate_id, "{form}");
    assert_eq!(text("partitionkey"), format!("order line:{}", event.aggregate_id), "{form}");
    assert_eq!(text("traceparent"), TRACE);
    assert!(text("time").starts_with(&event.occurred_at.to_string()[..10]), "{taken}");
    assert_eq!(text("sequence").len(), if with_relay { 30 } else { 0 }, "{taken}");
}

async fn public_libraries_take_what_is_sent(with_relay: bool) {
    let mut env = set_up().await;
    if with_relay {
        let names = r#"{"source":"/shop/{aggregate_type}","type":"com.example.{event_type}"}"#;
        env.set("TAILPOST_RELAY__CLOUDEVENTS", names);
    }
    let receivers = [
        Receiver::start("python", "receiver.py", SECRET).await,
        Receiver::start("node", "receiver.js", SECRET).await,
        Receiver::start("ed25519", "receiver.js", PUBLIC).await,
    ];
    let recorder = Service::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tailpost.toml");
    std::fs::write(&file, configuration(&receivers, &recorder)).expect("write");
    env.set("TAILPOST_CONFIG", file.to_str().expect("Unicode"));
    let _relay = env.relay();
    let inbox = env.spawn(&["inbox", "run"]);
    let events = awkward();
    commit(&env, &events).await;
    for receiver in &receivers {
        for form in FORMS {
            let consumer = format!("{}-{form}", receiver.name);
            let count = async || receiver.taken(&consumer).len() == events.len();
            until(DEADLINE, &format!("{consumer} has all: {}", inbox.log()), count).await;
            let taken = receiver.taken(&consumer);
            for event in &events {
                check(event, form, &taken[&event.id.to_string()], with_relay);
            }
            let mut in_order: Vec<_> = events.iter().map(|it| &taken[&it.id.to_string()]).collect();
            in_order.sort_by_key(|it| it["sequence"].as_str().unwrap_or_default().to_owned());
            let sorted: Vec<_> = in_order.iter().map(|it| it["id"].clone()).collect();
            let committed: Vec<_> = events.iter().map(|it| json!(it.id)).collect();
            assert_eq!(sorted, committed, "a sequence compares as text");
        }
    }
    if with_relay {
        let (told, _) = env.ends_with(0, &["verify"]).await;
        assert!(told.contains('5'), "{told}");
    }
    recorder.wait_calls(FORMS.len() * events.len()).await;
    for call in recorder.calls().iter().filter(|it| it.header("aggregate-id") == "o-1") {
        for receiver in &receivers {
            refuses_what_was_changed(receiver, call).await;
        }
    }
}

async fn refuses_what_was_changed(receiver: &Receiver, call: &Call) {
    let lines =
        call.headers.iter().filter(|(name, _)| !name.as_str().starts_with("content-length"));
    let headers: BTreeMap<_, _> = lines
        .map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()))
        .collect();
    assert_eq!(receiver.status(&headers, &call.payload).await, 204, "{}", receiver.name);
    let changed = call.payload.replace("1.5", "1.6");
    assert_eq!(receiver.status(&headers, &changed).await, 401, "{}: another body", receiver.name);
    for (name, value) in [
        ("webhook-id", "another"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ] {
        let mut headers = headers.clone();
        headers.insert(name.into(), value.into());
        let status = receiver.status(&headers, &call.payload).await;
        assert_eq!(status, 401, "{}: another {name}", receiver.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn public_libraries_take_what_is_sent_and_refuse_what_was_changed() {
    public_libraries_take_what_is_sent(false).await;
}

/// What the relay says of an event is what a service gets.
#[tokio::test(flavor = "multi_thread")]
async fn public_libraries_take_the_attributes_that_the_relay_adds() {
    public_libraries_take_what_is_sent(true).await;
}

/// Other programs go by these. Who has set `inbox.proxy` knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_of_the_environment_is_named_and_not_used() {
    let mut env = set_up().await;
    for name in ["HTTPS_PROXY", "http_proxy"] {
        env.set(name, "http://127.0.0.1:9");
    }
    let _relay = env.relay();
    let service = Service::start().await;
    let args = service.args();
    let run = |env: &TestEnv| {
        let inbox = env.spawn(&args.each_ref().map(String::as_str));
        inbox.announce("");
        inbox
    };
    let inbox = run(&env);
    env.insert(5).await;
    wait_processed(&env, 5).await;
    let named = "HTTPS_PROXY is not used: set inbox.proxy";
    assert_eq!(inbox.log().matches(named).count(), 1, "{}", inbox.log());
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());

    env.set("TAILPOST_INBOX__PROXY", "http://127.0.0.1:9");
    let inbox = run(&env);
    env.insert(1).await;
    let records = "SELECT count(*) FROM inbox_messages";
    until(DEADLINE, "it is tried", async || env.query::<i64>(records).await == 6).await;
    assert!(!inbox.log().contains("is not used"), "{}", inbox.log());
}
