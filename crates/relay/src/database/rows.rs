//! From rows, logged or scanned, to events.

use std::collections::HashMap;
use std::str::FromStr;

use bytes::Bytes;
use bytestring::ByteString;
use jiff::{SignedDuration, Timestamp};
use outbox::{Event, Table};
use pgoutput::{Datum, Insert, Relation};
use uuid::Uuid;

use crate::core::Outgoing;
use crate::error::Error;
use crate::routing::Routing;

/// `jsonb`'s binary form is a version byte and the same text that `json` has.
const JSONB_OID: u32 = 3802;
const JSONB_VERSION: u8 = 1;

/// PostgreSQL counts microseconds from 2000-01-01 00:00:00 UTC.
const POSTGRES_EPOCH_UNIX_SECONDS: i64 = 946_684_800;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Id,
    AggregateType,
    AggregateId,
    EventType,
    EventVersion,
    Payload,
    OccurredAt,
    CorrelationId,
    CausationId,
    Headers,
}

/// Each column's name, and what the scanner selects in its place where it is missing; `None` if an
/// outbox must have it.
const FIELDS: [(&str, Field, Option<&str>); 10] = [
    ("id", Field::Id, None),
    ("aggregate_type", Field::AggregateType, None),
    ("aggregate_id", Field::AggregateId, None),
    ("event_type", Field::EventType, None),
    ("event_version", Field::EventVersion, Some("NULL::int")),
    ("payload", Field::Payload, None),
    ("occurred_at", Field::OccurredAt, Some("NULL::timestamptz")),
    ("correlation_id", Field::CorrelationId, Some("NULL::uuid")),
    ("causation_id", Field::CausationId, Some("NULL::uuid")),
    ("headers", Field::Headers, Some("NULL::text")),
];

/// The columns that the scanner selects, in the order of [`FIELDS`], from a table that has the
/// columns `present`.
pub(crate) fn scanned_columns(present: &[String]) -> Result<String, Error> {
    let column = |(name, field, stand_in): &(&str, Field, Option<&str>)| {
        if !present.iter().any(|it| it == name) {
            return stand_in.map(str::to_owned).ok_or_else(|| missing(name));
        }
        Ok(match field {
            Field::Payload | Field::Headers => format!("{name}::text"),
            Field::EventVersion => format!("{name}::int"),
            _ => (*name).to_owned(),
        })
    };
    Ok(FIELDS.iter().map(column).collect::<Result<Vec<_>, _>>()?.join(", "))
}

fn missing(column: &str) -> Error {
    Error::Table(format!("column \"{column}\" is missing or renamed"))
}

/// Turns the log's inserts into events.
///
/// Columns are found by name in every relation message, so that a column added, dropped or moved
/// while the relay runs changes nothing (PostgreSQL announces a relation anew before its next row).
pub(crate) struct Rows {
    table: Table,
    routing: Routing,
    relations: HashMap<u32, Layout>,
}

/// What a relation's columns are to us, in the relation's order; `None` for a foreign relation.
type Layout = Option<Vec<Option<(Field, u32)>>>;

impl Rows {
    pub(crate) fn new(table: Table, routing: Routing) -> Self {
        Self { table, routing, relations: HashMap::new() }
    }

    /// Learns a relation.
    pub(crate) fn relation(&mut self, relation: &Relation) -> Result<(), Error> {
        let ours = relation.namespace == self.table.schema() && relation.name == self.table.name();
        let layout = if ours { Some(layout(relation)?) } else { None };
        self.relations.insert(relation.oid, layout);
        Ok(())
    }

    /// Decodes an insert. `None` if it is not into the outbox.
    pub(crate) fn insert(
        &self,
        insert: &Insert,
        committed_at_micros: i64,
    ) -> Result<Option<Outgoing>, Error> {
        let layout = match self.relations.get(&insert.relation_oid) {
            Some(Some(layout)) => layout,
            Some(None) => return Ok(None),
            None => return Err(Error::Table("a row came before its relation".into())),
        };
        let mut event = blank(timestamp(committed_at_micros));
        for (datum, column) in insert.tuple.iter().zip(layout) {
            if let Some((field, type_oid)) = column {
                set(&mut event, *field, *type_oid, &datum)?;
            }
        }
        Ok(Some(self.address(event)))
    }

