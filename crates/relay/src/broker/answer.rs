//! The broker's answer to one published message.

use std::borrow::Cow;

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use crate::core::{Input, Refusal};

#[derive(Debug, Deserialize)]
struct PubAck<'a> {
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
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

/// Turns an answer on `<inbox>.<epoch>.<index>` into what it means. `None` for anything that is
/// not an answer to a publish of this relay.
pub(crate) fn read(message: &Message, stream: &str) -> Option<Input> {
    let (epoch, index) = address(message.subject.as_str())?;
    let refused = |refusal| Some(Input::Refused { epoch, index, refusal });
    match message.status {
        Some(StatusCode::NO_RESPONDERS) => {
            return refused(Refusal::Outage("no stream answers on the subject".into()));
        }
        Some(status) if status != StatusCode::OK && message.payload.is_empty() => {
            return refused(Refusal::Outage(format!("the broker answered {status}")));
        }
        _ => {}
    }
    let Ok(ack) = serde_json::from_slice::<PubAck<'_>>(&message.payload) else {
        return refused(Refusal::Outage("the answer is no JetStream acknowledgement".into()));
    };
    if let Some(error) = ack.error {
        return refused(classify(&error));
    }
    if ack.stream != stream {
        // Any responder on the subject can answer; only the stream's word counts.
        let reason = format!("stream \"{}\" stored the event instead of \"{stream}\"", ack.stream);
        return refused(Refusal::Configuration(reason));
    }
    if ack.seq == 0 {
        // A duplicate of an id whose message was never stored (nats-server#6415).
        let duplicate = ack.duplicate;
        let reason = format!("acknowledged without a sequence (duplicate: {duplicate})");
        return refused(Refusal::Outage(reason));
    }
    Some(Input::Acked { epoch, index, seq: ack.seq })
}

fn address(subject: &str) -> Option<(u32, u64)> {
    let (rest, index) = subject.rsplit_once('.')?;
    let (_, epoch) = rest.rsplit_once('.')?;
    Some((epoch.parse().ok()?, index.parse().ok()?))
}

/// What follows from a JetStream error code: the four classes of failures.
///
/// | class | what follows |
/// |---|---|
/// | guard | the prediction was wrong: the tail is read, the rest is sent again |
/// | message | this event can never be stored: it is parked |
/// | configuration | nothing can be stored until an operator changes something: the relay stops |
/// | outage | all else that may pass: nothing is counted against an event, the breaker opens |
///
/// The codes are those of nats-server's errors.json.
fn classify(error: &ApiError) -> Refusal {
    let said = || format!("{} ({})", error.description, error.err_code);
    match error.err_code {
        // Wrong last message id, wrong last sequence (also as a constant text on replicas).
        10070 | 10071 | 10164 => Refusal::Guard,
        // Over max_msg_size; headers over 64 KiB; rejected ttl, rollup, counter, schedule, source.
        10054
        | 10097
        | 10111
        | 10165
        | 10166
        | 10168..=10172
        | 10188..=10193
        | 10203
        | 10212
        | 10223
        | 10227 => Refusal::Message(said()),
        // "maximum messages exceeded" and its kin pass; "message too large" does not.
        10077 if error.description.contains("too large") => Refusal::Message(said()),
        // Another stream took the subject; sealed; feature disabled; API level.
        10060 | 10109 | 10174 | 10185 | 10205 => Refusal::Configuration(said()),
        _ if error.code >= 500 || error.code == 429 || error.code == 409 => Refusal::Outage(said()),
        10077 | 10002 | 10059 | 10120 => Refusal::Outage(said()),
        _ => Refusal::Configuration(said()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(subject: &str, payload: &str, status: Option<StatusCode>) -> Message {
        Message {
            subject: subject.into(),
            reply: None,
            payload: payload.to_owned().into(),
            headers: None,
            status,
            description: None,
            length: payload.len(),
        }
    }

    fn answer(payload: &str) -> Option<Input> {
        read(&message("_INBOX.x.7.42", payload, None), "OUTBOX")
    }

    #[test]
    fn an_ack_names_the_message_and_its_sequence() {
        for payload in [
            r#"{"stream":"OUTBOX","seq":9}"#,
            r#"{"stream":"OUTBOX", "seq":9,"duplicate": true}"#,
            r#"{"stream":"OUTBOX","domain":"hub","seq":9,"batch":"b","count":3}"#,
        ] {
            let read = answer(payload);
            assert!(
                matches!(read, Some(Input::Acked { epoch: 7, index: 42, seq: 9 })),
                "{payload}: {read:?}"
            );
        }
    }

    #[test]
    fn a_duplicate_without_a_sequence_is_no_ack() {
        let read = answer(r#"{"stream":"OUTBOX","seq":0,"duplicate":true}"#);
        assert!(
            matches!(read, Some(Input::Refused { refusal: Refusal::Outage(_), .. })),
            "{read:?}"
        );
    }

    #[test]
    fn no_responders_is_an_outage() {
        let message = message("_INBOX.x.0.1", "", Some(StatusCode::NO_RESPONDERS));
        let read = read(&message, "OUTBOX");
        assert!(
            matches!(read, Some(Input::Refused { refusal: Refusal::Outage(_), .. })),
            "{read:?}"
        );
    }

    #[test]
    fn an_ack_of_another_stream_is_refused() {
        let read = answer(r#"{"stream":"OTHER","seq":9}"#);
        assert!(
            matches!(read, Some(Input::Refused { refusal: Refusal::Configuration(_), .. })),
            "{read:?}"
        );
    }

    #[test]
    fn every_documented_code_has_its_class() {
        let class = |code: u16, err_code: u32, description: &str| {
            let error = ApiError { code, err_code, description: description.into() };
            match classify(&error) {
                Refusal::Guard => "guard",
                Refusal::Outage(_) => "outage",
                Refusal::Message(_) => "message",
                Refusal::OverLimit(_) | Refusal::Unwelcome(_) => "only the client says so",
                Refusal::Configuration(_) => "configuration",
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
            (400, 10205, "batch publish is disabled", "configuration"),
            (400, 10071, "wrong last sequence: 2", "guard"),
            (400, 10164, "wrong last sequence", "guard"),
            (400, 10070, "wrong last msg ID: x", "guard"),
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
        ] {
            assert_eq!(class(code, err_code, description), expected, "{err_code} {description}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_the_parser_panic(subject in ".{0,40}", payload in ".{0,200}") {
            read(&message(&subject, &payload, None), "OUTBOX");
        }
    }
}
