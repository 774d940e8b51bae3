//! A client of the account that hears what a relay publishes, and answers it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use async_nats::Client;
use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

/// Codes of errors that a stream gives as answers, and one that none gives.
const CODES: [(u16, u32); 14] = [
    (400, 10060),
    (400, 10071),
    (400, 10164),
    (503, 10077),
    (500, 10047),
    (400, 10054),
    (400, 10052),
    (400, 10109),
    (400, 10205),
    (429, 10211),
    (400, 10208),
    (404, 10059),
    (503, 10023),
    (400, 19999),
];

/// Reply subjects that a stranger remembers.
const HEARD_MAX: usize = 1_000;

/// A stranger answers until this is dropped.
pub struct Stranger {
    answered: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Stranger {
    /// Answers each message under `subjects` that asks for an answer, with what `forge` makes of the
    /// subject that the answer goes to.
    ///
    /// # Errors
    ///
    /// When the broker does not take the subscription.
    pub async fn start<F>(client: Client, subjects: &str, mut forge: F) -> Result<Self>
    where
        F: FnMut(&str) -> Vec<Forged> + Send + 'static,
    {
        let mut heard = client.subscribe(subjects.to_owned()).await?;
        client.flush().await?;
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        let task = tokio::spawn(async move {
            while let Some(message) = heard.next().await {
                let Some(reply) = message.reply else { continue };
                for Forged { subject, payload } in forge(&reply) {
                    // While the broker is away there is nobody to deceive.
                    let _ = client.publish(subject, payload.into()).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { answered, task })
    }

    /// How many answers it gave.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer or another message, and where it goes.
#[derive(Debug, Clone)]
pub struct Forged {
    subject: String,
    payload: Vec<u8>,
}

impl Forged {
    /// An answer to `reply`.
    pub fn new(reply: &str, payload: impl Into<Vec<u8>>) -> Self {
        Self { subject: reply.to_owned(), payload: payload.into() }
    }
}

/// Draws answers by seed: of this stream and of others, early, late and repeated.
pub struct Forger {
    random: StdRng,
    stream: String,
    // Acknowledgements that name the stream, and a sequence that it may have given out.
    plausible: bool,
    // Whose deliveries it answers; then it publishes wherever it can.
    consumer: Option<String>,
    /// Where answers went that were asked for earlier.
    heard: Vec<String>,
}

impl Forger {
    /// With `plausible` some are acknowledgements that nobody can tell from the stream's.
    pub fn new(seed: u64, stream: &str, plausible: bool) -> Self {
        let (random, heard) = (StdRng::seed_from_u64(seed), Vec::new());
        Self { random, stream: stream.to_owned(), plausible, consumer: None, heard }
    }

    /// Publishes into the stream as well, on what the server says of a consumer, and to whom answers
    /// were due before.
    pub fn everywhere(self, consumer: &str) -> Self {
        Self { consumer: Some(consumer.to_owned()), ..self }
    }

    /// Some answers to a message, or to those that will follow it.
    pub fn forge(&mut self, reply: &str) -> Vec<Forged> {
        let count = *[0, 0, 0, 1, 1, 2].choose(&mut self.random).unwrap_or(&0);
        (0..count).map(|_| self.one(reply)).collect()
    }

    fn one(&mut self, reply: &str) -> Forged {
        match self.consumer.clone().filter(|_| self.random.random_bool(0.4)) {
            Some(consumer) => self.elsewhere(reply, &consumer),
            None => self.answer(reply),
        }
    }

    fn elsewhere(&mut self, reply: &str, consumer: &str) -> Forged {
        if self.heard.len() < HEARD_MAX {
            self.heard.push(reply.to_owned());
        }
        let (near, stream) = (self.random.random_range(0..2_000_u64), self.stream.clone());
        match self.random.random_range(0..5) {
            0 => Forged::new("outbox.forged", self.payload()),
            1 => {
                let verbs = ["+ACK", "-NAK", "+WPI", "+NXT", "+TERM", "", "hello"];
                let verb = *verbs.choose(&mut self.random).unwrap_or(&"");
                Forged::new(&format!("$JS.ACK.{stream}.{consumer}.1.{near}.{near}.0.0"), verb)
            }
            2 => {
                let kind =
                    *["MAX_DELIVERIES", "MSG_TERMINATED"].choose(&mut self.random).unwrap_or(&"");
                let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.{kind}.{stream}.{consumer}");
                Forged::new(&subject, format!("{{\"stream_seq\":{near}}}"))
            }
            3 => {
                let earlier = self.heard.choose(&mut self.random).map_or(reply, String::as_str);
                let earlier = earlier.to_owned();
                Forged::new(&earlier, self.payload())
            }
            _ => {
                let length = self.random.random_range(0..40);
                let noise: Vec<u8> = (0..length).map(|_| self.random.random()).collect();
                Forged::new(reply, noise)
            }
        }
    }

    fn answer(&mut self, reply: &str) -> Forged {
        let ahead = self.random.random_range(0..4);
        let subject = later(reply, ahead).unwrap_or_else(|| reply.to_owned());
        Forged::new(&subject, self.payload())
    }

    fn payload(&mut self) -> String {
        let (near, far) = (self.random.random_range(0..2_000_u64), self.random.random::<u64>());
        let ours = self.stream.clone();
        let named = match self.random.random_range(0..3) {
            0 => format!("\"stream\":\"{ours}\","),
            1 => "\"stream\":\"OTHER\",".to_owned(),
            _ => String::new(),
        };
        let (code, err_code) = *CODES.choose(&mut self.random).unwrap_or(&CODES[0]);
        let error = format!("{{\"code\":{code},\"err_code\":{err_code},\"description\":\"no\"}}");
        match self.random.random_range(0..if self.plausible { 13 } else { 10 }) {
            0 => "{}".to_owned(),
            1 => "hello".to_owned(),
            2 => format!("{{\"stream\":\"OTHER\",\"seq\":{near}}}"),
            3 => format!("{{\"stream\":\"{ours}\",\"domain\":\"leaf\",\"seq\":{near}}}"),
            4 => format!("{{\"stream\":\"{ours}\",\"seq\":{far}}}"),
            5 => format!("{{\"type\":\"err\",\"seq\":{near},\"error\":{error}}}"),
            6 => format!("{{\"type\":\"gap\",\"last_seq\":{near},\"seq\":{near}}}"),
            7..10 => format!("{{{named}\"seq\":0,\"error\":{error}}}"),
            10 => format!("{{\"stream\":\"{ours}\",\"seq\":{near}}}"),
            11 => format!("{{\"stream\":\"{ours}\",\"seq\":{near},\"duplicate\":true}}"),
            _ => format!("{{\"stream\":\"{ours}\",\"seq\":{near},\"batch\":\"b\",\"count\":3}}"),
        }
    }
}

/// Where the answer to a message goes that follows `ahead` messages later: the last number of the
/// subject, before the operation of a batch, counts.
fn later(reply: &str, ahead: u64) -> Option<String> {
    let (counted, rest) = match reply.strip_suffix(".$FI") {
        Some(batch) => {
            let (counted, operation) = batch.rsplit_once('.')?;
            (counted, format!(".{operation}.$FI"))
        }
        None => (reply, String::new()),
    };
    let (inbox, number) = counted.rsplit_once('.')?;
    let number: u64 = number.parse().ok()?;
    Some(format!("{inbox}.{}{rest}", number + ahead))
}

#[cfg(test)]
mod tests {
    use super::later;

    #[test]
    fn the_reply_subjects_of_what_follows_are_known() {
        assert_eq!(later("_INBOX.a.0.7", 2).as_deref(), Some("_INBOX.a.0.9"));
        let part = later("_INBOX.a.a-1.500.fail.7.1.$FI", 1);
        assert_eq!(part.as_deref(), Some("_INBOX.a.a-1.500.fail.8.1.$FI"));
    }
}
