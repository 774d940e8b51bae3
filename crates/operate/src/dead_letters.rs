//! What the two queues of dead letters have in common: events that the relay could not publish, and
//! events that the inbox could not handle.
//!
//! Both are filtered, counted, planned and worked through in the same words, on the command line,
//! in JSON and over HTTP.

pub mod inbox_letters;
pub mod outbox_letters;

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

/// Dead letters whose failures are grouped, the newest first: with millions it would take minutes.
pub const GROUPED_MAX: u64 = 10_000;

/// Kinds of failures that an [`Overview`] has, the most frequent first.
const GROUPS_MAX: u32 = 20;

/// One text for all values of the column `reason` that differ only in ids and numbers. Few have an id,
/// and to look for one takes longest. The status of an HTTP answer, which comes first, stays.
const FINGERPRINT: &str = "coalesce(substring(reason FROM '^[45][0-9]{2} '), '') ||
    regexp_replace(regexp_replace(CASE WHEN reason ~ '-[0-9a-f]{4}-' THEN
    regexp_replace(reason, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', '<id>', 'g')
    ELSE reason END, '^[45][0-9]{2} ', ''), '[0-9]+', '<n>', 'g')";

/// The statement that groups dead letters of either queue by what their reasons have in common: `these`
/// are their tables and which of them, `aggregate` tells whose they are.
pub(crate) fn group_letters(aggregate: &str, these: &str) -> String {
    format!(
        "SELECT fingerprint, sum(letters)::bigint AS count, count(*) AS aggregates,
             sum(late)::bigint AS last_hour, min(first) AS first, max(last) AS last
         FROM (SELECT {FINGERPRINT} AS fingerprint, aggregate, count(*) AS letters,
                   count(*) FILTER (WHERE dead_at > now() - interval '1 hour') AS late,
                   min(dead_at) AS first, max(dead_at) AS last
               FROM (SELECT reason, dead_at, ({aggregate}) COLLATE \"C\" AS aggregate
                     {these} ORDER BY dead_at DESC LIMIT {GROUPED_MAX}) newest
               GROUP BY 1, 2) of_aggregate
         GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {GROUPS_MAX}"
    )
}

/// An aggregate, written `type:id`. Type and id may have colons, so several may be written so: each
/// that is, is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// Its type.
    pub kind: String,
    /// Its id.
    pub id: String,
}

impl FromStr for Aggregate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `::` is part of a type such as `Billing::Invoice`.
        let of_two = |at: usize| text[at + 1..].starts_with(':') || text[..at].ends_with(':');
        let single = text.match_indices(':').map(|it| it.0).find(|at| !of_two(*at));
        let at = single.or_else(|| text.find(':')).ok_or("expected TYPE:ID, such as order:o-17")?;
        Ok(Self { kind: text[..at].to_owned(), id: text[at + 1..].to_owned() })
    }
}

impl Aggregate {
    /// The types and ids of all aggregates that are written so.
    pub(crate) fn readings(&self) -> (Vec<String>, Vec<String>) {
        let text = self.to_string();
        let colons = text.match_indices(':').map(|it| it.0);
        colons.map(|at| (text[..at].to_owned(), text[at + 1..].to_owned())).unzip()
    }
}

/// Why nothing is done to `aggregates`, of which one was to be meant; nothing if it is one.
pub fn ambiguity(aggregates: &[(String, String)]) -> Option<String> {
    let named = aggregates.iter().map(|(kind, id)| format!("type '{kind}' and id '{id}'"));
    let named = named.collect::<Vec<_>>().join(", ");
    (aggregates.len() > 1).then(|| {
        format!(
            "several aggregates are written so: {named}. Name their events by id, each by itself"
        )
    })
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.id)
    }
}

/// Which dead letters are meant; an empty one means all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Of this aggregate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<Aggregate>,
    /// Of this event type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Whose reason contains this, in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Dead since this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { aggregate, event_type, reason, since } = self;
        let parts = [
            aggregate.as_ref().map(|it| format!("aggregate {it}")),
            event_type.as_ref().map(|it| format!("type {it}")),
            reason.as_ref().map(|it| format!("reason contains {it:?}")),
            since.map(|it| format!("since {it}")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(&if parts.is_empty() { "all".into() } else { parts.join(", ") })
    }
}

