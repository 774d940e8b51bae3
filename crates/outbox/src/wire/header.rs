//! Names of the headers that a published event carries.

/// The event's id; the stream's duplicate window works on it.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// The stream that must store the message.
pub const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// The sequence that the stream's last message must have.
pub const EXPECTED_LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";
/// Where the event, or the last one before it that did, came in the log: a
/// [`Position`](super::Position).
pub const POSITION: &str = "Tailpost-Position";
/// The id of the event that had [`POSITION`], if that is another event.
pub const POSITION_EVENT: &str = "Tailpost-Position-Event";
/// The event's id where `Nats-Msg-Id` does not tell it.
pub const EVENT_ID: &str = "Tailpost-Event-Id";
/// The replay that stored the message once more. Its [`POSITION`] is the event's own, and
/// `Nats-Msg-Id` is [`replayed_msg_id`](super::replayed_msg_id).
pub const REPLAY: &str = "Tailpost-Replay";
/// How far the log had come when a replay stored the message: a [`Position`](super::Position), a
/// space, and the id of the event that had it.
pub const REPLAY_AFTER: &str = "Tailpost-Replay-After";
/// [`SOURCE_WAL`] if the event never had a row in the outbox.
pub const SOURCE: &str = "Tailpost-Source";
/// The value of [`SOURCE`] for an event of `outbox_emit_wal`.
pub const SOURCE_WAL: &str = "wal";
/// Names of the headers whose values are percent-escaped, separated by commas.
pub const ESCAPED: &str = "Tailpost-Escaped";
/// Which attributes of [`CloudEvents`](super::CloudEvents) the relay added:
/// [`Added`](super::cloudevents::Added).
pub const CLOUDEVENTS: &str = "Tailpost-Cloudevents";
/// Why the broker itself stored the message, in place of one that is gone.
pub const MARKER_REASON: &str = "Nats-Marker-Reason";
/// The event's type.
pub const EVENT_TYPE: &str = "Event-Type";
/// The version of the payload's schema.
pub const EVENT_VERSION: &str = "Event-Version";
/// What kind of thing changed.
pub const AGGREGATE_TYPE: &str = "Aggregate-Type";
/// Which one changed.
pub const AGGREGATE_ID: &str = "Aggregate-Id";
/// When it happened, RFC 3339 in UTC.
pub const OCCURRED_AT: &str = "Occurred-At";
/// The business process the event belongs to.
pub const CORRELATION_ID: &str = "Correlation-Id";
/// The event or command that caused this one.
pub const CAUSATION_ID: &str = "Causation-Id";
/// The headers that say something about the event.
pub const OF_THE_EVENT: [&str; 7] = [
    EVENT_TYPE,
    EVENT_VERSION,
    AGGREGATE_TYPE,
    AGGREGATE_ID,
    OCCURRED_AT,
    CORRELATION_ID,
    CAUSATION_ID,
];
