//! Every configuration that JetStream takes, drawn by a seed: events pass once and in order, or the
//! configuration is named.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::stream::{
    Compression, Config, ConsumerLimits, DiscardPolicy, PersistenceMode, Republish,
    RetentionPolicy, Source, StorageType, SubjectTransform,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use crate::inbox::http::wait_processed;
use crate::inbox::service::Service;

/// Events before the stream is changed and the relay dies, and as many behind that.
const EVENTS: i32 = 40;

type Change = fn(&mut Config);

/// What costs no event.
const HARMLESS: &[Change] = &[
    |it| it.discard = DiscardPolicy::New,
    |it| it.max_messages = 100_000,
    |it| it.max_bytes = 100 << 20,
    |it| it.max_age = Duration::from_hours(1),
    |it| it.max_message_size = 100_000,
    |it| it.compression = Some(Compression::S2),
    |it| it.deny_delete = true,
    |it| it.deny_purge = true,
    |it| it.allow_direct = !it.allow_direct,
    |it| it.allow_rollup = true,
    |it| it.allow_batch_publish = !it.allow_batch_publish,
    |it| it.allow_atomic_publish = true,
    |it| it.allow_message_ttl = true,
    |it| it.allow_message_schedules = true,
    |it| it.duplicate_window = Duration::from_secs(1),
    |it| it.first_sequence = Some(1_000),
    |it| it.description = Some("somebody's".into()),
    |it| {
        it.allow_message_ttl = true;
        it.subject_delete_marker_ttl = Some(Duration::from_secs(1));
    },
    |it| {
        let (source, destination) = ("outbox.>".into(), "heard.>".into());
        it.republish = Some(Republish { source, destination, headers_only: false });
    },
    |it| {
        let (source, destination) = ("outbox.>".into(), "kept.>".into());
        it.subject_transform = Some(SubjectTransform { source, destination });
    },
    |it| {
        let limits = ConsumerLimits { max_ack_pending: 50, ..ConsumerLimits::default() };
        it.consumer_limits = Some(limits);
    },
    |it| it.max_consumers = 1,
];

/// What is refused, or named, in one mode or another.
const HARMFUL: &[Change] = &[
    |it| it.storage = StorageType::Memory,
    |it| it.no_ack = true,
    |it| it.retention = RetentionPolicy::WorkQueue,
    |it| it.retention = RetentionPolicy::Interest,
    |it| it.max_messages_per_subject = 5,
    |it| {
        it.discard = DiscardPolicy::New;
        (it.max_messages_per_subject, it.discard_new_per_subject) = (5, true);
    },
    |it| it.subjects = vec!["outbox.order.*".into()],
    |it| it.allow_message_counter = true,
    |it| it.persist_mode = Some(PersistenceMode::Async),
    |it| {
        it.subjects = Vec::new();
        it.mirror = Some(Source { name: "ORIGIN".into(), ..Source::default() });
    },
    |it| it.sources = Some(vec![Source { name: "ORIGIN".into(), ..Source::default() }]),
];

/// As a running relay may meet them.
const WHILE_RUNNING: &[Change] = &[
    |_| {},
    |it| it.allow_batch_publish = false,
    |it| it.max_messages = 100_000,
    |it| it.duplicate_window = Duration::from_millis(100),
    |it| it.allow_direct = !it.allow_direct,
    |it| {
        let (source, destination) = ("outbox.>".into(), "moved.>".into());
        it.subject_transform = Some(SubjectTransform { source, destination });
    },
    |it| it.deny_purge = true,
];

fn draw(random: &mut StdRng) -> Config {
    let subjects = vec!["outbox.>".into()];
    let name = "OUTBOX".into();
    let mut config = Config { name, subjects, allow_batch_publish: true, ..Config::default() };
    for _ in 0..random.random_range(1..5) {
        HARMLESS.choose(random).expect("some")(&mut config);
    }
    if random.random_bool(0.3) {
        HARMFUL.choose(random).expect("some")(&mut config);
    }
    config
}

/// A stream as drawn, whatever has to be drawn again because the broker refuses it.
async fn create(env: &TestEnv, random: &mut StdRng) -> Config {
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let subjects = vec!["origin.>".into()];
    let origin = Config { name: "ORIGIN".into(), subjects, ..Config::default() };
    jetstream.create_stream(origin).await.expect("create a stream");
    loop {
        let config = draw(random);
        if jetstream.create_stream(config.clone()).await.is_ok() {
            return config;
        }
    }
}

