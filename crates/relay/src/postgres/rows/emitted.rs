//! Events without a row: messages that `outbox_emit_wal` writes into the log.
//!
//! Any role may write any bytes there, under any prefix. Whatever comes is an event or a dead
//! letter, and it is the same one when the log brings it again.

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use outbox::{Event, Table};
use pgoutput::Logical;
use serde::Deserialize;
use serde_json::error::Category;
use serde_json::value::RawValue;
use uuid::{Builder, Uuid};

use super::{Rows, blank, timestamp};
use crate::engine::{Ignored, Outgoing, Tried, Unpublished};

/// What of a message may be neither payload nor headers before these are copied out of it.
const SLACK_BYTES: usize = 4_096;

/// What a dead letter keeps of a message that cannot be read.
const UNREADABLE_BYTES_MAX: usize = 1 << 20;

/// 0001-01-01 00:00:00 UTC: every timestamp from here on is one of PostgreSQL's, too.
const OLDEST_UNIX_SECONDS: i64 = -62_135_596_800;

/// Which messages of the log are this outbox's.
pub(crate) struct Messages {
    prefix: String,
    /// `relay.wal_messages`.
    are_taken: bool,
}

/// As `outbox_emit_wal` writes it. Each value is looked at by itself, so that one that is wrong
/// leaves the others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Content<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    aggregate_type: Option<&'a RawValue>,
    #[serde(borrow)]
    aggregate_id: Option<&'a RawValue>,
    #[serde(borrow)]
    event_type: Option<&'a RawValue>,
    #[serde(borrow)]
    event_version: Option<&'a RawValue>,
    #[serde(borrow)]
    occurred_at: Option<&'a RawValue>,
    #[serde(borrow)]
    correlation_id: Option<&'a RawValue>,
    #[serde(borrow)]
    causation_id: Option<&'a RawValue>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    #[serde(borrow)]
    seq: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

impl Messages {
    pub(crate) fn new(table: &Table, are_taken: bool) -> Self {
        Self { prefix: table.wal_prefix(), are_taken }
    }

    /// The event that a message is in the outbox whose rows are `rows`, or why nothing becomes of
    /// it; `None` if it is not under the outbox's prefix.
    pub(crate) fn read(
        &self,
        rows: &Rows,
        message: &Logical,
        committed_at_micros: i64,
    ) -> Option<Result<Outgoing, Ignored>> {
        if message.prefix != self.prefix {
            return None;
        }
        // Outside of its transaction it has no place in the log, and is there after a rollback.
        if !message.transactional {
            return Some(Err(Ignored::NotTransactional));
        }
        if !self.are_taken {
            return Some(Err(Ignored::Off));
        }
        Some(Ok(rows.emitted(message, timestamp(committed_at_micros))))
    }
}

impl Rows {
    fn emitted(&self, message: &Logical, committed_at: Timestamp) -> Outgoing {
        let mut event = blank(committed_at);
        let (seq, misfits) = match serde_json::from_slice::<Content<'_>>(&message.content) {
            Ok(content) => {
                let misfits = fill(&mut event, &content, &message.content);
                (content.seq.and_then(|it| it.get().parse().ok()), misfits)
            }
            Err(error) => (None, vec![not_json(&mut event, message, &error)]),
        };
        if event.id.is_nil() {
            event.id = id_of(message);
        }
        let subject = match misfits.is_empty() {
            true => self.routing.subject(&event),
            false => Err(Unpublished::NoEvent(format!(
                "a message of outbox_emit_wal that it did not write: {}",
                misfits.join("; ")
            ))),
        };
        let tried = Tried::default();
        Outgoing { event, subject, seq, requeued: false, tried, replayed: None }
    }
}

