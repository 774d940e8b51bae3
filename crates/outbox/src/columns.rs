use crate::Malformed;
use crate::identifier::{check_identifier, quote};

/// A column of the outbox table that holds a part of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// [`Event::id`](crate::Event::id).
    Id,
    /// [`Event::aggregate_type`](crate::Event::aggregate_type).
    AggregateType,
    /// [`Event::aggregate_id`](crate::Event::aggregate_id).
    AggregateId,
    /// [`Event::event_type`](crate::Event::event_type).
    EventType,
    /// [`Event::event_version`](crate::Event::event_version).
    EventVersion,
    /// [`Event::payload`](crate::Event::payload).
    Payload,
    /// [`Event::occurred_at`](crate::Event::occurred_at).
    OccurredAt,
    /// [`Event::correlation_id`](crate::Event::correlation_id).
    CorrelationId,
    /// [`Event::causation_id`](crate::Event::causation_id).
    CausationId,
    /// [`Event::headers`](crate::Event::headers).
    Headers,
}

impl Column {
    /// All of them, in the order of the documented table.
    pub const ALL: [Self; 10] = [
        Self::Id,
        Self::AggregateType,
        Self::AggregateId,
        Self::EventType,
        Self::EventVersion,
        Self::Payload,
        Self::OccurredAt,
        Self::CorrelationId,
        Self::CausationId,
        Self::Headers,
    ];

    /// Its name in the documented table.
    #[must_use]
    pub const fn documented_name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::EventType => "event_type",
            Self::EventVersion => "event_version",
            Self::Payload => "payload",
            Self::OccurredAt => "occurred_at",
            Self::CorrelationId => "correlation_id",
            Self::CausationId => "causation_id",
            Self::Headers => "headers",
        }
    }
}

/// The relay's own columns. Their names are fixed.
const BOOKKEEPING: [&str; 9] = [
    "published_at",
    "publish_attempts",
    "publish_error",
    "next_attempt_at",
    "stream",
    "stream_seq",
    "commit_lsn",
    "txid",
    "seq",
];

/// What the event's columns are called in a table that was made for something else, such as
/// Debezium's outbox event router.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Columns {
    names: [String; Column::ALL.len()],
}

impl Columns {
    /// The exact name of a column, unquoted.
    #[must_use]
    pub fn name(&self, column: Column) -> &str {
        &self.names[column as usize]
    }

    /// Says what a column is called, by its exact name, unquoted.
    ///
    /// # Errors
    ///
    /// If PostgreSQL would refuse or shorten the name.
    pub fn rename(&mut self, column: Column, name: &str) -> Result<(), Malformed> {
        check_identifier(name)?;
        name.clone_into(&mut self.names[column as usize]);
        Ok(())
    }

    /// Which of them is called `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Column> {
        Column::ALL.into_iter().find(|column| self.name(*column) == name)
    }

    pub(crate) fn quoted(&self, column: Column) -> String {
        quote(self.name(column))
    }

    /// Refuses two meanings for one column.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        for (index, name) in self.names.iter().enumerate() {
            if BOOKKEEPING.contains(&name.as_str()) || self.names[..index].contains(name) {
                let is = "is named twice, or is one that the relay keeps for itself";
                return Err(format!("the column {name} {is}").into());
            }
        }
        Ok(())
    }
}

impl Default for Columns {
    /// Those of the documented table.
    fn default() -> Self {
        Self { names: Column::ALL.map(|column| column.documented_name().to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_their_names() {
        let mut columns = Columns::default();
        for column in Column::ALL {
            assert_eq!(columns.find(column.documented_name()), Some(column));
        }
        columns.rename(Column::EventType, "type").expect("a name");
        assert_eq!(columns.find("type"), Some(Column::EventType));
        assert_eq!(columns.find("event_type"), None);
        assert_eq!(columns.check(), Ok(()));
    }

    #[test]
    fn a_column_has_one_meaning() {
        for name in ["payload", "seq", "published_at"] {
            let mut columns = Columns::default();
            columns.rename(Column::Headers, name).expect("a name");
            let refused = columns.check().unwrap_err().to_string();
            assert!(refused.starts_with(&format!("the column {name} is named twice")), "{refused}");
        }
        let empty = Columns::default().rename(Column::Id, "").unwrap_err();
        assert_eq!(empty.to_string(), "a name is empty");
    }
}
