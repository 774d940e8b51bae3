//! A publisher that does nothing else: the relay's way to publish, without everything else that the
//! relay does.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::stream::Config;
use async_nats::{HeaderMap, Subject, Subscriber, header};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use uuid::Uuid;

use crate::bench_env::BenchEnv;
use crate::measured::WINDOW;
use crate::pace::Due;

const ANSWER_MAX: Duration = Duration::from_secs(30);

/// On a core connection, with one inbox for all answers.
pub(crate) struct Bare {
    pub(crate) stream: String,
    client: async_nats::Client,
    subject: Subject,
    reply: Subject,
    answers: Subscriber,
    payload: Bytes,
    ids: Vec<Uuid>,
}

impl Bare {
    /// Makes a stream like the relay's, and whatever can be made before the clock runs.
    pub(crate) async fn new(
        env: &BenchEnv<'_>,
        messages: u32,
        payload_bytes: usize,
    ) -> Result<Self> {
        let like = env.jetstream.get_stream(&env.streams()[0]).await?;
        let stream = format!("{}_bare", env.name);
        let config = like.cached_info().config.clone();
        let config =
            Config { name: stream.clone(), subjects: vec![format!("{stream}.>")], ..config };
        env.jetstream.create_stream(config).await.context("create the bare stream")?;
        let client = env.servers.broker.client().await?;
        let reply = client.new_inbox();
        let answers = client.subscribe(reply.clone()).await?;
        client.flush().await?;
        Ok(Self {
            subject: Subject::from(format!("{stream}.order.OrderPlaced")),
            reply: Subject::from(reply),
            payload: Bytes::from(vec![b'x'; payload_bytes]),
            ids: (0..messages).map(|_| Uuid::now_v7()).collect(),
            stream,
            client,
            answers,
        })
    }

    /// Publishes everything as fast as it goes. Returns the seconds from the first message to the
    /// last answer.
    pub(crate) async fn publish(&mut self) -> Result<f64> {
        let started = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < self.ids.len() {
            while sent < self.ids.len() && sent - answered < WINDOW as usize {
                self.send(sent).await?;
                sent += 1;
            }
            let answer = timeout(ANSWER_MAX, self.answers.next()).await.context("no answer")?;
            check(&answer.context("the connection was closed")?.payload)?;
            answered += 1 + self.take_answers()?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Publishes the messages when they are due. Returns when each was, by its id.
    pub(crate) async fn follow(
        &mut self,
        schedule: &mut mpsc::Receiver<Due>,
    ) -> Result<Vec<(Uuid, Instant)>> {
        let mut sent = Vec::with_capacity(self.ids.len());
        while let Some(due) = schedule.recv().await {
            for n in due.events {
                self.send(n as usize).await?;
                sent.push((self.ids[n as usize], due.at));
            }
            self.take_answers()?;
        }
        Ok(sent)
    }

    async fn send(&self, n: usize) -> Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_MESSAGE_ID, self.ids[n].to_string());
        let (subject, reply) = (self.subject.clone(), self.reply.clone());
        self.client
            .publish_with_reply_and_headers(subject, reply, headers, self.payload.clone())
            .await
            .context("publish")
    }

    /// How many answers are here.
    fn take_answers(&mut self) -> Result<usize> {
        let mut taken = 0;
        while let Some(Some(message)) = self.answers.next().now_or_never() {
            check(&message.payload)?;
            taken += 1;
        }
        Ok(taken)
    }

    /// Removes the stream, once it has shown to hold everything.
    pub(crate) async fn remove(self, env: &BenchEnv<'_>) -> Result<()> {
        let stored = env.messages(&self.stream).await?;
        ensure!(stored == self.ids.len() as u64, "the bare stream holds {stored} messages");
        env.jetstream.delete_stream(&self.stream).await?;
        Ok(())
    }
}

/// Like the relay, reads what the answer says.
fn check(answer: &[u8]) -> Result<()> {
    let answer: serde_json::Value = serde_json::from_slice(answer).context("read an answer")?;
    ensure!(answer["seq"].as_u64().is_some_and(|it| it > 0), "not stored: {answer}");
    Ok(())
}
