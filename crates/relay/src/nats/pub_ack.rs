//! The broker's answer to one published message.

use std::borrow::Cow;

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use super::error_codes as codes;
use super::reply_subject::Reply;
use crate::engine::{BrokerInput, Refusal};

#[derive(Debug, Deserialize)]
struct PubAck<'a> {
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(borrow, default)]
    domain: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    /// How many messages of a batch are stored.
    count: Option<u64>,
    /// What only batches are told: `ack` with the number of the last message stored, `err` with
    /// that of the message refused, `gap`.
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    error: Option<ApiError>,
}

#[derive(Debug, Deserialize)]
struct ApiError {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// Whose answers count.
#[derive(Debug)]
pub(crate) struct Answerer {
    pub(crate) stream: String,
    /// The JetStream domain of the stream's servers.
    pub(crate) domain: String,
}

/// Turns an answer on a [reply subject](super::reply_subject) into what it means. `None` for anything that
/// is not an answer to a publish of this relay.
pub(crate) fn read(message: &Message, from: &Answerer) -> Option<BrokerInput> {
    let to = Reply::parse(message.subject.as_str())?;
    match (to, understand(message, from)) {
        (_, Meaning::Strange(why)) => Some(BrokerInput::Stranger(why)),
        (Reply::Message { epoch, index }, Meaning::Stored(ack)) => {
            Some(BrokerInput::Acked { epoch, index, seq: ack.seq, is_duplicate: ack.duplicate })
        }
        (Reply::Message { epoch, index }, Meaning::Refused(refusal)) => {
            Some(BrokerInput::Refused { epoch, index, refusal })
        }
        (Reply::Message { .. }, _) => None,
        (Reply::Part { batch, .. }, Meaning::Flow) => Some(BrokerInput::Taking { batch }),
        (Reply::Part { batch, number }, Meaning::Stored(ack)) => Some(match ack.count {
            Some(count) => BrokerInput::Ended { batch, count, seq: ack.seq },
            // Of a cluster that is being upgraded, or was downgraded.
            None => {
                let refusal = Refusal::NoBatches("the stream's leader has no batches".into());
                BrokerInput::Broken { batch, number, refusal }
            }
        }),
        (Reply::Part { batch, .. }, Meaning::PartRefused(number, refusal)) => {
            Some(BrokerInput::Broken { batch, number, refusal })
        }
        (Reply::Part { batch, number }, Meaning::Refused(refusal)) => {
            Some(BrokerInput::Broken { batch, number, refusal })
        }
        // The answer that ends the batch follows.
        (Reply::Part { .. }, Meaning::Gap) => None,
    }
}

/// What an answer says, whatever it was sent to.
enum Meaning<'a> {
    Stored(PubAck<'a>),
    Refused(Refusal),
    /// Messages of a batch are stored, or duplicates.
    Flow,
    /// This message of a batch is refused.
    PartRefused(u64, Refusal),
    /// A message of a batch is missing.
    Gap,
    /// The stream did not say it.
    Strange(String),
}

/// The most characters that are repeated of what a stranger says.
const SAID_MAX: usize = 64;

fn understand<'a>(message: &'a Message, from: &Answerer) -> Meaning<'a> {
    let outage = |why: String| Meaning::Refused(Refusal::Outage(why));
    match message.status {
        Some(StatusCode::NO_RESPONDERS) => {
            return outage("no stream answers on the subject".into());
        }
        Some(status) if status != StatusCode::OK && message.payload.is_empty() => {
            return outage(format!("the broker answered {status}"));
        }
        _ => {}
    }
    let Ok(ack) = serde_json::from_slice::<PubAck<'_>>(&message.payload) else {
        return Meaning::Strange("an answer is no JetStream acknowledgement".into());
    };
    let is_refusal = ack.error.is_some();
    let is_of_batch = matches!(&*ack.kind, "ack" | "gap" | "err");
    let is_unnamed = is_of_batch || (ack.stream.is_empty() && is_refusal);
    if !is_unnamed && ack.stream != from.stream {
        return strange("stream", &ack.stream);
    }
    if !ack.domain.is_empty() && ack.domain != from.domain {
        return strange("domain", &ack.domain);
    }
    match (&*ack.kind, ack.error.as_ref().map(classify)) {
        ("ack", None) => return Meaning::Flow,
        ("gap", _) => return Meaning::Gap,
        ("err", Some(refusal)) => return Meaning::PartRefused(ack.seq, refusal),
        (_, Some(refusal)) => return Meaning::Refused(refusal),
        (_, None) => {}
    }
    if ack.seq == 0 && ack.count != Some(0) {
        // A duplicate of an id whose message was never stored (nats-server#6415).
        return outage(format!("acknowledged without a sequence (duplicate: {})", ack.duplicate));
    }
    if i64::try_from(ack.seq).is_err() {
        return Meaning::Strange("an answer has an impossible sequence".into());
    }
    Meaning::Stored(ack)
}

