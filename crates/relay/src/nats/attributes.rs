//! The attributes of a CloudEvent, as headers beside those that every message has.

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use outbox::Event;
use outbox::wire::cloudevents::{self, Added, attribute_to_wire};
use outbox::wire::{self, CloudEvents, Position};

const CLOUDEVENTS: HeaderName = HeaderName::from_static(wire::header::CLOUDEVENTS);

/// How messages get attributes.
pub(crate) struct Attributes {
    pub(crate) names: CloudEvents,
    /// The number of the history that the log belongs to; `None` where there is no log.
    pub(crate) epoch: Option<u32>,
}

impl Attributes {
    /// Adds those that the producer has not set. `position` is where the event itself came in the log
    /// of this history. Says why, if there are none.
    pub(super) fn add(
        &self,
        event: &Event,
        position: Option<Position>,
        headers: &mut HeaderMap,
    ) -> Result<(), String> {
        let sequence = self.epoch.zip(position);
        let sequence = sequence.map(|(epoch, at)| cloudevents::sequence(epoch, &at));
        let (mut added, mut illegal) = (Added::default(), None);
        let emit = |name: &'static str, value: &str| {
            if headers.get(name).is_some() {
                return;
            }
            added.add(name);
            match attribute_to_wire(value).parse::<HeaderValue>() {
                Ok(value) => headers.insert(HeaderName::from_static(name), value),
                Err(_) => illegal = Some(format!("header \"{name}\" cannot be sent")),
            }
        };
        let emitted = self.names.attributes(event, sequence.as_deref(), emit);
        emitted.map_err(|error| error.to_string())?;
        headers.insert(CLOUDEVENTS, HeaderValue::from(added.to_string()));
        illegal.map_or(Ok(()), Err)
    }
}