/// Makes the event of what can be read. Says what cannot.
fn fill(event: &mut Event, content: &Content<'_>, bytes: &Bytes) -> Vec<String> {
    let mut misfits = Vec::new();
    let mut misfit = |what: &str, is: &str| misfits.push(format!("{what} {is}"));
    match content.id.and_then(read) {
        Some(id) if id != Uuid::nil() => event.id = id,
        _ => misfit("id", "is no UUID"),
    }
    for (what, place, value) in [
        ("aggregate_type", &mut event.aggregate_type, content.aggregate_type),
        ("aggregate_id", &mut event.aggregate_id, content.aggregate_id),
        ("event_type", &mut event.event_type, content.event_type),
    ] {
        match value.and_then(read::<String>) {
            Some(text) if text.contains('\0') => {
                misfit(what, "has a zero character in it");
                *place = ByteString::from(text.replace('\0', "\u{fffd}"));
            }
            Some(text) => *place = ByteString::from(text),
            None => misfit(what, "is no text"),
        }
    }
    match content.event_version.map(read) {
        Some(Some(version)) => event.event_version = version,
        Some(None) => misfit("event_version", "is no whole number of 32 bits"),
        None => {}
    }
    match content.occurred_at.map(|it| read(it).filter(is_bearable)) {
        Some(Some(occurred_at)) => event.occurred_at = occurred_at,
        Some(None) => misfit("occurred_at", "is no time"),
        None => {}
    }
    for (what, place, value) in [
        ("correlation_id", &mut event.correlation_id, content.correlation_id),
        ("causation_id", &mut event.causation_id, content.causation_id),
    ] {
        *place = value.and_then(read);
        if value.is_some() && place.is_none() {
            misfit(what, "is no UUID");
        }
    }
    let kept = [content.payload, content.headers].into_iter().flatten();
    let kept: usize = kept.map(|it| it.get().len()).sum();
    // What else is in the message would stay in memory with it.
    let is_lean = bytes.len() <= 2 * kept + SLACK_BYTES;
    let slice = |value: &RawValue| match is_lean {
        true => bytes.slice_ref(value.get().as_bytes()),
        false => Bytes::copy_from_slice(value.get().as_bytes()),
    };
    event.headers = content.headers.map(slice);
    event.payload = content.payload.map_or(Bytes::from_static(b"null"), slice);
    misfits
}