fn strange(what: &str, name: &str) -> Meaning<'static> {
    let name: String = name.chars().take(SAID_MAX).collect();
    Meaning::Strange(format!("{what} {name:?} answers"))
}

/// What follows from a JetStream error code: the four classes of failures.
///
/// | class | what follows |
/// |---|---|
/// | expected last sequence | it was another one: the tail is read, the rest is sent again |
/// | message | this event can never be stored: it is parked |
/// | configuration | nothing can be stored until an operator changes something: the relay stops |
/// | no batches | fenced mode is left |
/// | outage | all else that may pass: nothing is counted against an event, the breaker opens |
fn classify(error: &ApiError) -> Refusal {
    let said = || format!("{} ({})", error.description, error.err_code);
    match error.err_code {
        // A batch that the broker no longer knows, too: the tail tells what came of it.
        codes::STREAM_WRONG_LAST_MESSAGE_ID
        | codes::STREAM_WRONG_LAST_SEQUENCE
        | codes::STREAM_WRONG_LAST_SEQUENCE_CONSTANT
        | codes::BATCH_PUBLISH_UNKNOWN_BATCH_ID => Refusal::ExpectedLastSequence,
        codes::BATCH_PUBLISH_DISABLED
        | codes::BATCH_PUBLISH_INVALID_PATTERN
        | codes::BATCH_PUBLISH_INVALID_BATCH_ID
        | codes::BATCH_PUBLISH_TOO_MANY_INFLIGHT => Refusal::NoBatches(said()),
        codes::STREAM_MESSAGE_EXCEEDS_MAXIMUM
        | codes::STREAM_HEADER_EXCEEDS_MAXIMUM
        | codes::STREAM_ROLLUP_FAILED
        | codes::MESSAGE_TTL_INVALID
        | codes::MESSAGE_TTL_DISABLED
        | codes::MESSAGE_INCR_DISABLED..=codes::MESSAGE_COUNTER_BROKEN
        | codes::MESSAGE_SCHEDULES_DISABLED..=codes::STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID
        | codes::MESSAGE_SCHEDULES_SOURCE_INVALID
        | codes::MESSAGE_SCHEDULES_SCHEDULE_INVALID
        | codes::MESSAGE_SCHEDULES_TIME_ZONE_INVALID
        | codes::STREAM_SOURCE_HEADER_NOT_ALLOWED => Refusal::Message(said()),
        // "maximum messages exceeded" and its kin pass; "message too large" does not.
        codes::STREAM_STORE_FAILED if error.description.contains("too large") => {
            Refusal::Message(said())
        }
        // The first: another stream took the subject.
        codes::STREAM_NOT_MATCH
        | codes::STREAM_SEALED
        | codes::ATOMIC_PUBLISH_DISABLED
        | codes::REQUIRED_API_LEVEL => Refusal::Configuration(said()),
        _ if error.code >= 500 || error.code == 429 || error.code == 409 => Refusal::Outage(said()),
        codes::STREAM_STORE_FAILED
        | codes::ACCOUNT_RESOURCES_EXCEEDED
        | codes::STREAM_NOT_FOUND
        | codes::NO_LIMITS => Refusal::Outage(said()),
        _ => Refusal::Configuration(said()),
    }
}

/// Reads an answer as a broker may never have sent it.
#[cfg(fuzzing)]
pub(crate) fn read_any(subject: &str, status: Option<u16>, payload: &[u8]) {
    let status = status.and_then(|it| StatusCode::from_u16(it).ok());
    read(&message(subject, payload, status), &outbox());
}

#[cfg(any(test, fuzzing))]
fn outbox() -> Answerer {
    Answerer { stream: "OUTBOX".into(), domain: String::new() }
}

