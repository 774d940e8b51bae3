//! Keyed mode, for a stream that has other writers: nothing is lost or doubled, and each aggregate
//! keeps its order.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream::{Config as Stream, Placement};
use lab::{Nats, NatsOptions};
use support::{Stored, TestEnv, TestEnvOptions};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;
use uuid::Uuid;

const AGGREGATES: usize = 20;
const EVENTS: usize = 600;

/// Publishes into the stream, under a subject that the relay could use as well, until aborted.
fn other_writer(client: Client) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(1));
        loop {
            pace.tick().await;
            let sent = client.publish("outbox.order.OrderPlaced", "of somebody else".into()).await;
            sent.expect("publish");
        }
    })
}

/// Inserts the events of several aggregates in turn, in transactions of three.
async fn insert(env: &TestEnv) -> Vec<(Uuid, String)> {
    let client = env.client().await;
    let mut events = Vec::new();
    while events.len() < EVENTS {
        let mut script = String::from("BEGIN;");
        for _ in 0..3 {
            let (id, aggregate) = (Uuid::new_v4(), format!("o-{}", events.len() % AGGREGATES));
            script += &format!(
                "SELECT outbox_emit('order', '{aggregate}', 'Placed', '{{}}', id => '{id}');"
            );
            events.push((id, aggregate));
        }
        client.batch_execute(&(script + "COMMIT")).await.expect("insert events");
    }
    events
}

fn by_aggregate(events: impl Iterator<Item = (Uuid, String)>) -> HashMap<String, Vec<Uuid>> {
    let mut aggregates: HashMap<String, Vec<Uuid>> = HashMap::new();
    for (id, aggregate) in events {
        aggregates.entry(aggregate).or_default().push(id);
    }
    aggregates
}

fn ours(stored: Vec<Stored>) -> impl Iterator<Item = (Uuid, String)> {
    let event = |it: Stored| Some((it.id, it.header("Aggregate-Id")?.to_owned()));
    stored.into_iter().filter_map(event)
}

async fn relay_beside_another_writer(nats: NatsOptions) {
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__MODE", "keyed");
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms"); // the stream's tail has to do the work
    env.setup().await;
    let other = other_writer(env.nats.client().await.expect("connect to NATS"));
    let mut relay = env.relay();
    let mut expected = Vec::new();
    for _ in 0..3 {
        let insert = insert(&env);
        let kill = async {
            // In the middle of it: some are stored, some are not.
            let stored = ours(env.stored().await).count();
            let more = async || ours(env.stored().await).count() > stored + EVENTS / 4;
            support::until(support::DEADLINE, "some events are stored", more).await;
            relay.kill9().await;
        };
        let (inserted, ()) = tokio::join!(insert, kill);
        expected.extend(inserted);
        relay = env.relay();
    }
    env.wait_marked().await;
    other.abort();

    let stored = env.stored().await;
    assert!(stored.iter().any(|it| it.payload == "of somebody else"));
    let stored: Vec<_> = ours(stored).collect();
    assert_eq!(stored.len(), expected.len());
    assert_eq!(by_aggregate(stored.into_iter()), by_aggregate(expected.into_iter()));
}

/// Fenced mode is configured, and an older broker has no batches.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_broker_without_batches_a_relay_works_in_keyed_mode_by_itself() {
    let nats = NatsOptions { version: Some("2.11.11".into()), ..NatsOptions::default() };
    let env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    let relay = env.relay();
    env.insert(100).await;
    env.wait_marked().await;
    let said = "fenced mode needs batches, and nats-server 2.11.11 does not have them";
    relay.wait_log(said).await;
    let (told, _) = env.ends_with(0, &["doctor"]).await;
    assert!(told.contains(said), "{told}");
}

/// It reads no stream that a newer server has written settings of.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_an_older_broker_cannot_read_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("let others in");
    let (link, version) = (folder.path().join("nats-server"), Some("2.11".into()));
    let older = Nats::start(NatsOptions { version, ..NatsOptions::default() }).await;
    let older = older.expect("start an older NATS").binary().to_owned();
    let newer = Nats::start(NatsOptions::default()).await.expect("start NATS").binary().to_owned();
    symlink(&newer, &link).expect("link it");
    let nats = NatsOptions { binary: Some(link.clone()), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    for (binary, code) in [(older, 1), (newer, 0)] {
        env.nats.stop().await.expect("stop NATS");
        fs::remove_file(&link).expect("remove the link");
        symlink(binary, &link).expect("link it");
        env.nats.start_again().await.expect("start NATS");
        let (told, _) = env.ends_with(code, &["doctor", "--only", "stream-exists"]).await;
        let is_named = told.contains("stream is offline: unsupported")
            && told.contains("nats-server 2.11.11 is older than the one that wrote the stream");
        assert_eq!(is_named, code == 1, "{told}");
    }
}

