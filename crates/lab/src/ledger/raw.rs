//! All messages of a stream, in its order, however odd their bytes are.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Stored;
use crate::hostile::RawNats;

/// Messages asked for at a time.
const BATCH: usize = 2_000;

const NANOSECONDS: u64 = 1_000_000_000;

pub(super) async fn read(url: &str, stream: &str) -> Result<Vec<Stored>> {
    let mut nats = RawNats::connect(url).await?;
    let name = format!("ledger-{}", Uuid::new_v4().simple());
    let config = json!({
        "stream_name": stream,
        "config": {
            "name": name, "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant",
            "inactive_threshold": 60 * NANOSECONDS, "mem_storage": true,
        },
    });
    let create = format!("$JS.API.CONSUMER.CREATE.{stream}.{name}");
    let answer = nats.request(&create, config.to_string().as_bytes()).await?;
    let answer: Value = serde_json::from_slice(&answer.body).context("read about the consumer")?;
    let pending = answer["num_pending"].as_u64();
    let pending = pending.with_context(|| format!("no consumer for the ledger: {answer}"))?;
    let pending = usize::try_from(pending)?;

    let mut all = Vec::with_capacity(pending);
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
    while all.len() < pending {
        let count = BATCH.min(pending - all.len());
        let ask = json!({"batch": count, "expires": 5 * NANOSECONDS});
        nats.ask(&next, ask.to_string().as_bytes()).await?;
        for _ in 0..count {
            let message = nats.receive().await?;
            let Some(sequence) = sequence(&message.reply) else {
                bail!("no message but {:?}", String::from_utf8_lossy(&message.headers));
            };
            let text = String::from_utf8_lossy(&message.headers);
            all.push(Stored::of(sequence, |name| {
                let mut lines = text.split("\r\n");
                lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
            }));
        }
    }
    let in_order = all.is_sorted_by(|one, next| one.sequence < next.sequence);
    ensure!(in_order, "the stream's messages came in another order");
    Ok(all)
}

/// From `$JS.ACK.stream.consumer.deliveries.sequence.…`, or with domain and account before these.
fn sequence(reply: &str) -> Option<u64> {
    let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
    let at = if tokens.len() >= 9 { 5 } else { 3 };
    tokens.get(at)?.parse().ok()
}
