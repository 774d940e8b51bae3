//! A consumer of the settings, as the library builds it.

use std::num::NonZeroU32;

use inbox::{Builder, Inbox};

use crate::config::Consumer;

/// The names of a consumer's durable consumers.
pub(in crate::commands) fn durables(consumer: &Consumer) -> Vec<String> {
    builder(consumer).into_config().parts().iter().map(inbox::access::Config::durable).collect()
}

/// The subjects that it is for; all if there are none.
pub(in crate::commands) fn subjects(consumer: &Consumer) -> Vec<String> {
    let parts = builder(consumer).into_config().parts();
    parts.into_iter().flat_map(|it| it.filter_subjects).collect()
}

/// An inbox as the settings want it, without its connections.
pub(in crate::commands) fn builder(consumer: &Consumer) -> Builder {
    let it = &consumer.settings;
    let builder = Inbox::builder(&consumer.name)
        .stream(&consumer.stream)
        .filter_subjects(it.subjects.clone().unwrap_or_default())
        .lanes(it.concurrency.get())
        .lease(it.lease.0)
        .ack_wait(it.ack_wait.0)
        .max_attempts(it.max_attempts.0)
        .pauses(it.backoff.0.clone());
    let partitions = it.partitions.and_then(|it| NonZeroU32::new(it.0));
    let builder = match partitions {
        Some(partitions) => builder.partitions(partitions),
        None => builder,
    };
    let builder = match it.give_up_after.0 {
        Some(limit) => builder.give_up_after(limit.0),
        None => builder,
    };
    match &it.rate {
        Some(rate) => builder.rate(rate.0),
        None => builder,
    }
}