/// Not every change fits to every configuration.
async fn change_if_taken(env: &TestEnv, change: &Change) {
    let mut config = env.stream().await.cached_info().config.clone();
    change(&mut config);
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let changed = jetstream.update_stream(config).await;
    eprintln!("changed: {:?}", changed.map(|_| ()));
}

/// The service got each event once, and each aggregate's in their order.
fn assert_handled(service: &Service, ids: &[Uuid]) {
    let mut of: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
    for call in service.calls() {
        of.entry(call.header("aggregate-id").to_owned()).or_default().push(call.id);
    }
    let called: usize = of.values().map(Vec::len).sum();
    assert_eq!(called, ids.len(), "events that were handled");
    for (aggregate, called) in of {
        let committed: Vec<Uuid> = ids.iter().copied().filter(|it| called.contains(it)).collect();
        assert_eq!(called, committed, "events of {aggregate}");
    }
}

/// Says what became of it.
async fn plays(seed: u64) -> &'static str {
    let mut random = StdRng::seed_from_u64(seed);
    let mut env = TestEnv::new().await;
    env.set(
        "TAILPOST_RELAY__MODE",
        ["fenced", "fenced", "keyed", "poll"].choose(&mut random).expect("some"),
    );
    env.set("TAILPOST_INBOX__RETENTION", "off");
    let config = create(&env, &mut random).await;
    eprintln!("seed {seed}: {config:?}");
    let setup = env.spawn(&["setup"]);
    setup.announce("");
    if !setup.wait_exit(DEADLINE).await.success() {
        assert!(setup.log().contains("OUTBOX"), "{}", setup.log());
        let relay = env.relay();
        relay.announce("");
        assert!(
            !relay.wait_exit(DEADLINE).await.success(),
            "set-up refuses, and the relay does not"
        );
        return "refused";
    }
    // Of these an inbox gets what it is in time for.
    let named = ["max_msgs_per_subject", "retention by interest"];
    if named.iter().any(|it| setup.stdout().contains(it)) {
        return "named";
    }
    env.ends_with(0, &["inbox", "setup"]).await;
    let relay = env.relay();
    relay.announce("");
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    inbox.announce("");
    let mut ids = env.insert(EVENTS).await;
    let change = WHILE_RUNNING.choose(&mut random).expect("some");
    change_if_taken(&env, change).await;
    relay.kill9().await;
    ids.extend(env.insert(EVENTS).await);
    let relay = env.relay();
    relay.announce("");
    env.wait_marked().await;
    wait_processed(&env, i64::try_from(ids.len()).expect("few")).await;
    until(DEADLINE, "all is acknowledged", async || {
        let info = env.stream().await.consumer_info("billing").await;
        info.is_ok_and(|it| it.num_pending == 0 && it.num_ack_pending == 0)
    })
    .await;
    assert_handled(&service, &ids);
    if config.retention == RetentionPolicy::Limits {
        env.ends_with(0, &["verify"]).await;
    }
    "published"
}

mod long {
    use super::*;

    /// `EXAMPLES=n` draws as many, from `REPLAY_SEED` on.
    // proves: G-STREAM-1
    #[tokio::test(flavor = "multi_thread")]
    async fn any_configuration_of_a_stream_costs_nothing_or_is_named() {
        let number = |name: &str, otherwise| {
            std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(otherwise)
        };
        let (first, count) = (number("REPLAY_SEED", 1), number("EXAMPLES", 4));
        let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
        for seed in first..first + count {
            *outcomes.entry(plays(seed).await).or_default() += 1;
        }
        eprintln!("{outcomes:?}");
    }

    /// Nobody is there to read: with retention by interest each event would be removed at once.
    // proves: G-STREAM-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_retention_that_is_changed_under_a_relay_ends_it_by_name() {
        let env = TestEnv::new().await;
        env.setup().await;
        let relay = env.relay();
        env.insert(5).await;
        env.wait_marked().await;
        let jetstream = env.nats.jetstream().await.expect("connect to NATS");
        let mut config = env.stream().await.cached_info().config.clone();
        config.retention = RetentionPolicy::Interest;
        jetstream.update_stream(&config).await.expect("edit the stream");
        relay.announce("the relay ended");
        let ended = relay.wait_exit(DEADLINE).await;
        let log = relay.log();
        assert!(!ended.success() && log.contains("needs retention by limits"), "{log}");
    }
}
