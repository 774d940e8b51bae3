//! What the `nats` command does with the options that remedies have. The command itself is not there
//! where tests run.

use std::time::Duration;

use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use serde_json::{Value, json};
use support::TestEnv;

/// Runs a command of `nats stream` or `nats consumer`.
pub(crate) async fn run(env: &TestEnv, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    match words.as_slice() {
        ["nats", "stream", "edit", name, options @ ..] => {
            let apply = |config: &mut Config| options_into(config, options);
            edit(env, name, apply).await;
        }
        ["nats", "stream", "rm", name, "--force"] => {
            jetstream.delete_stream(name).await.expect("delete a stream");
        }
        // Whoever wants the messages makes one.
        ["nats", "stream", "backup", _, _] => {}
        ["nats", "consumer", "rm", stream, consumer, "--force"] => {
            let stream = jetstream.get_stream(stream).await.expect("look up the stream");
            stream.delete_consumer(consumer).await.expect("delete a consumer");
        }
        ["nats", "consumer", "resume", _, consumer] => pause(env, consumer, None).await,
        _ => panic!("no such command here: {command}"),
    }
}

/// Asks the broker to pause a consumer of `OUTBOX`, or to let it go on.
pub(crate) async fn pause(env: &TestEnv, consumer: &str, until: Option<&str>) {
    let request = until.map_or_else(|| json!({}), |it| json!({ "pause_until": it }));
    let context = env.nats.jetstream().await.expect("connect to NATS");
    let asked = context.request(format!("CONSUMER.PAUSE.OUTBOX.{consumer}"), &request).await;
    let answer: Response<Value> = asked.expect("an answer");
    assert!(matches!(answer, Response::Ok(_)), "{answer:?}");
}

/// Changes the configuration of a stream.
pub(crate) async fn edit(env: &TestEnv, name: &str, change: impl FnOnce(&mut Config)) {
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let stream = jetstream.get_stream(name).await.expect("look up the stream");
    let mut config = stream.cached_info().config.clone();
    change(&mut config);
    jetstream.update_stream(config).await.expect("change the stream");
}

fn options_into(config: &mut Config, options: &[&str]) {
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (*option, None),
        };
        let mut value = || value.or_else(|| options.next().copied()).expect("a value");
        match name {
            "--ack" => config.no_ack = false,
            "--no-allow-rollup" => config.allow_rollup = false,
            "--allow-batch" => config.allow_batch_publish = true,
            "--subjects" => {
                let subjects = value().trim_matches('\'').split(',');
                config.subjects = subjects.map(str::to_owned).collect();
            }
            "--retention" => config.retention = retention(value()),
            "--metadata" => {
                let (name, value) = value().split_once('=').expect("a value");
                config.metadata.insert(name.into(), value.into());
            }
            "--replicas" => config.num_replicas = value().parse().expect("a number"),
            "--dupe-window" => config.duplicate_window = seconds(value()),
            "--max-age" => config.max_age = seconds(value()),
            "--max-msgs" => config.max_messages = value().parse().expect("a number"),
            "--max-msgs-per-subject" => {
                config.max_messages_per_subject = value().parse().expect("a number");
            }
            "--max-bytes" => config.max_bytes = value().parse().expect("a number"),
            "--max-msg-size" => config.max_message_size = value().parse().expect("a number"),
            "--discard" => {
                config.discard = match value() {
                    "new" => DiscardPolicy::New,
                    other => panic!("--discard {other}"),
                }
            }
            other => panic!("no such option here: {other}"),
        }
    }
}

fn retention(name: &str) -> RetentionPolicy {
    match name {
        "limits" => RetentionPolicy::Limits,
        other => panic!("--retention {other}"),
    }
}

fn seconds(text: &str) -> Duration {
    let number = text.strip_suffix('s').expect("seconds");
    Duration::from_secs_f64(number.parse().expect("a number"))
}