/// W8: such a broker takes what an event says for its own headers.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_misreads_headers_is_refused_by_name() {
    let nats = NatsOptions { version: Some("2.10.26".into()), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    let inbox = inbox();
    env.set("TAILPOST_CONFIG", inbox.path().to_str().expect("Unicode"));
    let hint = "upgrade nats-server to 2.12.2";
    let (_, said) = env.ends_with(4, &["setup"]).await;
    assert!(said.contains("2.10.26") && said.contains(hint), "{said}");
    let (told, _) = env.ends_with(1, &["doctor"]).await;
    assert!(told.contains("2.10.26") && told.contains(hint), "{told}");
    env.nats.jetstream().await.unwrap().create_stream(stream()).await.unwrap();
    env.ends_with(0, &["inbox", "setup"]).await;
    for command in [&["relay"][..], &["inbox", "run"]] {
        let (_, said) = env.ends_with(4, command).await;
        assert!(said.contains("2.10.26") && said.contains(hint), "{command:?}: {said}");
    }
}

/// The configuration of an inbox.
fn inbox() -> NamedTempFile {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
    let config = "[inbox.billing]\nhandler = \"http://127.0.0.1:9/\"\n";
    std::fs::write(&file, config).expect("write the configuration");
    file
}

fn stream() -> Stream {
    Stream { name: "OUTBOX".into(), subjects: vec!["outbox.>".into()], ..Stream::default() }
}

mod long {
    use super::*;

    /// While a cluster is upgraded, the stream's leader may be older than the server that one is connected to.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_leader_that_misreads_headers_is_refused_by_name() {
        let server = |version: Option<&str>, tag: &str| NatsOptions {
            version: version.map(str::to_owned),
            config: vec![format!("server_tags: [{tag}]")],
            ..NatsOptions::default()
        };
        let servers = [server(None, "new"), server(None, "new"), server(Some("2.10.26"), "old")];
        let mut env = TestEnv::replicated_by(servers).await;
        let url = env.nats.node(0).url();
        env.set("NATS_URL", &url);
        env.set("TAILPOST_STREAM__REPLICAS", "1");
        let inbox = inbox();
        env.set("TAILPOST_CONFIG", inbox.path().to_str().expect("Unicode"));
        let jetstream = env.nats.node(0).jetstream().await.expect("connect");
        let place = |tag: &str| Some(Placement { tags: vec![tag.into()], ..Placement::default() });
        let wanted = Stream { placement: place("old"), ..stream() };
        jetstream.create_stream(wanted).await.expect("a stream");
        let hint = "upgrade nats-server to 2.12.2";
        let is_named = |said: &str| said.contains("before 2.11") && said.contains(hint);
        let (_, said) = env.ends_with(4, &["setup"]).await;
        assert!(is_named(&said), "{said}");
        let (told, _) = env.ends_with(1, &["doctor", "--only", "stream-leader"]).await;
        assert!(is_named(&told), "{told}");
        env.ends_with(0, &["inbox", "setup"]).await;
        for command in [&["relay"][..], &["inbox", "run"]] {
            let (_, said) = env.ends_with(4, command).await;
            assert!(is_named(&said), "{command:?}: {said}");
        }
        jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
        let wanted = Stream { placement: place("new"), ..stream() };
        jetstream.create_stream(wanted).await.expect("a stream");
        env.ends_with(0, &["setup"]).await;
        env.ends_with(0, &["doctor", "--only", "stream-leader"]).await;
    }

    // proves: G-ORDER-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_keyed_relay_beside_another_writer_keeps_each_aggregates_order() {
        relay_beside_another_writer(NatsOptions::default()).await;
    }

    /// The oldest broker that is not refused, and fenced mode configured.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_keyed_relay_works_with_an_old_broker() {
        let version = Some("2.11.11".into());
        relay_beside_another_writer(NatsOptions { version, ..NatsOptions::default() }).await;
    }
}
