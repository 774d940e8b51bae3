//! What the inbox asks of NATS JetStream: deliveries, acknowledgements, messages of the stream.

pub(crate) mod acks;
pub(crate) mod advisories;
pub mod durable_consumer;
pub(crate) mod reconnects;
pub(crate) mod source;
pub(crate) mod stored_message;
pub mod stream_range;
