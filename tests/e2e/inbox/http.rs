//! `tailpost inbox run`: each event has its effect in an HTTP service.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::PullConsumer;
use futures_util::StreamExt;
use lab::Port;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, get, until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::service::{Service, emit};

/// Servers with an outbox and an inbox.
pub(crate) async fn set_up() -> TestEnv {
    set_up_with(TestEnvOptions::default()).await
}

/// The same, with servers that are not the default.
pub(crate) async fn set_up_with(servers: TestEnvOptions) -> TestEnv {
    let mut env = TestEnv::with(servers).await;
    env.set("TAILPOST_INBOX__BACKOFF", "200ms");
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    env
}

/// The consumer is in a file of settings, which is there for as long as the folder.
pub(crate) fn configure(env: &mut TestEnv) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tailpost.toml");
    std::fs::write(&file, "[inbox.billing]\nhandler = \"http://127.0.0.1:9/\"\n").expect("write");
    env.set("TAILPOST_CONFIG", file.to_str().expect("Unicode"));
    folder
}

/// As [`set_up`], with these settings more; the stream and the consumer `billing` are divided.
pub(super) async fn divide(partitions: &str, settings: &[(&str, &str)]) -> (TestEnv, TempDir) {
    let mut env = TestEnv::new().await;
    let of_all = [
        ("RELAY__PARTITIONS", partitions),
        ("RELAY__SUBJECT", "{partition}.outbox.{aggregate_type}.{event_type}"),
        ("INBOX__PARTITIONS", partitions),
    ];
    for (name, value) in of_all.iter().chain(settings) {
        env.set(&format!("TAILPOST_{name}"), value);
    }
    let file = configure(&mut env);
    env.setup().await;
    let (made, _) = env.ends_with(0, &["inbox", "setup"]).await;
    assert!(made.contains("billing"), "{made}");
    (env, file)
}

fn run(env: &TestEnv, service: &Service) -> Relay {
    env.spawn(&service.args().each_ref().map(String::as_str))
}

/// How many events have had their effect, by the record.
pub(crate) async fn processed(env: &TestEnv) -> i64 {
    env.query("SELECT count(*) FROM inbox_messages WHERE status = 'PROCESSED'").await
}

/// Waits until so many events have had their effect.
pub(crate) async fn wait_processed(env: &TestEnv, count: i64) {
    let what = format!("{count} events are processed");
    until(DEADLINE, &what, async || processed(env).await >= count).await;
}

/// The whole way, from the row to the call.
// proves: G-EFFECT-2
#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_handed_to_the_service_once_and_in_the_order_of_its_aggregate() {
    let env = set_up().await;
    let _relay = env.relay();
    let service = Service::start().await;
    let inbox = run(&env, &service);
    let ids = env.insert(200).await;
    wait_processed(&env, 200).await;
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());

    let calls = service.calls();
    assert_eq!(calls.len(), 200);
    let called: BTreeSet<_> = calls.iter().map(|it| it.id).collect();
    assert_eq!(called, ids.iter().copied().collect());
    for aggregate in 0..10 {
        let of =
            |call: &&super::service::Call| call.header("aggregate-id") == format!("o-{aggregate}");
        let order: Vec<Uuid> = calls.iter().filter(of).map(|it| it.id).collect();
        let committed: Vec<Uuid> = ids.iter().copied().filter(|it| order.contains(it)).collect();
        assert_eq!(order, committed, "events of o-{aggregate}");
    }
    let first = &calls[0];
    assert_eq!(first.header("event-type"), "OrderPlaced");
    assert_eq!(first.header("tailpost-consumer"), "billing");
    assert_eq!(first.header("tailpost-attempt"), "1");
    assert!(first.payload.starts_with("{\"n\": "), "{}", first.payload);
}

