//! What a replay publishes again.

use jiff::Timestamp;
use outbox::Event;
use outbox::wire::Position;
use pgoutput::Lsn;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::routing::Glob;

/// Which of the published events are meant: those of which everything that is said is true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplaySelection {
    /// Those that committed there or later.
    pub from_lsn: Option<Lsn>,
    /// Those that committed there or earlier.
    pub to_lsn: Option<Lsn>,
    /// Those that were published then or later.
    pub since: Option<Timestamp>,
    /// Those that were published before.
    pub until: Option<Timestamp>,
    /// These; empty means any.
    pub events: Vec<Uuid>,
    /// Those of each aggregate that is written `type:id` as this type and id are.
    pub aggregate: Option<(String, String)>,
    /// Those of types that this pattern takes.
    pub event_type: Option<Glob>,
}

impl ReplaySelection {
    /// Whether nothing is said.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a message of the stream is meant. `system` is the cluster whose positions are.
    pub(crate) fn takes(
        &self,
        event: &Event,
        position: Option<Position>,
        stored_at: Timestamp,
        system: u64,
    ) -> bool {
        let lsn = position.filter(|it| it.system_id == system).map(|it| Lsn(it.lsn));
        let in_log = |from: Option<Lsn>, to: Option<Lsn>| match lsn {
            Some(lsn) => from.is_none_or(|it| lsn >= it) && to.is_none_or(|it| lsn <= it),
            None => from.is_none() && to.is_none(),
        };
        in_log(self.from_lsn, self.to_lsn)
            && self.since.is_none_or(|it| stored_at >= it)
            && self.until.is_none_or(|it| stored_at < it)
            && (self.events.is_empty() || self.events.contains(&event.id))
            && self.aggregate.as_ref().is_none_or(|(of_type, id)| {
                format!("{of_type}:{id}")
                    == format!("{}:{}", event.aggregate_type, event.aggregate_id)
            })
            && self.event_type.as_ref().is_none_or(|it| it.matches(&event.event_type))
    }
}

/// Where a replay reads events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplaySource {
    /// The rows of the outbox that are marked as published, as they are now.
    Table,
    /// The messages that the stream still has.
    Stream,
    /// PostgreSQL's log, as far as the rewind slot keeps it: also rows that are gone.
    Wal,
}

impl ReplaySource {
    /// Its name in JSON and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Stream => "stream",
            Self::Wal => "wal",
        }
    }

    pub(crate) fn of_name(name: &str) -> Self {
        match name {
            "stream" => Self::Stream,
            "wal" => Self::Wal,
            _ => Self::Table,
        }
    }
}

/// As PostgreSQL prints it.
pub fn lsn_text<S: Serializer>(lsn: &Option<Lsn>, serializer: S) -> Result<S::Ok, S::Error> {
    lsn.map(|it| it.to_string()).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_taken_if_all_that_is_said_is_true_of_it() {
        let event = Event::new("order", "o-1", "OrderPaid", &0).expect("an event");
        let at: Timestamp = "2026-11-21T09:00:00Z".parse().expect("a time");
        let position = |system_id| Position { system_id, timeline: 1, lsn: 20, ordinal: 0 };
        let takes = |selection: &ReplaySelection| selection.takes(&event, Some(position(7)), at, 7);
        let all = ReplaySelection::default();
        assert!(all.is_everything() && takes(&all));
        let said = [
            (ReplaySelection { from_lsn: Some(Lsn(20)), ..all.clone() }, true),
            (ReplaySelection { from_lsn: Some(Lsn(21)), ..all.clone() }, false),
            (ReplaySelection { to_lsn: Some(Lsn(19)), ..all.clone() }, false),
            (ReplaySelection { since: Some(at), ..all.clone() }, true),
            (ReplaySelection { until: Some(at), ..all.clone() }, false),
            (ReplaySelection { events: vec![event.id], ..all.clone() }, true),
            (ReplaySelection { events: vec![Uuid::nil()], ..all.clone() }, false),
            (
                ReplaySelection { aggregate: Some(("order".into(), "o-1".into())), ..all.clone() },
                true,
            ),
            (
                ReplaySelection { aggregate: Some(("order".into(), "o-2".into())), ..all.clone() },
                false,
            ),
            (ReplaySelection { event_type: "Order*".parse().ok(), ..all.clone() }, true),
            (ReplaySelection { event_type: "Invoice*".parse().ok(), ..all.clone() }, false),
        ];
        for (selection, expected) in said {
            assert_eq!(takes(&selection), expected, "{selection:?}");
        }
        let by_lsn = ReplaySelection { from_lsn: Some(Lsn(1)), ..all };
        assert!(!by_lsn.takes(&event, Some(position(8)), at, 7), "another cluster's position");
        assert!(!by_lsn.takes(&event, None, at, 7), "no position");
    }
}
