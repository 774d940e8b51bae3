//! Reading one message of the stream, whatever its bytes are.

use async_nats::{Client, Message};
use outbox::Malformed;
use outbox::wire::StoredMessage;

use crate::error::Error;

const DOING: &str = "read a message of the stream";

/// The leader's answer to a request for one message.
pub struct Answer(Message);

impl Answer {
    /// Bytes that the answer takes: those of the message and a third more.
    pub(crate) fn bytes(&self) -> usize {
        self.0.payload.len()
    }

    /// The message in it; `None` if it was deleted.
    pub fn message(&self) -> Result<Option<StoredMessage<'_>>, Error> {
        StoredMessage::parse(&self.0.payload).map_err(Error::jetstream::<Malformed>(DOING))
    }
}

/// Asks the stream's leader for a message.
///
/// Not `Stream::get_raw_message`: that fails for headers that the client does not like, and others
/// may have written any bytes.
///
/// The client bounds the time of the request.
pub async fn read(client: &Client, stream: &str, seq: u64) -> Result<Answer, Error> {
    ask(client, stream, StoredMessage::request(seq)).await
}

/// As [`read`], for the first message from `seq` on.
pub async fn read_from(client: &Client, stream: &str, seq: u64) -> Result<Answer, Error> {
    ask(client, stream, StoredMessage::request_from(seq)).await
}

/// As [`read`], for the last message of a subject.
pub async fn read_last(client: &Client, stream: &str, subject: &str) -> Result<Answer, Error> {
    ask(client, stream, StoredMessage::request_last(subject)).await
}

async fn ask(client: &Client, stream: &str, request: String) -> Result<Answer, Error> {
    let answer = client.request(StoredMessage::api_subject(stream), request.into()).await;
    answer.map(Answer).map_err(Error::jetstream(DOING))
}