/// Dead letters with the same failure, but for ids and numbers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// The reason, with `<id>` and `<n>` for what differs.
    pub fingerprint: String,
    /// How many.
    pub count: u64,
    /// Of how many aggregates.
    pub aggregates: u64,
    /// How many died in the last hour.
    pub last_hour: u64,
    /// When the first died.
    pub first: Timestamp,
    /// When the last died.
    pub last: Timestamp,
}

/// What a list shows, and what a plan is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Overview<L> {
    /// How many match.
    pub total: u64,
    /// Age of the oldest of them, in seconds.
    pub oldest_seconds: Option<f64>,
    /// The failures of the newest [`GROUPED_MAX`] of them.
    pub groups: Vec<Group>,
    /// The newest of them, up to the limit.
    pub dead_letters: Vec<L>,
    /// Over HTTP, where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What is done to dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Publish or handle them after all.
    Requeue,
    /// Refuse them for good; only those of an inbox.
    Reject,
    /// Take them off the list.
    Discard,
}

impl Action {
    /// As it is written down.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Reject => "reject",
            Self::Discard => "discard",
        }
    }

    /// Whether it is for good: then it needs a [`Reason`].
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::Requeue
    }
}

/// What something is done for. Kept; never blank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(extend("pattern" = "\\S"))]
pub struct Reason(String);

impl Reason {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Reason {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.trim().is_empty() { Err("it is empty") } else { Ok(Self(text)) }
    }
}

impl FromStr for Reason {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_owned().try_into()
    }
}

/// Who does something, through what, and what for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// A name.
    pub name: String,
    /// `http` or `cli`.
    pub via: String,
    /// What for.
    pub why: Option<Reason>,
}

impl Actor {
    /// What for, as text.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.why.as_ref().map(Reason::as_str)
    }
}

/// What is to be done to many.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    /// What.
    pub action: Action,
    /// To which.
    pub filter: Filter,
    /// Of this consumer; only for dead letters of an inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// At most so many, the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub first: Option<u32>,
    /// Only says what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// At most so many a second.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub rate: Option<u32>,
    /// By whom.
    #[serde(default)]
    pub by: Option<String>,
    /// What for.
    #[serde(default)]
    pub why: Option<Reason>,
}

/// Something that was done to a dead letter.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// `requeue`, `reject`, `discard`, `read`, `purge`, `release` or `found`.
    pub action: String,
    /// By whom.
    pub actor: String,
    /// Through what, if that is known: `http`, `cli`, or `relay`.
    pub via: Option<String>,
    /// What for.
    pub why: Option<String>,
    /// Why it was a dead letter.
    pub reason: Option<String>,
    /// Its payload was replaced; the audit keeps the old one.
    pub payload_replaced: bool,
}

/// An attempt that failed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FailedAttempt {
    /// When.
    pub failed_at: Timestamp,
    /// Which attempt it was. One that met an outage is not counted: the next one has the same number.
    pub attempt: i32,
    /// The status of the answer, if a service gave one: the three digits that the reason begins with.
    pub code: Option<i16>,
    /// How many milliseconds it took.
    pub took_ms: i32,
    /// What failed.
    pub reason: String,
    /// Which worker made it.
    pub worker: Option<String>,
}

/// What became of one event.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterDetail<L> {
    /// The event's id.
    pub id: Uuid,
    /// The dead letter, if it is one.
    pub dead_letter: Option<L>,
    /// Of the outbox: `dead`, `discarded`, `pending`, `published`, or `gone`. With
    /// `relay.mark = "delete"` also `published` if its row is gone after it was put back: then
    /// nothing says when and where. Of the inbox: `dead` or `requeued`.
    pub state: String,
    /// When the outbox's row was marked as published.
    pub published_at: Option<Timestamp>,
    /// The stream that has it.
    pub stream: Option<String>,
    /// As which sequence.
    pub stream_seq: Option<i64>,
    /// Names the dead letter as it is, for `If-Match`; none if it is decided about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Of the outbox: how long its payload is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<i32>,
    /// Of the outbox: how many events wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<i64>,
    /// What was done to it, in order.
    pub history: Vec<AuditEntry>,
    /// Of the inbox: the newest attempts that failed, in order, while it has the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_attempts: Vec<FailedAttempt>,
    /// Its headers, if asked for: they may be about people as much as the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<Value>,
    /// Its payload, if asked for and JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    /// Its payload in Base64, if asked for and not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
}

