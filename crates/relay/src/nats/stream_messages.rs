//! Messages of the stream as they are, one request each.

use async_nats::Client;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::direct_get::{self, Answer};
use crate::error::Error;

/// Requests under way at a time. Each answer has a whole message.
pub(crate) const AT_ONCE: usize = 16;

/// Reads a stream through its leader.
#[derive(Clone)]
pub(crate) struct StreamMessages {
    client: Client,
    stream: String,
}

impl StreamMessages {
    pub(crate) fn new(client: Client, stream: String) -> Self {
        Self { client, stream }
    }

    /// What the leader says of each sequence from `from` to `to`.
    pub(crate) async fn read(&self, from: u64, to: u64) -> Result<Vec<Answer>, Error> {
        let reads =
            stream::iter(from..=to).map(|seq| direct_get::read(&self.client, &self.stream, seq));
        reads.buffered(AT_ONCE).try_collect().await
    }
}
