//! Settings that would let an event have a second effect are refused.

use async_nats::jetstream::stream;
use std::time::Duration;
use support::{TestEnv, TestEnvOptions};

use super::env;

/// A stream, and the tables of an inbox.
async fn with_max_age(max_age: Option<Duration>) -> TestEnv {
    let env = TestEnv::with(TestEnvOptions::default()).await;
    let config = stream::Config {
        name: "OUTBOX".into(),
        subjects: vec!["outbox.>".into()],
        max_age: max_age.unwrap_or_default(),
        ..stream::Config::default()
    };
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.create_stream(config).await.expect("create the stream");
    env.ends_with(0, &["inbox", "setup"]).await;
    env
}

const RUN: [&str; 6] =
    ["inbox", "run", "--consumer", "billing", "--handler", "http://127.0.0.1:9/events"];

/// An inbox does not forget before its stream does.
// proves: G-RET-5
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_that_forgets_before_its_stream_is_refused() {
    let day = Duration::from_hours(24);
    for (max_age, keep, told) in [
        (None, "7d", ["604800s", "has no max_age"]),
        (Some(8 * day), "7d", ["604800s", "691200s (max_age)"]),
        (Some(7 * day), "7d", ["604800s", "a lease, 30s"]),
    ] {
        let mut env = with_max_age(max_age).await;
        env.set("TAILPOST_INBOX__RETENTION", keep);
        let config = tempfile_with("[inbox.billing]\nhandler = \"http://127.0.0.1:9/\"\n");
        env.set("TAILPOST_CONFIG", config.path().to_str().expect("Unicode"));
        for args in [&RUN[..], &["maintain"]] {
            let (_, said) = env.ends_with(78, args).await;
            for text in told {
                assert!(said.contains(text), "{args:?}: {said}");
            }
            assert!(said.contains("inbox.retention = \"off\""), "{said}");
        }
    }
}

fn tempfile_with(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("write the file");
    file
}

/// Rows that a producer may insert again within the duplicate window stay.
// proves: G-RET-5
#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_forgets_before_the_broker_is_refused() {
    let mut env = env().await;
    env.set("TAILPOST_RETENTION__PUBLISHED", "30s");
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "1m");
    for command in ["relay", "maintain", "setup"] {
        let (_, said) = env.ends_with(78, &[command]).await;
        assert!(
            said.contains("30s is shorter than stream.duplicate_window, which is 60s"),
            "{said}"
        );
    }
}