impl<L> DeadLetterDetail<L> {
    /// What is known without headers and payload.
    #[must_use]
    pub fn new(id: Uuid, letter: Option<L>, state: &str, history: Vec<AuditEntry>) -> Self {
        Self {
            id,
            dead_letter: letter,
            state: state.to_owned(),
            published_at: None,
            stream: None,
            stream_seq: None,
            etag: None,
            payload_bytes: None,
            waiting: None,
            history,
            failed_attempts: Vec::new(),
            headers: None,
            payload: None,
            payload_base64: None,
        }
    }

    /// With headers and payload.
    #[must_use]
    pub fn carrying(mut self, headers: Option<Value>, payload: &[u8]) -> Self {
        let json = std::str::from_utf8(payload).ok();
        self.payload = json.and_then(|it| RawValue::from_string(it.trim().to_owned()).ok());
        self.payload_base64 = self.payload.is_none().then(|| STANDARD.encode(payload));
        self.headers = headers;
        self
    }

    /// The payload as text, whatever it is.
    #[must_use]
    pub fn payload_text(&self) -> Option<String> {
        let bytes = || STANDARD.decode(self.payload_base64.as_ref()?).ok();
        let json = self.payload.as_ref().map(|it| it.get().to_owned());
        json.or_else(|| Some(String::from_utf8_lossy(&bytes()?).into_owned()))
    }
}

/// A dead letter that dies again is another one.
fn etag(dead_at: Timestamp) -> String {
    format!("\"{}\"", dead_at.as_microsecond())
}

/// How far work on many has got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// How many there were at the start.
    pub total: u64,
    /// How many are done.
    pub done: u64,
    /// How many were refused or gone by then.
    pub skipped: u64,
    /// The last refusal.
    pub last_refusal: Option<String>,
    /// It has ended.
    pub ended: bool,
    /// It was cancelled.
    pub cancelled: bool,
}

/// Dead letters that can be worked through.
#[allow(async_fn_in_trait, reason = "whoever calls it knows the type")]
pub trait Store {
    /// Why it cannot be done.
    type Error;
    /// Where a dead letter is in the order in which they are worked through, and which one it is.
    type Place;
    /// How many one call of [`decide`](Self::decide) may be about.
    const AT_ONCE: u32;

    /// Types and ids of the aggregates that the filter's aggregate may mean; none if it names none.
    async fn aggregates(&self, filter: &Filter) -> Result<Vec<(String, String)>, Self::Error>;
    /// How many match, and the time by the server's clock.
    async fn count(&self, filter: &Filter) -> Result<(u64, Timestamp), Self::Error>;
    /// What matches and died until `until`, behind `after`.
    async fn page(
        &self,
        filter: &Filter,
        until: Timestamp,
        after: Option<&Self::Place>,
        limit: u32,
    ) -> Result<Vec<Self::Place>, Self::Error>;
    /// Returns to how many it was done, and why not to the last of the others.
    async fn decide(
        &self,
        action: Action,
        filter: &Filter,
        page: &[Self::Place],
        actor: &Actor,
    ) -> Result<(usize, Option<String>), Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_says_what_it_takes() {
        assert_eq!(Filter::default().to_string(), "all");
        let filter = Filter {
            aggregate: "order:o:17".parse().ok(),
            event_type: Some("Placed".into()),
            reason: Some("max_payload".into()),
            since: "2026-11-21T09:00:00Z".parse().ok(),
        };
        assert_eq!(
            filter.to_string(),
            "aggregate order:o:17, type Placed, reason contains \"max_payload\", \
             since 2026-11-21T09:00:00Z"
        );
        assert!("order".parse::<Aggregate>().is_err());
        for (text, kind, id) in [
            ("order:o:17", "order", "o:17"),
            ("Billing::Invoice:17", "Billing::Invoice", "17"),
            ("order::17", "order", ":17"),
            ("order:", "order", ""),
            (":x", "", "x"),
        ] {
            let read = text.parse::<Aggregate>().expect("an aggregate");
            assert_eq!((&*read.kind, &*read.id, &*read.to_string()), (kind, id, text));
        }
    }
}
