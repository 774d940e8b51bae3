//! Acknowledgements that are known to have arrived.

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use async_nats::{Client, Subject};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tracing::warn;

use crate::Error;

/// Waiting to be sent; beyond, the sender waits.
const QUEUED_MAX: usize = 4096;

/// Sent together, with one answer for all.
const TOGETHER_MAX: usize = 256;

/// After this an acknowledgement is sent again.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// How often one is sent. If none arrives the event comes again, is known, and acknowledged then.
const SENT_MAX: u32 = 3;

/// How long the end waits for answers.
const FLUSH_DEADLINE: Duration = Duration::from_secs(3);

/// Sends acknowledgements and sees to it that the server has them (JetStream's double ack), many at
/// a time on one subscription.
///
/// Of those that are sent together only the last asks for an answer: the server takes them in order,
/// so it has the others as well. If a connection that breaks swallows some of them and not the last,
/// these events come again, and are known.
pub(crate) struct Acks {
    sender: mpsc::Sender<Subject>,
    task: tokio::task::JoinHandle<()>,
}

struct Pending {
    replies: Vec<Subject>,
    sent_at: Instant,
    sent: u32,
}

impl Acks {
    pub(crate) async fn start(nats: Client) -> Result<Self, Error> {
        let inbox = nats.new_inbox();
        let answers = nats.subscribe(format!("{inbox}.*")).await;
        let answers = answers.map_err(Error::jetstream("subscribe to acknowledgements"))?;
        let (sender, queued) = mpsc::channel(QUEUED_MAX);
        let task = tokio::spawn(confirm(nats, inbox, answers, queued));
        Ok(Self { sender, task })
    }

    pub(crate) async fn ack(&self, reply: Subject) {
        // Fails only when the task has panicked: then the events come again.
        let _ = self.sender.send(reply).await;
    }

    /// Waits until everything has arrived, or for a few seconds.
    pub(crate) async fn finish(self) {
        drop(self.sender);
        let mut task = self.task;
        if tokio::time::timeout(FLUSH_DEADLINE, &mut task).await.is_err() {
            // What it would send again may be about a delivery of a later session.
            task.abort();
            warn!("acknowledgements were not answered; the events come again, and are known");
        }
    }
}

async fn confirm(
    nats: Client,
    inbox: String,
    mut answers: async_nats::Subscriber,
    mut queued: mpsc::Receiver<Subject>,
) {
    let mut pending: HashMap<u64, Pending> = HashMap::new();
    let mut last = 0_u64;
    let mut replies = Vec::new();
    let mut open = true;
    let mut look = tokio::time::interval(ANSWER_DEADLINE / 5);
    while open || !pending.is_empty() {
        replies.reserve(queued.len().min(TOGETHER_MAX));
        tokio::select! {
            answer = answers.next() => {
                let Some(answer) = answer else { return };
                let token = answer.subject.rsplit('.').next().and_then(|it| it.parse().ok());
                token.and_then(|token: u64| pending.remove(&token));
            }
            count = queued.recv_many(&mut replies, TOGETHER_MAX),
                if open && pending.len() < QUEUED_MAX =>
            {
                if count == 0 {
                    open = false;
                    continue;
                }
                last += 1;
                let replies = mem::take(&mut replies);
                send(&nats, &inbox, last, &replies).await;
                pending.insert(last, Pending { replies, sent_at: Instant::now(), sent: 1 });
            }
            _ = look.tick() => {
                pending.retain(|_, it| it.sent < SENT_MAX || it.sent_at.elapsed() < ANSWER_DEADLINE);
                for (token, it) in &mut pending {
                    if it.sent_at.elapsed() >= ANSWER_DEADLINE {
                        send(&nats, &inbox, *token, &it.replies).await;
                        (it.sent, it.sent_at) = (it.sent + 1, Instant::now());
                    }
                }
            }
        }
    }
}

async fn send(nats: &Client, inbox: &str, token: u64, replies: &[Subject]) {
    const ACK: Bytes = Bytes::from_static(b"+ACK");
    let Some((last, others)) = replies.split_last() else { return };
    let sent = async {
        for reply in others {
            nats.publish(reply.clone(), ACK).await?;
        }
        nats.publish_with_reply(last.clone(), format!("{inbox}.{token}"), ACK).await
    };
    if let Err(error) = sent.await {
        warn!(%error, "could not send acknowledgements");
    }
}