/// A value of a type; `None` if it is of another.
fn read<'a, T: Deserialize<'a>>(value: &'a RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

fn is_bearable(time: &Timestamp) -> bool {
    time.as_second() >= OLDEST_UNIX_SECONDS
}

/// Makes a dead letter's event of bytes that are nothing else. Says what is wrong, without them.
fn not_json(event: &mut Event, message: &Logical, error: &serde_json::Error) -> String {
    event.aggregate_type = ByteString::from_static("wal");
    event.aggregate_id = ByteString::from(message.lsn.to_string());
    event.event_type = ByteString::from_static("unreadable");
    let kept = message.content.len().min(UNREADABLE_BYTES_MAX);
    event.payload = Bytes::copy_from_slice(&message.content[..kept]);
    let is = match error.classify() {
        Category::Data => "no JSON object with its members",
        Category::Syntax | Category::Eof | Category::Io => "no JSON",
    };
    let cut = match message.content.len() > UNREADABLE_BYTES_MAX {
        true => ", and its first MiB is kept",
        false => "",
    };
    format!("it is {is} (line {}, column {}{cut})", error.line(), error.column())
}

/// An id for a message without one: of its place in the log and its content.
fn id_of(message: &Logical) -> Uuid {
    let hash = outbox::fnv(message.content.iter().copied());
    let bits = u128::from(message.lsn.0) << 64 | u128::from(hash);
    Builder::from_custom_bytes(bits.to_be_bytes()).into_uuid()
}

#[cfg(test)]
mod tests {
    use pgoutput::Lsn;
    use proptest::prelude::*;

    use super::*;
    use crate::routing::Routing;

    fn rows() -> Rows {
        let subject = "outbox.{aggregate_type}.{event_type}".parse().expect("valid");
        Rows::new(Table::default(), Routing::new(Vec::new(), subject))
    }

    fn logical(content: &[u8]) -> Logical {
        let prefix = "tailpost:public.outbox_events".to_owned();
        let content = Bytes::copy_from_slice(content);
        Logical { transactional: true, lsn: Lsn(7), prefix, content }
    }

    fn outgoing(content: &[u8]) -> Outgoing {
        match Messages::new(&Table::default(), true).read(&rows(), &logical(content), 0) {
            Some(Ok(outgoing)) => outgoing,
            other => panic!("no event: {other:?}"),
        }
    }

    fn unfit(content: &str) -> String {
        match outgoing(content.as_bytes()).subject {
            Err(Unpublished::NoEvent(reason)) => reason,
            other => panic!("{content}: {other:?}"),
        }
    }

    const ID: &str = "0190b0a0-0000-7000-8000-000000000001";

    /// A message in which a member is replaced.
    fn with(member: &str, value: &str) -> String {
        let mut members = vec![
            ("id", format!("\"{ID}\"")),
            ("aggregate_type", "\"order\"".to_owned()),
            ("aggregate_id", "\"o-1\"".to_owned()),
            ("event_type", "\"Placed\"".to_owned()),
            ("event_version", "2".to_owned()),
            ("occurred_at", "\"2026-11-21T03:24:33.5+02:00\"".to_owned()),
            ("seq", "41".to_owned()),
            ("payload", "{\"a\": 1.50}".to_owned()),
        ];
        members.retain(|it| it.0 != member);
        members.push((member, value.to_owned()));
        let members = members.iter().map(|(name, value)| format!("\"{name}\": {value}"));
        format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn what_the_function_writes_is_read_as_it_was() {
        let Outgoing { event, subject, seq, .. } = outgoing(with("x", "1").as_bytes());
        assert_eq!(subject.as_deref(), Ok("outbox.order.Placed"));
        assert_eq!((event.id.to_string().as_str(), event.event_version, seq), (ID, 2, Some(41)));
        assert_eq!(&*event.payload, b"{\"a\": 1.50}");
        assert_eq!(event.occurred_at.to_string(), "2026-11-21T01:24:33.5Z");
        assert_eq!((event.headers, event.correlation_id), (None, None));
        let headers = outgoing(with("headers", "{\"b\": \"c\"}").as_bytes()).event.headers;
        assert_eq!(headers.as_deref(), Some(&b"{\"b\": \"c\"}"[..]));
        assert_eq!(&*outgoing(with("payload", "null").as_bytes()).event.payload, b"null");
    }

    #[test]
    fn each_value_that_is_wrong_is_named_and_never_repeated() {
        for (member, value, says) in [
            ("id", "7", "id is no UUID"),
            ("id", "null", "id is no UUID"),
            ("aggregate_type", "null", "aggregate_type is no text"),
            ("aggregate_id", "\"secret\\u0000\"", "aggregate_id has a zero"),
            ("event_type", "\"\\ud800\"", "event_type is no text"),
            ("event_version", "2147483648", "event_version is no whole"),
            ("occurred_at", "\"-009000-01-01T00:00:00Z\"", "occurred_at is no time"),
            ("occurred_at", "\"secret\"", "occurred_at is no time"),
            ("correlation_id", "\"secret\"", "correlation_id is no UUID"),
            ("causation_id", "{}", "causation_id is no UUID"),
        ] {
            let reason = unfit(&with(member, value));
            assert!(reason.contains(says) && !reason.contains("secret"), "{reason}");
        }
        for content in ["", "secret", "\"secret\"", "{\"id\": 1, \"id\": 2}", "{\"id\": 1"] {
            assert!(unfit(content).contains("it is no JSON"), "{content}");
        }
    }

    #[test]
    fn a_message_without_an_id_has_the_same_one_whenever_it_comes() {
        let id = |lsn, content: &[u8]| id_of(&Logical { lsn: Lsn(lsn), ..logical(content) });
        assert_eq!(id(7, b"x"), outgoing(b"x").event.id);
        assert_ne!(id(7, b"x"), id(8, b"x"));
        assert_ne!(id(7, b"x"), id(7, b"y"));
    }

    #[test]
    fn other_prefixes_are_others_and_what_is_not_taken_is_ignored() {
        let read = |message: &Logical, are_taken| {
            Messages::new(&Table::default(), are_taken).read(&rows(), message, 0)
        };
        let ours = logical(b"{}");
        let others = Logical { prefix: "tailpost".into(), ..ours.clone() };
        assert!(read(&others, true).is_none());
        assert!(matches!(read(&ours, false), Some(Err(Ignored::Off))));
        let at_once = Logical { transactional: false, ..ours };
        let ignored = read(&at_once, true);
        assert!(matches!(ignored, Some(Err(Ignored::NotTransactional))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_event_or_a_dead_letter(content in any::<Vec<u8>>()) {
            prop_assert!(outgoing(&content).subject.is_err());
        }

        #[test]
        fn any_value_of_any_member_is_borne(
            member in "id|aggregate_type|event_version|occurred_at|headers|seq|payload",
            value in "[\\[\\]{}0-9eE+.\"\\\\utrnalsf,:-]{0,12}",
        ) {
            let text = with(&member, &value);
            let is_unreadable = serde_json::from_str::<Content<'_>>(&text).is_err();
            prop_assert_eq!(is_unreadable, outgoing(text.as_bytes()).event.event_type == "unreadable");
        }
    }
}