/// What fails is tried again, what succeeds is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_in_trouble_is_called_again_and_only_for_what_failed() {
    let env = set_up().await;
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer_to("sick", 500);
    let _inbox = run(&env, &service);
    let (sick, well) = (emit(&env, "sick", "{}").await, emit(&env, "well", "{}").await);
    until(DEADLINE, "the sick event was tried twice", async || service.calls_of(sick) >= 2).await;
    wait_processed(&env, 1).await;
    service.answer_to("sick", 200);
    wait_processed(&env, 2).await;
    let attempts: Vec<_> = service
        .calls()
        .iter()
        .filter(|it| it.id == sick)
        .map(|it| it.header("tailpost-attempt").to_owned())
        .collect();
    let expected: Vec<_> = (1..=attempts.len()).map(|it| it.to_string()).collect();
    assert_eq!(attempts, expected);
    assert_eq!(service.calls_of(well), 1);
}

/// 409 says that the effect is there.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_service_knows_is_done() {
    let env = set_up().await;
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer(409);
    let _inbox = run(&env, &service);
    let id = emit(&env, "o-1", "{}").await;
    wait_processed(&env, 1).await;
    assert_eq!(service.calls_of(id), 1);
    let outcome: String = env.query("SELECT outcome FROM inbox_messages").await;
    assert_eq!(outcome, "already_processed");
}

/// A service that is set up wrong does not turn a backlog into dead letters.
#[tokio::test(flavor = "multi_thread")]
async fn a_misconfigured_service_pauses_the_consumer_until_it_is_mended() {
    let mut env = set_up().await;
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer(404);
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
    let inbox = run(&env, &service);
    env.insert(100).await;
    let mut told = String::new();
    until(DEADLINE, "the consumer is paused", async || {
        told = get(admin.addr(), "/readyz").await.unwrap_or_default();
        told.contains("\"state\":\"paused\"")
    })
    .await;
    // Anybody may ask: who is not known is not told what the service answers.
    let reason = "the handler is not set up right";
    assert!(told.starts_with("HTTP/1.1 503") && told.contains(reason), "{told}");
    let metrics = get(admin.addr(), "/metrics").await.expect("an answer");
    assert!(
        metrics.contains("tailpost_inbox_active{env=\"default\",consumer=\"billing\"} 0.0"),
        "{metrics}"
    );
    assert!(service.calls().len() < 100, "{} calls", service.calls().len());
    service.answer(200);
    wait_processed(&env, 100).await;
    let dead: i64 = env.query("SELECT count(*) FROM inbox_dead_letter").await;
    assert_eq!(dead, 0, "{}", inbox.log());
}

/// Several consumers in one process, from the configuration file.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_of_the_configuration_run_beside_each_other() {
    let env = TestEnv::new().await;
    let (orders, all) = (Service::start().await, Service::start().await);
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("tailpost.toml");
    let config = format!(
        "[inbox.orders]\nhandler = '{}'\nsubjects = ['outbox.order.>']\n[inbox.all]\nhandler = '{}'\n",
        orders.url(),
        all.url()
    );
    std::fs::write(&file, config).expect("write the configuration");
    let file = file.to_str().expect("UTF-8");
    env.ends_with(0, &["setup", "--config", file]).await;
    let _relay = env.relay();
    let inbox = env.spawn(&["inbox", "run", "--config", file]);
    emit(&env, "o-1", "{}").await;
    env.execute("SELECT outbox_emit('invoice', 'i-1', 'Sent', '{}')").await;
    all.wait_calls(2).await;
    orders.wait_calls(1).await;
    wait_processed(&env, 3).await;
    assert_eq!(orders.calls().len(), 1);
    assert_eq!(orders.calls()[0].header("aggregate-type"), "order");

    let (told, _) = env.ends_with(0, &["status", "--json", "--config", file]).await;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    let names: Vec<_> =
        told["consumers"].as_array().expect("a list").iter().map(|it| it["name"].clone()).collect();
    assert_eq!(names, ["all", "orders"]);
    let (told, _) = env.ends_with(0, &["status", "--config", file]).await;
    assert!(told.contains("consumer       orders"), "{told}");
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());
}

