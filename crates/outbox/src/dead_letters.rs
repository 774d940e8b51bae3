//! What the two queues of dead letters have in common: events that the relay could not publish, and
//! events that the inbox could not handle.
//!
//! Both are filtered, counted, planned and worked through in the same words, on the command line,
//! in JSON and over HTTP.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Dead letters whose failures are grouped, the newest first: with millions it would take minutes.
pub const GROUPED_MAX: u64 = 10_000;

/// Kinds of failures that an [`Overview`] has, the most frequent first.
pub const GROUPS_MAX: u32 = 20;

/// SQL that makes one text of all values of the column `reason` that differ only in ids and numbers.
pub const FINGERPRINT: &str = "regexp_replace(regexp_replace(reason,
    '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', '<id>', 'g'), '[0-9]+', '<n>', 'g')";

/// An aggregate, written `type:id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// Its type; without a colon.
    pub kind: String,
    /// Its id.
    pub id: String,
}

impl FromStr for Aggregate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some((kind, id)) if !kind.is_empty() && !id.is_empty() => {
                Ok(Self { kind: kind.to_owned(), id: id.to_owned() })
            }
            _ => Err("expected TYPE:ID, such as order:o-17"),
        }
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.id)
    }
}

/// Which dead letters are meant; an empty one means all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Group {
    /// The reason, with `<id>` and `<n>` for what differs.
    pub fingerprint: String,
    /// How many.
    pub count: u64,
    /// Of how many aggregates.
    pub aggregates: u64,
    /// When the first died.
    pub first: Timestamp,
    /// When the last died.
    pub last: Timestamp,
}

/// What a list shows, and what a plan is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Overview<L> {
    /// How many match.
    pub total: u64,
    /// Age of the oldest of them, in seconds.
    pub oldest_seconds: Option<f64>,
    /// The failures of the newest [`GROUPED_MAX`] of them.
    pub groups: Vec<Group>,
    /// The newest of them, up to the limit.
    pub dead_letters: Vec<L>,
}

/// How far work on many has got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    }
}
