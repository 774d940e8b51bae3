//! What is wrong with the broker and the stream.

use std::time::Duration;

use async_nats::jetstream::stream::{
    Config, DiscardPolicy, PersistenceMode, RetentionPolicy, Source, StorageType, SubjectTransform,
};
use support::{TestEnv, TestEnvOptions};

use super::clinic::Step::{Delete, Do, Edit, Replace, Set, Sql, Tailpost};
use super::clinic::{Clinic, Fault, Step};

fn stream() -> Config {
    Config { name: "OUTBOX".into(), subjects: vec!["outbox.>".into()], ..Config::default() }
}

/// Back to the stream as `setup` makes it.
const ANEW: &[Step] = &[
    Set("TAILPOST_STREAM__NAME", ""),
    Delete("OUTBOX"),
    Delete("OUTBOX_NEW"),
    Tailpost(&["setup"]),
];

const MOVED: &[&str] = &[
    "nats stream edit OUTBOX --subjects 'retired.OUTBOX'",
    "stream.name = \"OUTBOX_NEW\"",
    "tailpost setup",
];

const FAULTS: &[Fault] = &[
    Fault::new(
        "nats-reachable",
        "error",
        &[Set("NATS_URL", "nats://127.0.0.1:1")],
        &["check that a NATS server runs at that address"],
    )
    .by_hand(&[Do(|clinic| Box::pin(find_nats(clinic)))]),
    Fault::new("stream-exists", "error", &[Delete("OUTBOX")], &["tailpost setup"]),
    Fault::new(
        "stream-subjects",
        "error",
        &[Edit(|it| it.subjects = vec!["outbox.order.*".into()])],
        &["nats stream edit OUTBOX --subjects 'outbox.*.*'"],
    ),
    Fault::new(
        "stream-acks",
        "error",
        &[Edit(|it| it.no_ack = true)],
        &["nats stream edit OUTBOX --ack"],
    ),
    Fault::new(
        "stream-duplicate-window",
        "warning",
        &[Edit(|it| it.duplicate_window = Duration::from_secs(1))],
        &["nats stream edit OUTBOX --dupe-window 120s"],
    ),
    Fault::new(
        "stream-discard",
        "warning",
        &[Edit(|it| (it.max_messages, it.discard) = (1_000, DiscardPolicy::Old))],
        &["nats stream edit OUTBOX --discard new"],
    ),
    Fault::new(
        "stream-per-subject",
        "warning",
        &[Edit(|it| it.max_messages_per_subject = 1_000)],
        &["nats stream edit OUTBOX --max-msgs-per-subject=-1"],
    ),
    Fault::new(
        "stream-rollup",
        "warning",
        &[Edit(|it| it.allow_rollup = true)],
        &["nats stream edit OUTBOX --no-allow-rollup"],
    ),
    Fault::new(
        "stream-transform",
        "warning",
        &[Edit(|it| {
            let (source, destination) = ("outbox.>".into(), "kept.>".into());
            it.subject_transform = Some(SubjectTransform { source, destination });
        })],
        &["name the subjects under which events are stored*"],
    )
    .by_hand(&[Edit(|it| it.subject_transform = None)]),
    Fault::new(
        "stream-batches",
        "warning",
        &[Edit(|it| {
            it.allow_batch_publish = false;
            it.metadata.remove("made-by");
        })],
        &["nats stream edit OUTBOX --allow-batch"],
    ),
    Fault::new(
        "stream-max-age",
        "warning",
        &[Edit(|it| it.max_age = Duration::from_hours(1))],
        &["nats stream edit OUTBOX --max-age=0s"],
    ),
    Fault::new(
        "stream-message-size",
        "error",
        &[
            Sql(&[
                "SELECT outbox_emit('order', 'o-1', 'OrderPlaced', '{\"text\": \"0123456789\"}')",
            ]),
            Edit(|it| it.max_message_size = 10),
        ],
        &["nats stream edit OUTBOX --max-msg-size=-1"],
    )
    .after(&[Tailpost(&["relay", "--once"])]),
    Fault::new(
        "stream-room",
        "warning",
        &[Edit(|it| it.max_messages = 1)],
        &["nats stream edit OUTBOX --max-msgs=10"],
    ),
    // Ten times the limit would be less than the stream holds.
    Fault::new(
        "stream-room",
        "warning",
        &[
            Sql(&["SELECT outbox_emit('order', 'o-1', 'Placed', '{}')"]),
            Tailpost(&["relay", "--once"]),
            Edit(|it| (it.max_bytes, it.discard) = (1, DiscardPolicy::New)),
        ],
        &["nats stream edit OUTBOX --max-bytes=*"],
    )
    .after(&[Delete("OUTBOX"), Tailpost(&["setup"])]),
    Fault::new(
        "stream-overlap",
        "error",
        &[Delete("OUTBOX"), Do(|clinic| Box::pin(make_other(clinic)))],
        &["nats stream edit OTHER --subjects 'other.x'"],
    )
    .after(&[Delete("OTHER"), Tailpost(&["setup"])])
    .with(&["--pre"]),
    Fault::new(
        "stream-storage",
        "error",
        &[Replace(|| Config { storage: StorageType::Memory, ..stream() })],
        MOVED,
    )
    .after(ANEW),
    Fault::new(
        "stream-retention",
        "error",
        &[Replace(|| Config { retention: RetentionPolicy::WorkQueue, ..stream() })],
        MOVED,
    )
    .after(ANEW),
    Fault::new(
        "stream-retention",
        "error",
        &[Edit(|it| it.retention = RetentionPolicy::Interest)],
        &["nats stream edit OUTBOX --retention limits"],
    ),
    Fault::new(
        "stream-interest",
        "warning",
        &[
            Set("TAILPOST_RELAY__MODE", "keyed"),
            Replace(|| Config { retention: RetentionPolicy::Interest, ..stream() }),
        ],
        &["create every consumer before the first event is published, or use retention by limits"],
    )
    .by_hand(&[Replace(stream)])
    .after(&[Set("TAILPOST_RELAY__MODE", ""), Delete("OUTBOX"), Tailpost(&["setup"])]),
    Fault::new(
        "stream-partitions",
        "error",
        &[Edit(|it| _ = it.metadata.insert("partitions".into(), "16".into()))],
        &["set relay.partitions = 16, or stream.name to a new stream*"],
    )
    .by_hand(&[Edit(|it| _ = it.metadata.remove("partitions"))]),
    Fault::new(
        "stream-counter",
        "error",
        &[Replace(|| Config { allow_message_counter: true, ..stream() })],
        MOVED,
    )
    .after(ANEW),
    Fault::new(
        "stream-persistence",
        "error",
        &[Replace(|| Config { persist_mode: Some(PersistenceMode::Async), ..stream() })],
        MOVED,
    )
    .after(ANEW),
    Fault::new(
        "stream-mirror",
        "error",
        &[
            Do(|clinic| Box::pin(make_other(clinic))),
            Replace(|| {
                let origin = Source { name: "OTHER".into(), ..Source::default() };
                Config { mirror: Some(origin), subjects: vec![], ..stream() }
            }),
            Delete("OTHER"),
        ],
        &["stream.name = \"OUTBOX_NEW\"", "tailpost setup"],
    )
    .after(ANEW),
    Fault::new(
        "stream-sources",
        "error",
        &[Replace(|| {
            let origin = Source { name: "ORIGIN".into(), ..Source::default() };
            Config { sources: Some(vec![origin]), ..stream() }
        })],
        &["relay.mode = \"keyed\""],
    )
    .after(&[Set("TAILPOST_RELAY__MODE", ""), Delete("OUTBOX"), Tailpost(&["setup"])]),
    Fault::new(
        "stream-seal",
        "error",
        &[Replace(|| Config { sealed: true, ..stream() })],
        &[
            "nats stream backup OUTBOX ./OUTBOX.backup",
            "nats stream rm OUTBOX --force",
            "tailpost setup",
        ],
    ),
];

async fn find_nats(clinic: &mut Clinic) {
    let url = clinic.env.nats.url();
    clinic.env.set("NATS_URL", &url);
}

async fn make_other(clinic: &mut Clinic) {
    let jetstream = clinic.env.nats.jetstream().await.expect("connect to NATS");
    let _ = jetstream.delete_stream("OUTBOX").await;
    let subjects = vec!["outbox.>".into(), "other.x".into()];
    let other = Config { name: "OTHER".into(), subjects, ..Config::default() };
    jetstream.create_stream(other).await.expect("create a stream");
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_broker_and_stream_is_found_and_mended() {
    let env = TestEnv::with(TestEnvOptions::default()).await;
    Clinic::open(env).await.treat(FAULTS).await;
}
