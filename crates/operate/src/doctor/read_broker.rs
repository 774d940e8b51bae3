//! Reads the facts about the broker and its streams.

use std::time::Duration;

use crate::checks::Skip;
use async_nats::Client;
use async_nats::jetstream::stream::Info;
use jiff::Timestamp;
use relay::Config;
use relay::access::stream_check;
use serde_json::{Value, json};
use servers::NatsLink;
use tokio::sync::watch;
use tokio::time::timeout;

use super::facts::{Broker, Failure, Known, Overlap, Permissions, StreamFacts, Subjects};
use super::read_server::let_in;

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// JetStream's code for a stream that is not there.
const STREAM_NOT_FOUND: u64 = 10_059;

pub(super) async fn connect(
    config: &Config,
) -> Result<(Client, watch::Receiver<NatsLink>), Failure> {
    let hint = "check that a NATS server runs at that address, and any firewall";
    let_in(config.nats.connect_watched("tailpost doctor"), (&config.nats, hint)).await
}

pub(super) async fn broker(client: &Client, link: &watch::Receiver<NatsLink>) -> Broker {
    let info = client.server_info();
    let account = api("INFO");
    let (account, permissions) =
        tokio::join!(ask(client, &account, json!({})), permissions(client));
    let no_jetstream = match &account {
        Ok(account) => account["error"]["description"].as_str().map(str::to_owned),
        Err(Skip(said)) => Some(said.clone()),
    };
    Broker {
        version: info.version,
        max_payload: info.max_payload,
        cluster: info.cluster,
        no_jetstream,
        permissions,
        unheard: link.borrow().unheard.clone(),
        storage: account
            .ok()
            .and_then(|it| Some((it["limits"]["max_storage"].as_i64()?, it["storage"].as_i64()?))),
        clock: None,
    }
}

/// Answered by every server from 2.10 on, to those who may ask it.
pub(super) const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// What the user may do, if the server tells.
pub(super) async fn permissions(client: &Client) -> Option<Permissions> {
    let answer = ask(client, USER_INFO, json!({})).await.ok()?;
    // Behind a leaf node another server may answer first, about the leaf node's own connection.
    let is_own = answer["server"]["id"].as_str() == Some(&client.server_info().server_id);
    is_own.then(|| read_permissions(&answer["data"]["permissions"]))
}

fn read_permissions(told: &Value) -> Permissions {
    let list = |value: &Value| -> Option<Vec<String>> {
        let subjects = value.as_array()?.iter();
        Some(subjects.filter_map(|it| it.as_str().map(str::to_owned)).collect())
    };
    let subjects = |value: &Value| Subjects {
        allow: list(&value["allow"]),
        deny: list(&value["deny"]).unwrap_or_default(),
    };
    Permissions { publish: subjects(&told["publish"]), subscribe: subjects(&told["subscribe"]) }
}

/// The stream, and the broker's clock.
pub(super) async fn stream(
    client: &Client,
    name: &str,
    config: Option<&Config>,
) -> (Known<Option<StreamFacts>>, Option<(f64, f64)>) {
    let before = Timestamp::now();
    let asked = ask(client, &api(&format!("STREAM.INFO.{name}")), json!({})).await;
    let after = Timestamp::now();
    let answer = match asked {
        Ok(answer) => answer,
        Err(skip) => return (Err(skip), None),
    };
    if answer["error"]["err_code"].as_u64() == Some(STREAM_NOT_FOUND) {
        return (Ok(None), None);
    }
    if let Some(error) = answer["error"]["description"].as_str() {
        return (Err(Skip::because(format!("JetStream refuses: {error}"))), None);
    }
    let clock = answer["ts"].as_str().and_then(|it| it.parse().ok()).map(|told: Timestamp| {
        let round_trip = after.duration_since(before).as_secs_f64();
        (told.duration_since(before).as_secs_f64() - round_trip / 2.0, round_trip / 2.0)
    });
    let unreadable = |error| Skip::because(format!("the stream's state is unreadable: {error}"));
    let info = match serde_json::from_value::<Info>(answer) {
        Ok(info) => info,
        Err(error) => return (Err(unreadable(error)), clock),
    };
    let mapped = match config {
        // What the user may not read is a finding about permissions.
        Some(config) => stream_check::mapped(config, client, &info).await.unwrap_or_default(),
        None => None,
    };
    let (messages, bytes) = (info.state.messages, info.state.bytes);
    (Ok(Some(StreamFacts { messages, bytes, config: info.config, mapped })), clock)
}

/// Other streams that take some of the subjects.
pub(crate) async fn overlaps(client: &Client, own: &Config) -> Known<Vec<Overlap>> {
    let mut found: Vec<Overlap> = Vec::new();
    for pattern in own.stream.subjects.iter().chain(&own.routing().patterns()) {
        let request = json!({ "subject": pattern });
        let answer = ask(client, &api("STREAM.NAMES"), request).await?;
        for name in answer["streams"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if name == own.stream.name || found.iter().any(|it| it.stream == name) {
                continue;
            }
            if let Ok(Some(stream)) = stream(client, name, None).await.0 {
                found.push(Overlap { stream: name.to_owned(), takes: stream.config.subjects });
            }
        }
    }
    Ok(found)
}

/// Where JetStream is asked for something.
pub(super) fn api(what: &str) -> String {
    format!("{}.{what}", outbox::jetstream_api::prefix())
}

/// One request, and how long the answer took.
async fn ask(client: &Client, subject: &str, request: Value) -> Known<Value> {
    let asked = client.request(subject.to_owned(), request.to_string().into());
    let silent = || Skip::because(format!("NATS does not answer {subject} within {ANSWER_MAX:?}"));
    let answer = timeout(ANSWER_MAX, asked).await.map_err(|_| silent())?;
    let answer = answer.map_err(|error| Skip::because(format!("{subject}: {error}")))?;
    let read = serde_json::from_slice(&answer.payload);
    read.map_err(|error| Skip::because(format!("{subject}: {error}")))
}