/// DESIGN 11
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_configured_is_asked_for() {
    let env = TestEnv::new().await;
    let (_, said) = env.ends_with(78, &["inbox", "run"]).await;
    assert!(said.contains("no consumer is configured") && said.contains("--consumer"), "{said}");
    let (_, said) = env.ends_with(78, &["inbox", "run", "--consumer", "billing"]).await;
    assert!(said.contains("consumer billing has no handler"), "{said}");
    let args = ["inbox", "run", "--consumer", "billing", "--handler", "billing.example"];
    let (_, said) = env.ends_with(78, &args).await;
    assert!(said.contains("--handler: consumer billing: not a handler's URL"), "{said}");
    env.ends_with(2, &["inbox", "run", "--handler", "http://a"]).await;
    let args = ["inbox", "run", "--consumer", "billing", "--handler", "http://127.0.0.1:1"];
    let (_, said) = env.ends_with(3, &args).await;
    assert!(said.contains("tailpost inbox setup"), "{said}");
}

/// The record says how many attempts there are, not the broker.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_gave_up_on_is_handled_all_the_same() {
    let env = set_up().await;
    let _relay = env.relay();
    let service = Service::start().await;
    let inbox = run(&env, &service);
    emit(&env, "o-1", "{}").await;
    service.wait_calls(1).await;
    // Meanwhile somebody else takes an event from the same consumer, and ends it.
    inbox.pause();
    let stream = env.stream().await;
    let mut consumer: PullConsumer = stream.get_consumer("billing").await.expect("a consumer");
    until(DEADLINE, "its last request is over", async || {
        consumer.info().await.expect("an answer").num_waiting == 0
    })
    .await;
    let id = emit(&env, "o-2", "{}").await;
    env.wait_stored(2).await;
    let mut messages = consumer.fetch().max_messages(1).messages().await.expect("messages");
    let taken = messages.next().await.expect("the event is there").expect("a message");
    taken.double_ack_with(AckKind::Term).await.expect("terminated");
    inbox.resume();
    until(DEADLINE, "it is handled", async || service.calls_of(id) == 1).await;
    wait_processed(&env, 2).await;
}

async fn trusts_a_service(is_ca: IsCa) {
    let mut env = set_up().await;
    let _relay = env.relay();
    let folder = tempfile::tempdir().expect("create a folder");
    let authority = folder.path().join("ca.pem");
    let url = serve_tls(&authority, is_ca).await;
    let args = ["inbox", "run", "--consumer", "billing", "--handler", &url];
    emit(&env, "o-1", "{}").await;
    let inbox = env.spawn(&args); // trusts the system's authorities
    // The service cannot be reached: that is no attempt of the event's.
    let error = "SELECT coalesce(max(reason), '') FROM inbox_roles";
    until(DEADLINE, "the certificate is refused", async || {
        env.query::<String>(error).await.contains("certificate")
    })
    .await;
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());
    env.set("TAILPOST_INBOX__CA", authority.to_str().expect("UTF-8"));
    let _inbox = env.spawn(&args);
    wait_processed(&env, 1).await;
}

/// Says 204 to everything, with a certificate that only `authority` vouches for.
async fn serve_tls(authority: &Path, is_ca: IsCa) -> String {
    let mut own = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    own.is_ca = is_ca;
    let key = KeyPair::generate().expect("a key");
    let own = own.self_signed(&key).expect("a certificate");
    std::fs::write(authority, own.pem()).expect("write the certificate");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports them")
        .with_no_client_auth()
        .with_single_cert(vec![own.der().clone()], key)
        .expect("they belong together");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 8192]).await;
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    format!("https://localhost:{port}/events")
}

mod long {
    use super::*;

    /// A service behind TLS whose authority is named in the configuration.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_service_behind_tls_is_called_if_its_authority_is_trusted() {
        trusts_a_service(IsCa::NoCa).await;
        trusts_a_service(IsCa::Ca(BasicConstraints::Unconstrained)).await;
    }
}
