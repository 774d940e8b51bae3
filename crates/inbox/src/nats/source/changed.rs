//! Others may change the durable consumer at any moment.

use async_nats::jetstream::consumer;

use crate::config::Config;
use crate::nats::durable_consumer;

/// Of a message whose body the server leaves out: its size.
const MESSAGE_SIZE: &str = "Nats-Msg-Size";

/// Somebody has changed the consumer so that it leaves out events, or what they are.
pub(super) fn is_changed(info: &consumer::Info, config: &Config) -> bool {
    info.config.headers_only || durable_consumer::is_for_others(&info.config, config)
}

/// The server says of what it leaves out how large it is. So may whoever publishes.
pub(super) fn lacks_body(message: &async_nats::Message) -> bool {
    let size = || message.headers.as_ref()?.get(MESSAGE_SIZE);
    message.payload.is_empty() && size().is_some_and(|it| it.as_str() != "0")
}