    /// Decodes a row that the scanner selected.
    pub(crate) fn scanned(&self, row: &tokio_postgres::Row) -> Result<Outgoing, Error> {
        let text = |at: usize| -> Result<Option<String>, Error> {
            row.try_get(at).map_err(Error::sql("read a scanned row"))
        };
        let needed = |at: usize| {
            text(at)?.ok_or_else(|| Error::Table(format!("column \"{}\" is null", FIELDS[at].0)))
        };
        let get = Error::sql("read a scanned row");
        let version: Option<i32> = row.try_get(4).map_err(get)?;
        let uuid = |at: usize| row.try_get(at).map_err(Error::sql("read a scanned row"));
        let occurred_at: Option<Timestamp> =
            row.try_get(6).map_err(Error::sql("read a scanned row"))?;
        let event = Event {
            id: row.try_get(0).map_err(Error::sql("read a scanned row"))?,
            aggregate_type: needed(1)?.into(),
            aggregate_id: needed(2)?.into(),
            event_type: needed(3)?.into(),
            event_version: version.unwrap_or(1),
            payload: needed(5)?.into(),
            occurred_at: occurred_at.unwrap_or(Timestamp::UNIX_EPOCH),
            correlation_id: uuid(7)?,
            causation_id: uuid(8)?,
            headers: text(9)?.map(Bytes::from),
        };
        Ok(self.address(event))
    }

    fn address(&self, event: Event) -> Outgoing {
        let subject = self.routing.subject(&event);
        Outgoing { event, subject }
    }
}

fn layout(relation: &Relation) -> Result<Vec<Option<(Field, u32)>>, Error> {
    for (name, _, stand_in) in FIELDS {
        if stand_in.is_none() && !relation.columns.iter().any(|column| column.name == name) {
            return Err(missing(name));
        }
    }
    let field = |name: &str| FIELDS.iter().find(|(known, ..)| *known == name).map(|it| it.1);
    let columns = relation.columns.iter();
    Ok(columns.map(|column| Some((field(&column.name)?, column.type_oid))).collect())
}

fn blank(committed_at: Timestamp) -> Event {
    Event {
        id: Uuid::nil(),
        aggregate_type: ByteString::new(),
        aggregate_id: ByteString::new(),
        event_type: ByteString::new(),
        event_version: 1,
        payload: Bytes::new(),
        occurred_at: committed_at,
        correlation_id: None,
        causation_id: None,
        headers: None,
    }
}

fn set(event: &mut Event, field: Field, type_oid: u32, datum: &Datum) -> Result<(), Error> {
    let misfit = || Error::Table(format!("column {field:?} holds a value of an unexpected type"));
    if matches!(datum, Datum::Null | Datum::Unchanged) {
        let nullable = FIELDS.iter().any(|(_, it, stand_in)| *it == field && stand_in.is_some());
        return if nullable { Ok(()) } else { Err(misfit()) };
    }
    match field {
        Field::Id => event.id = uuid(datum).ok_or_else(misfit)?,
        Field::AggregateType => event.aggregate_type = string(datum).ok_or_else(misfit)?,
        Field::AggregateId => event.aggregate_id = string(datum).ok_or_else(misfit)?,
        Field::EventType => event.event_type = string(datum).ok_or_else(misfit)?,
        Field::EventVersion => event.event_version = integer(datum).ok_or_else(misfit)?,
        Field::Payload => event.payload = json(datum, type_oid).ok_or_else(misfit)?,
        Field::OccurredAt => event.occurred_at = instant(datum).ok_or_else(misfit)?,
        Field::CorrelationId => event.correlation_id = Some(uuid(datum).ok_or_else(misfit)?),
        Field::CausationId => event.causation_id = Some(uuid(datum).ok_or_else(misfit)?),
        Field::Headers => event.headers = Some(json(datum, type_oid).ok_or_else(misfit)?),
    }
    Ok(())
}

/// The server falls back to text for types without a binary form, column by column.
fn uuid(datum: &Datum) -> Option<Uuid> {
    match datum {
        Datum::Binary(bytes) if bytes.len() == 16 => Uuid::from_slice(bytes).ok(),
        Datum::Binary(text) | Datum::Text(text) => Uuid::try_parse_ascii(text).ok(),
        Datum::Null | Datum::Unchanged => None,
    }
}

