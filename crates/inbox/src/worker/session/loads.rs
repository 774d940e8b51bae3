//! Reads from the stream what was left there.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use futures_util::{StreamExt, stream};
use tracing::warn;

use crate::engine::{Load, Loaded};
use crate::message::Origin;
use crate::nats::stored_message;
use servers::describe;

/// Messages asked for at a time for one of them.
const READ_AHEAD: usize = 8;

/// Of one aggregate nothing more is read at a time when this is exceeded.
const LOADED_BYTES_MAX: usize = 1024 * 1024;

/// After the stream could not be read.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn read(nats: Client, origin: Origin, consumer: String, load: Load) -> Loaded {
    let Load { lane, seqs } = load;
    let (mut messages, mut bytes) = (Vec::with_capacity(seqs.len()), 0);
    let (nats, name) = (&nats, &origin.stream);
    let get = async |seq| (seq, stored_message::get(nats, name, seq).await);
    let mut found = Box::pin(stream::iter(seqs).map(get).buffered(READ_AHEAD));
    while let Some((seq, stored)) = found.next().await {
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                let error = describe(&error);
                warn!(consumer, error, "could not read what was left in the stream");
                tokio::time::sleep(PAUSE).await;
                break;
            }
        };
        let message = stored.map(|it| {
            let reply = it.ack_subject(name, &consumer);
            (Arc::new(it.understood(&origin)), reply)
        });
        bytes += message.as_ref().map_or(0, |(message, _)| message.bytes());
        messages.push((seq, message));
        if bytes > LOADED_BYTES_MAX {
            break;
        }
    }
    Loaded { lane, messages }
}
