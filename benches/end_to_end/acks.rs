//! When the broker acknowledged events to the relay, overheard.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result};
use async_nats::Subscriber;
use futures_util::StreamExt;
use futures_util::stream::select_all;
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What the relay is answered: `<inbox>.<epoch>.<index>` is about one message,
/// `<inbox>.<batch>.<flow>.fail.<number>.<operation>.$FI` about a batch.
const ANSWERS: [&str; 2] = ["_INBOX.*.*.*", "_INBOX.*.*.*.fail.*.*.$FI"];

#[derive(Debug, Deserialize)]
struct Answer {
    seq: u64,
    /// Of an answer that ends a batch: how many of its messages are stored, `seq` being the last.
    count: Option<u64>,
    /// `ack` if `seq` counts the messages of a batch that are stored so far.
    #[serde(default, rename = "type")]
    kind: String,
}

/// When the acknowledgement of each message reached those who listen, by its sequence.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    at: HashMap<u64, Instant>,
    /// Of each open batch, by its inbox and name, up to which of its messages it is answered, when.
    open: HashMap<String, Vec<(u64, Instant)>>,
}

impl Acks {
    /// Listens to the relay's answers beside the relay, until the task is given a message in
    /// `stop`.
    pub(crate) async fn listen(
        client: &async_nats::Client,
        mut stop: oneshot::Receiver<()>,
    ) -> Result<JoinHandle<Self>> {
        let mut both: Vec<Subscriber> = Vec::new();
        for subject in ANSWERS {
            both.push(client.subscribe(subject).await.context("listen to the relay's answers")?);
        }
        client.flush().await?;
        let mut answers = select_all(both);
        Ok(tokio::spawn(async move {
            let mut acks = Self::default();
            loop {
                tokio::select! {
                    biased;
                    answer = answers.next() => match answer {
                        Some(answer) => acks.note(&answer.subject, &answer.payload, Instant::now()),
                        None => return acks,
                    },
                    _ = &mut stop => return acks,
                }
            }
        }))
    }

    /// When a message was acknowledged.
    pub(crate) fn at(&self, seq: u64) -> Option<Instant> {
        self.at.get(&seq).copied()
    }

    fn note(&mut self, subject: &str, answer: &[u8], now: Instant) {
        // An error: the relay deals with it, and its message will come again.
        let Ok(answer) = serde_json::from_slice::<Answer>(answer) else { return };
        let batch = || subject.split('.').take(3).collect::<Vec<_>>().join(".");
        match answer {
            Answer { kind, seq, .. } if kind == "ack" => {
                self.open.entry(batch()).or_default().push((seq, now));
            }
            Answer { count: Some(count), seq, .. } => {
                let base = seq.saturating_sub(count);
                let mut answered = 0;
                let flow = self.open.remove(&batch()).unwrap_or_default();
                for (upto, at) in flow.into_iter().chain([(count, now)]) {
                    self.at.extend((answered + 1..=upto).map(|number| (base + number, at)));
                    answered = answered.max(upto);
                }
            }
            Answer { seq, .. } => _ = self.at.insert(seq, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_message_of_a_batch_is_acknowledged_by_the_first_answer_that_covers_it() {
        let mut acks = Acks::default();
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let part = "_INBOX.x.x-3.500.fail.7.1.$FI";
        acks.note("_INBOX.x.0.1", br#"{"stream":"S","seq":9}"#, after(1));
        acks.note(part, br#"{"type":"ack","seq":2,"msgs":500}"#, after(2));
        acks.note("_INBOX.x.0.2", br#"{"error":{"code":400}}"#, after(2));
        acks.note(part, br#"{"stream":"S","seq":13,"batch":"x-3","count":4}"#, after(3));
        let at = |seq| acks.at(seq).map(|at| (at - start).as_millis());
        let seen: Vec<_> = (8..=14).map(at).collect();
        assert_eq!(seen, [None, Some(1), Some(2), Some(2), Some(3), Some(3), None]);
    }
}