fn string(datum: &Datum) -> Option<ByteString> {
    match datum {
        Datum::Binary(bytes) | Datum::Text(bytes) => ByteString::try_from(bytes.clone()).ok(),
        Datum::Null | Datum::Unchanged => None,
    }
}

fn integer(datum: &Datum) -> Option<i32> {
    match datum {
        Datum::Binary(bytes) => match bytes.len() {
            2 => Some(i16::from_be_bytes(bytes.as_ref().try_into().ok()?).into()),
            4 => Some(i32::from_be_bytes(bytes.as_ref().try_into().ok()?)),
            8 => i64::from_be_bytes(bytes.as_ref().try_into().ok()?).try_into().ok(),
            _ => None,
        },
        Datum::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        Datum::Null | Datum::Unchanged => None,
    }
}

fn json(datum: &Datum, type_oid: u32) -> Option<Bytes> {
    match datum {
        Datum::Binary(bytes) if type_oid == JSONB_OID => {
            (bytes.first() == Some(&JSONB_VERSION)).then(|| bytes.slice(1..))
        }
        Datum::Binary(bytes) | Datum::Text(bytes) => Some(bytes.clone()),
        Datum::Null | Datum::Unchanged => None,
    }
}

fn instant(datum: &Datum) -> Option<Timestamp> {
    match datum {
        Datum::Binary(bytes) => {
            Some(timestamp(i64::from_be_bytes(bytes.as_ref().try_into().ok()?)))
        }
        Datum::Text(text) => Timestamp::from_str(std::str::from_utf8(text).ok()?).ok(),
        Datum::Null | Datum::Unchanged => None,
    }
}

/// `infinity` and whatever else lies outside of jiff's range becomes the range's end.
fn timestamp(postgres_micros: i64) -> Timestamp {
    let epoch = Timestamp::from_second(POSTGRES_EPOCH_UNIX_SECONDS);
    let since = SignedDuration::from_micros(postgres_micros);
    let end = if postgres_micros < 0 { Timestamp::MIN } else { Timestamp::MAX };
    epoch.and_then(|epoch| epoch.checked_add(since)).unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: &[u8]) -> Bytes {
        Bytes::copy_from_slice(value)
    }

    #[test]
    fn timestamps_are_read_in_both_forms() {
        let expected: Timestamp = "2026-11-21T01:24:33.123456Z".parse().unwrap();
        let micros = expected.as_microsecond() - POSTGRES_EPOCH_UNIX_SECONDS * 1_000_000;
        assert_eq!(instant(&Datum::Binary(bytes(&micros.to_be_bytes()))), Some(expected));
        let text = Datum::Text(bytes(b"2026-11-21 01:24:33.123456+00"));
        assert_eq!(instant(&text), Some(expected));
        assert_eq!(timestamp(i64::MAX), Timestamp::MAX);
        assert_eq!(timestamp(i64::MIN), Timestamp::MIN);
    }

    #[test]
    fn jsonb_loses_its_version_byte_and_json_nothing() {
        let jsonb = Datum::Binary(bytes(b"\x01{\"a\": 1.00}"));
        assert_eq!(json(&jsonb, JSONB_OID).as_deref(), Some(&b"{\"a\": 1.00}"[..]));
        assert_eq!(json(&Datum::Binary(bytes(b"\x02{}")), JSONB_OID), None);
        assert_eq!(json(&Datum::Text(bytes(b"{}")), JSONB_OID).as_deref(), Some(&b"{}"[..]));
        assert_eq!(json(&Datum::Binary(bytes(b"{}")), 114).as_deref(), Some(&b"{}"[..]));
    }

    #[test]
    fn integers_of_any_width_become_versions() {
        assert_eq!(integer(&Datum::Binary(bytes(&7i16.to_be_bytes()))), Some(7));
        assert_eq!(integer(&Datum::Binary(bytes(&7i64.to_be_bytes()))), Some(7));
        assert_eq!(integer(&Datum::Binary(bytes(&i64::MAX.to_be_bytes()))), None);
        assert_eq!(integer(&Datum::Text(bytes(b"7"))), Some(7));
    }
}