#[cfg(any(test, fuzzing))]
fn message(subject: &str, payload: impl AsRef<[u8]>, status: Option<StatusCode>) -> Message {
    let payload = payload.as_ref();
    Message {
        subject: subject.into(),
        reply: None,
        payload: payload.to_vec().into(),
        headers: None,
        status,
        description: None,
        length: payload.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(payload: &str) -> Option<BrokerInput> {
        read(&message("_INBOX.x.7.42", payload, None), &outbox())
    }

    #[test]
    fn an_ack_names_the_message_and_its_sequence() {
        for payload in [
            r#"{"stream":"OUTBOX","seq":9}"#,
            r#"{"stream":"OUTBOX", "seq":9,"duplicate": true}"#,
            r#"{"stream":"OUTBOX","domain":"","seq":9,"batch":"b","count":3}"#,
        ] {
            let read = answer(payload);
            assert!(
                matches!(read, Some(BrokerInput::Acked { epoch: 7, index: 42, seq: 9, .. })),
                "{payload}: {read:?}"
            );
        }
    }

    /// As nats-server 2.15.1 prints them.
    #[test]
    fn the_answers_to_a_batch_are_told_apart() {
        let read = |payload: &str| {
            let subject = "_INBOX.x.x-3.500.fail.7.1.$FI";
            format!("{:?}", read(&message(subject, payload, None), &outbox()))
        };
        for (payload, expected) in [
            (
                r#"{"stream":"OUTBOX","seq":9}"#,
                "Some(Broken { batch: 3, number: 7, refusal: NoBatches(\"the stream's leader has no batches\") })",
            ),
            (r#"{"type":"ack","seq":500,"msgs":500}"#, "Some(Taking { batch: 3 })"),
            (r#"{"type":"gap","last_seq":6,"seq":9}"#, "None"),
            (
                r#"{"stream":"OUTBOX","seq":9,"batch":"x-3","count":4}"#,
                "Some(Ended { batch: 3, count: 4, seq: 9 })",
            ),
            (
                r#"{"type":"err","seq":5,"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 4"}}"#,
                "Some(Broken { batch: 3, number: 5, refusal: ExpectedLastSequence })",
            ),
            (
                r#"{"error":{"code":400,"err_code":10208,"description":"batch publish ID is unknown"},"stream":"OUTBOX","seq":0}"#,
                "Some(Broken { batch: 3, number: 7, refusal: ExpectedLastSequence })",
            ),
        ] {
            assert_eq!(read(payload), expected, "{payload}");
        }
    }

    #[test]
    fn a_duplicate_without_a_sequence_is_no_ack() {
        let read = answer(r#"{"stream":"OUTBOX","seq":0,"duplicate":true}"#);
        assert!(
            matches!(read, Some(BrokerInput::Refused { refusal: Refusal::Outage(_), .. })),
            "{read:?}"
        );
    }

    #[test]
    fn no_responders_is_an_outage() {
        let message = message("_INBOX.x.0.1", "", Some(StatusCode::NO_RESPONDERS));
        let read = read(&message, &outbox());
        assert!(
            matches!(read, Some(BrokerInput::Refused { refusal: Refusal::Outage(_), .. })),
            "{read:?}"
        );
    }

    #[test]
    fn what_the_stream_does_not_say_is_a_strangers() {
        for payload in [
            "{}",
            "hello",
            r#"{"stream":"OTHER","seq":9}"#,
            r#"{"stream":"OUTBOX","domain":"leaf","seq":9}"#,
            r#"{"stream":"OTHER","seq":0,"error":{"code":400,"err_code":10060}}"#,
            r#"{"domain":"leaf","error":{"code":503,"err_code":10077}}"#,
            r#"{"stream":"OUTBOX","seq":9223372036854775808}"#,
        ] {
            let read = answer(payload);
            assert!(matches!(read, Some(BrokerInput::Stranger(_))), "{payload}: {read:?}");
        }
        let hub = Answerer { domain: "hub".into(), ..outbox() };
        let payload = r#"{"stream":"OUTBOX","domain":"hub","seq":9}"#;
        let read = read(&message("_INBOX.x.7.42", payload, None), &hub);
        assert!(matches!(read, Some(BrokerInput::Acked { .. })), "{read:?}");
    }

    #[test]
    fn every_documented_code_has_its_class() {
        let class = |code: u16, err_code: u32, description: &str| {
            let error = ApiError { code, err_code, description: description.into() };
            match classify(&error) {
                Refusal::ExpectedLastSequence => "expected last sequence",
                Refusal::Outage(_) => "outage",
                Refusal::Message(_) => "message",
                Refusal::OverLimit(_) | Refusal::Unwelcome(_) => "only the client says so",
                Refusal::Configuration(_) => "configuration",
                Refusal::NoBatches(_) => "no batches",
            }
        };
        for (code, err_code, description, expected) in [
            (503, 10004, "cluster resource is incomplete", "outage"),
            (503, 10006, "JetStream cluster not available", "outage"),
            (503, 10007, "JetStream is not the leader", "outage"),
            (503, 10010, "JetStream not enabled for account", "outage"),
            (503, 10028, "insufficient memory resources available", "outage"),
            (503, 10035, "JetStream not enabled for account", "outage"),
            (503, 10039, "JetStream not enabled for account", "outage"),
            (500, 10047, "insufficient storage resources available", "outage"),
            (503, 10063, "last sequence mismatch", "outage"),
            (503, 10076, "JetStream not enabled", "outage"),
            (503, 10077, "maximum messages per subject exceeded", "outage"),
            (500, 10118, "stream is offline", "outage"),
            (400, 10120, "no JetStream default or applicable tiered limit present", "outage"),
            (503, 10163, "leader not ready to check per subject sequence", "outage"),
            (500, 10194, "stream is offline", "outage"),
            (400, 10111, "rollup not permitted", "message"),
            (400, 10165, "per-message TTL is invalid", "message"),
            (400, 10166, "per-message TTL is disabled", "message"),
            (400, 10168, "message counter increment is disabled", "message"),
            (400, 10172, "counter is broken", "message"),
            (400, 10188, "message schedules is disabled", "message"),
            (400, 10193, "invalid rollup for schedule", "message"),
            (400, 10203, "invalid source for schedule", "message"),
            (400, 10212, "invalid schedule", "message"),
            (400, 10223, "invalid time zone for schedule", "message"),
            (400, 10227, "stream source header is not allowed", "message"),
            (400, 10174, "atomic publish is disabled", "configuration"),
            (412, 10185, "required API level is not supported", "configuration"),
            (400, 10071, "wrong last sequence: 2", "expected last sequence"),
            (400, 10164, "wrong last sequence", "expected last sequence"),
            (400, 10070, "wrong last msg ID: x", "expected last sequence"),
            (503, 10008, "JetStream system temporarily unavailable", "outage"),
            (503, 10009, "JetStream not in clustered mode", "outage"),
            (503, 10023, "insufficient resources", "outage"),
            (503, 10077, "maximum bytes exceeded", "outage"),
            (400, 10077, "maximum messages exceeded", "outage"),
            (400, 10077, "message too large", "message"),
            (429, 10167, "too many requests", "outage"),
            (409, 10158, "message id is in process", "outage"),
            (400, 10002, "resource limits exceeded for account", "outage"),
            (404, 10059, "stream not found", "outage"),
            (400, 10054, "message size exceeds maximum allowed", "message"),
            (400, 10097, "header size exceeds maximum allowed of 64k", "message"),
            (400, 10060, "expected stream does not match", "configuration"),
            (400, 10109, "invalid operation on sealed stream", "configuration"),
            (400, 19999, "never heard of", "configuration"),
            (400, 10205, "batch publish is disabled", "no batches"),
            (429, 10211, "batch publish too many inflight", "no batches"),
            (400, 10208, "batch publish ID is unknown", "expected last sequence"),
        ] {
            assert_eq!(class(code, err_code, description), expected, "{err_code} {description}");
        }
        for err_code in (10168..=10172).chain(10188..=10193) {
            assert_eq!(class(400, err_code, "invalid"), "message", "{err_code}");
        }
        for err_code in 10205..=10207 {
            assert_eq!(class(400, err_code, "batch"), "no batches", "{err_code}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_the_parser_panic(subject in ".{0,40}", payload in ".{0,200}") {
            read(&message(&subject, &payload, None), &outbox());
        }

        /// Answers with a few bytes changed reach deeper than noise does.
        #[test]
        fn no_damaged_answer_makes_the_parser_panic(
            which in 0..ANSWERS.len(),
            in_batch: bool,
            status in proptest::option::of(0..1000_u16),
            damage in proptest::collection::vec((proptest::prelude::any::<u16>(), 0..=255_u8), 0..8),
        ) {
            let mut payload = ANSWERS[which].as_bytes().to_vec();
            for (place, byte) in damage {
                let place = usize::from(place) % payload.len();
                payload[place] = byte;
            }
            let subject = if in_batch { "_INBOX.x.x-3.500.fail.7.1.$FI" } else { "_INBOX.x.7.42" };
            let status = status.and_then(|it| StatusCode::from_u16(it).ok());
            read(&message(subject, &payload, status), &outbox());
        }
    }

    const ANSWERS: [&str; 4] = [
        r#"{"stream":"OUTBOX","domain":"hub","seq":9,"batch":"b","count":3,"duplicate": true}"#,
        r#"{"type":"ack","seq":500,"msgs":500}"#,
        r#"{"type":"err","seq":5,"error":{"code":400,"err_code":10071,"description":"wrong"}}"#,
        r#"{"error":{"code":400,"err_code":10077,"description":"too large"},"stream":"S","seq":0}"#,
    ];
}
