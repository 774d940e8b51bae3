//! What no relay can beat here: reading the log, publishing to the stream, and both at once.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream::stream::Config;
use async_nats::{HeaderMap, Subject, Subscriber, header};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::process::Command;
use tokio::time::timeout;
use uuid::Uuid;

use crate::report::Cost;
use crate::stage::{PAYLOAD_BYTES, Stage};

/// Messages that may be unacknowledged.
pub(crate) const WINDOW: u32 = 1_024;

const ANSWER_MAX: Duration = Duration::from_secs(30);

/// `pg_recvlogical` writes everything up to `end` to nowhere.
pub(crate) async fn log(stage: &Stage<'_>, slot: &str, end: &str, rows: u32) -> Result<Cost> {
    let meter = stage.servers.meter()?;
    let seconds = receive(stage, slot, end).await?;
    meter.cost(seconds, rows)
}

/// A publisher that does nothing else stores `messages`.
pub(crate) async fn publisher(stage: &Stage<'_>, messages: u32) -> Result<Cost> {
    let mut bare = Bare::new(stage, messages).await?;
    let meter = stage.servers.meter()?;
    let seconds = bare.publish().await?;
    let cost = meter.cost(seconds, messages)?;
    bare.remove(stage).await?;
    Ok(cost)
}

/// Both side by side; the slower one counts.
pub(crate) async fn both(stage: &Stage<'_>, slot: &str, end: &str, messages: u32) -> Result<Cost> {
    let mut bare = Bare::new(stage, messages).await?;
    let meter = stage.servers.meter()?;
    let (read, published) = tokio::join!(receive(stage, slot, end), bare.publish());
    let cost = meter.cost(read?.max(published?), messages)?;
    bare.remove(stage).await?;
    Ok(cost)
}

/// Over TCP, like the relay. Returns the seconds it took.
async fn receive(stage: &Stage<'_>, slot: &str, end: &str) -> Result<f64> {
    let program = stage.servers.postgres.bin_dir().join("pg_recvlogical");
    ensure!(program.is_file(), "this PostgreSQL has no {}", program.display());
    let started = Instant::now();
    let output = Command::new(program)
        .args([
            "--start",
            "--no-loop",
            "--file=/dev/null",
            "--host=127.0.0.1",
            "--username=postgres",
        ])
        .arg(format!("--port={}", stage.servers.postgres.port()))
        .arg(format!("--dbname={}", stage.name))
        .arg(format!("--slot={slot}"))
        .arg(format!("--endpos={end}"))
        .args(["--option=proto_version=1", "--option=publication_names=tailpost"])
        .arg("--option=binary=true")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("run pg_recvlogical")?;
    let seconds = started.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("pg_recvlogical failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(seconds)
}

/// A publisher on a core connection with one inbox for all answers: the relay's way to publish,
/// without everything else the relay does.
struct Bare {
    client: async_nats::Client,
    stream: String,
    reply: String,
    answers: Subscriber,
    ids: Vec<String>,
}

impl Bare {
    /// Makes a stream like the relay's, and whatever can be made before the clock runs.
    async fn new(stage: &Stage<'_>, messages: u32) -> Result<Self> {
        let like = stage.jetstream.get_stream(&stage.name).await?;
        let stream = format!("{}_bare", stage.name);
        let config = like.cached_info().config.clone();
        let config =
            Config { name: stream.clone(), subjects: vec![format!("{stream}.>")], ..config };
        stage.jetstream.create_stream(config).await.context("create the bare stream")?;
        let client = stage.servers.nats.client().await?;
        let reply = client.new_inbox();
        let answers = client.subscribe(reply.clone()).await?;
        client.flush().await?;
        let ids = (0..messages).map(|_| Uuid::now_v7().to_string()).collect();
        Ok(Self { client, stream, reply, answers, ids })
    }

    /// Returns the seconds from the first message to the last answer.
    async fn publish(&mut self) -> Result<f64> {
        let subject = Subject::from(format!("{}.order.OrderPlaced", self.stream));
        let reply = Subject::from(self.reply.as_str());
        let payload = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
        let started = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < self.ids.len() {
            while sent < self.ids.len() && sent - answered < WINDOW as usize {
                let mut headers = HeaderMap::new();
                headers.insert(header::NATS_MESSAGE_ID, self.ids[sent].as_str());
                let (subject, reply, payload) = (subject.clone(), reply.clone(), payload.clone());
                self.client
                    .publish_with_reply_and_headers(subject, reply, headers, payload)
                    .await
                    .context("publish")?;
                sent += 1;
            }
            let mut answer = timeout(ANSWER_MAX, self.answers.next()).await.context("no answer")?;
            while let Some(message) = answer {
                check(&message.payload)?;
                answered += 1;
                answer = self.answers.next().now_or_never().flatten();
            }
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Removes the stream, once it has shown to hold everything.
    async fn remove(self, stage: &Stage<'_>) -> Result<()> {
        let stored = stage.messages(&self.stream).await?;
        ensure!(stored == self.ids.len() as u64, "the bare stream holds {stored} messages");
        stage.jetstream.delete_stream(&self.stream).await?;
        Ok(())
    }
}

/// Like the relay, reads what the answer says.
fn check(answer: &[u8]) -> Result<()> {
    let answer: serde_json::Value = serde_json::from_slice(answer).context("read an answer")?;
    ensure!(answer["seq"].as_u64().is_some_and(|it| it > 0), "not stored: {answer}");
    Ok(())
}
