use uuid::Uuid;

/// `Nats-Msg-Id` of an event that a replay stores once more: the stream's duplicate window takes it
/// for another message, and for the same one if the replay sends it again.
///
/// ```
/// use outbox::wire::replayed_msg_id;
/// use uuid::Uuid;
///
/// let (event, replay) = (Uuid::from_u128(1), Uuid::from_u128(2));
/// assert_eq!(replayed_msg_id(event, replay), format!("{event}.{replay}"));
/// ```
#[must_use]
pub fn replayed_msg_id(event: Uuid, replay: Uuid) -> String {
    format!("{event}.{replay}")
}

/// The id by which a relay tells this copy of an event from the event itself and from the copies of
/// other replays. It is in no message.
#[must_use]
pub fn replayed_id(event: Uuid, replay: Uuid) -> Uuid {
    Uuid::from_u128(event.as_u128() ^ replay.as_u128())
}
