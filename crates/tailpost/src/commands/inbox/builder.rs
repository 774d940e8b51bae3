//! A consumer of the settings, as the library builds it.

use inbox::{Builder, Inbox};

use crate::config::Consumer;

/// An inbox as the settings want it, without its connections.
pub(in crate::commands) fn builder(consumer: Consumer) -> Builder {
    Inbox::builder(consumer.name)
        .stream(consumer.stream)
        .filter_subjects(consumer.subjects)
        .lanes(consumer.concurrency)
        .lease(consumer.lease)
        .ack_wait(consumer.ack_wait)
        .max_attempts(consumer.max_attempts)
        .backoff(consumer.backoff)
}
