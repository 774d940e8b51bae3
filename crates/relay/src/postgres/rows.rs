//! From rows, logged or scanned, to events.

mod emitted;

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as StdError;
use std::str::FromStr;

use bytes::{BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use jiff::{SignedDuration, Timestamp};
use outbox::{Column, Event, Table};
use pgoutput::{Datum, Insert, Relation};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

pub(crate) use self::emitted::Messages;
use super::Encoding;
use super::columns::{
    BPCHAR, BYTEA, CHAR, INT2, INT4, INT8, JSON, JSONB, NAME, TEXT, TIMESTAMP, TIMESTAMPTZ, Types,
    USER_DEFINED_MIN, UUID, VARCHAR, is_required, missing,
};
use crate::engine::{Outgoing, Tried, Unpublished};
use crate::error::Error;
use crate::routing::Routing;
pub(crate) use tokio_postgres::binary_copy::BinaryCopyOutRow as ScannedRow;

/// `jsonb`'s binary form is a version byte and the same text that `json` has.
const JSONB_VERSION: u8 = 1;

/// PostgreSQL counts microseconds from 2000-01-01 00:00:00 UTC.
const POSTGRES_EPOCH_UNIX_SECONDS: i64 = 946_684_800;

/// The transaction number of rows that were dead letters: PostgreSQL's own for what is older than
/// everything. Every snapshot sees it, so these rows are the scanner's and never the log's, whatever
/// becomes of the slot.
pub(crate) const REQUEUED_TXID: i64 = 2;

/// When an event happened whose row does not say it. The log would know when it was committed, and the
/// table would not: each path has to make the same event of a row.
const NO_TIME: Timestamp = Timestamp::UNIX_EPOCH;

/// The relay's own columns that the log brings.
const OWN: [&str; 3] = ["seq", "txid", "published_at"];

/// The columns that are selected from a table that has those in `types`, in the order of
/// [`Column::ALL`], then the place in the order of insertion, the transaction, and the attempts and when
/// the next is due; and the types in which they come.
///
/// They come as the log has them, so that a row is the same event whoever brings it.
pub fn scanned_columns(table: &Table, types: &Types) -> Result<(String, Vec<Type>), Error> {
    let (mut columns, mut column_types) = (Vec::new(), Vec::new());
    for column in Column::ALL {
        let name = table.column(column);
        let (selected, comes_as) = match types.get(table.columns().name(column)) {
            None if is_required(column) => return Err(missing(table, column)),
            None => ("NULL::text".to_owned(), Type::TEXT),
            Some(found) => match Type::from_oid(found.oid) {
                Some(its) => (name, its),
                // Not PostgreSQL's own: it may have no binary form.
                None => (format!("{name}::text"), Type::TEXT),
            },
        };
        columns.push(selected);
        column_types.push(comes_as);
    }
    column_types.extend([Type::INT8, Type::INT8, Type::INT4, Type::FLOAT8]);
    let columns = columns.join(", ");
    Ok((format!("{columns}, seq, txid::text::bigint, {ATTEMPTS}, {DUE}"), column_types))
}

/// How often a row's event was tried, and in how many seconds it is due, whatever anybody wrote there.
pub(crate) const ATTEMPTS: &str = "least(greatest(publish_attempts, 0), 2147483647)::int";
pub(crate) const DUE: &str = "CASE WHEN isfinite(next_attempt_at)
    THEN extract(epoch FROM next_attempt_at - clock_timestamp())::float8 END";

/// Turns the log's inserts into events.
///
/// Columns are found by name in every relation message, so that a column added, dropped or moved
/// while the relay runs changes nothing (PostgreSQL announces a relation anew before its next row). One
/// that is renamed still has values, as have those that a publication leaves out: such rows are refused.
pub struct Rows {
    table: Table,
    routing: Routing,
    relations: HashMap<u32, Layout>,
    /// The numbers of tables that are or were the outbox, whatever they are called.
    own: Vec<u32>,
    /// The columns of the outbox as they were last seen; none where nobody looks.
    had: Vec<String>,
    encoding: Encoding,
}

/// What a relation is to us.
enum Layout {
    /// The outbox, with the meanings of its columns in their order.
    Outbox(Vec<Meaning>),
    /// It was the outbox, and is called otherwise. Of a partition no row comes under its own name.
    Former(String),
    Foreign,
}

#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// Part of the event, with the type's number.
    Event(Column, u32),
    /// The row's place in the order of insertion.
    Seq,
    /// The row's transaction.
    Txid,
    /// When somebody else has marked the row.
    PublishedAt,
    Nothing,
}

impl Rows {
    /// For rows of this table.
    pub fn new(table: Table, routing: Routing) -> Self {
        let (relations, own, had) = (HashMap::new(), Vec::new(), Vec::new());
        Self { table, routing, relations, own, had, encoding: Encoding::Utf8 }
    }

    /// The same for rows that come as they are stored in a database of that encoding.
    pub(crate) fn stored_in(self, encoding: Encoding) -> Self {
        Self { encoding, ..self }
    }

    /// The same, for a log of which no row is left out that went into the tables of these numbers.
    pub(crate) fn all_of(self, own: Vec<u32>) -> Self {
        Self { own, ..self }
    }

    /// The same, for a log of a table that has these columns now.
    pub(crate) fn beside(self, had: Vec<String>) -> Self {
        Self { had, ..self }
    }

    /// Learns a relation.
    pub(crate) fn relation(&mut self, relation: &Relation) -> Result<(), Error> {
        let name = |name| self.encoding.name(name);
        let (namespace, table) = (name(&relation.namespace), name(&relation.name));
        let layout = if namespace == self.table.schema() && table == self.table.name() {
            let layout = self.layout(relation)?;
            if !self.had.is_empty() {
                self.had = relation.columns.iter().map(|it| name(&it.name).into_owned()).collect();
            }
            Layout::Outbox(layout)
        } else if self.own.contains(&relation.oid) {
            Layout::Former(format!("{namespace}.{table}"))
        } else {
            Layout::Foreign
        };
        self.relations.insert(relation.oid, layout);
        Ok(())
    }

    fn layout(&self, relation: &Relation) -> Result<Vec<Meaning>, Error> {
        let columns = self.table.columns();
        let names =
            || relation.columns.iter().map(|it| (self.encoding.name(&it.name), it.type_oid));
        let had = |name: &str| self.had.iter().any(|it| it == name);
        let lacks = |column: &str| !names().any(|(name, _)| name == column);
        // A column that is not known came in place of one that was, or is one that was renamed.
        let is_renamed = !self.had.is_empty() && names().any(|(name, _)| !had(&name));
        for column in Column::ALL {
            let name = columns.name(column);
            if lacks(name) && (is_required(column) || is_renamed && had(name)) {
                return Err(missing(&self.table, column));
            }
        }
        // Nobody takes them from the table, but who lists a publication's columns leaves them out.
        if OWN.iter().all(|name| had(name) && lacks(name)) {
            let problem = format!("columns {} are missing, or not published", OWN.join(", "));
            return Err(Error::Table(problem));
        }
        let meaning = |(name, type_oid): (Cow<'_, str>, u32)| match (columns.find(&name), &*name) {
            (Some(column), _) => Meaning::Event(column, type_oid),
            (None, "seq") => Meaning::Seq,
            (None, "txid") => Meaning::Txid,
            (None, "published_at") => Meaning::PublishedAt,
            (None, _) => Meaning::Nothing,
        };
        Ok(names().map(meaning).collect())
    }

    /// Decodes an insert. `None` if it is not into the outbox, or nothing is to be done about it, or
    /// nothing can be done, because it has no id: such rows are counted in the table.
    ///
    /// # Errors
    ///
    /// [`Error::Table`] if it is into a table that was or is the outbox under another name, or if the
    /// row comes before its relation: whatever else its columns hold is the event's own misfortune,
    /// which says so.
    pub(crate) fn insert(&self, insert: &Insert) -> Result<Option<Outgoing>, Error> {
        let layout = match self.relations.get(&insert.relation_oid) {
            Some(Layout::Outbox(layout)) => layout,
            Some(Layout::Foreign) => return Ok(None),
            Some(Layout::Former(name)) => {
                return Err(Error::Table(format!("rows went into {name}, as it was called")));
            }
            None => return Err(Error::Table("a row came before its relation".into())),
        };
        let mut partial = PartialEvent::new(NO_TIME);
        let (mut seq, mut txid) = (None, None);
        for (datum, meaning) in insert.tuple.iter().zip(layout) {
            match *meaning {
                Meaning::Event(column, type_oid) => {
                    partial.take(column, type_oid, &datum, &self.encoding)
                }
                Meaning::Seq => seq = long(&datum),
                Meaning::Txid => txid = long(&datum),
                // Restored from elsewhere, or moved to another partition.
                Meaning::PublishedAt if !is_nothing(&datum) => return Ok(None),
                Meaning::PublishedAt | Meaning::Nothing => {}
            }
        }
        // Everybody sees a row of that transaction, so it is the scanner's.
        if txid == Some(REQUEUED_TXID) {
            return Ok(None);
        }
        if !partial.has_id {
            return Ok(None);
        }
        self.address(partial, seq, txid).map(Some)
    }

    /// Decodes a row that was selected with [`scanned_columns`].
    pub fn scanned(&self, row: &ScannedRow) -> Result<Outgoing, Error> {
        let mut partial = PartialEvent::new(NO_TIME);
        for column in Column::ALL {
            let Raw { type_oid, bytes } = get(row, column as usize)?;
            let datum = bytes.map_or(Datum::Null, Datum::Binary);
            partial.take(column, type_oid, &datum, &self.encoding);
        }
        let behind = Column::ALL.len();
        let (seq, txid) = (get(row, behind)?, get(row, behind + 1)?);
        let mut outgoing = self.address(partial, seq, txid)?;
        let (attempts, due): (Option<i32>, Option<f64>) =
            (get(row, behind + 2)?, get(row, behind + 3)?);
        outgoing.tried = Tried::from_row(attempts, due);
        Ok(outgoing)
    }

    fn address(
        &self,
        partial: PartialEvent,
        seq: Option<i64>,
        txid: Option<i64>,
    ) -> Result<Outgoing, Error> {
        let PartialEvent { event, has_id, misfits } = partial;
        if !has_id {
            let name = self.table.columns().name(Column::Id);
            return Err(Error::Table(format!("column \"{name}\" holds no UUID")));
        }
        let subject = if misfits.is_empty() {
            self.routing.subject(&event)
        } else {
            let said = misfits.iter().map(|(column, why)| {
                format!("column \"{}\" {why}", self.table.columns().name(*column))
            });
            Err(Unpublished::Unfit(said.collect::<Vec<_>>().join("; ")))
        };
        let (requeued, tried) = (txid == Some(REQUEUED_TXID), Tried::default());
        Ok(Outgoing { event, subject, seq, requeued, tried, replayed: None })
    }
}

/// A row on its way to an event.
struct PartialEvent {
    event: Event,
    has_id: bool,
    /// Columns that hold what is of no use, and what that is.
    misfits: Vec<(Column, String)>,
}

impl PartialEvent {
    fn new(occurred_at: Timestamp) -> Self {
        // Neither allocates.
        Self { event: blank(occurred_at), has_id: false, misfits: Vec::new() }
    }

    fn take(&mut self, column: Column, type_oid: u32, datum: &Datum, encoding: &Encoding) {
        let converted = encoding.convert(type_oid, datum);
        let datum = converted.as_ref().map_or(datum, |(converted, _)| converted);
        if set(&mut self.event, column, type_oid, datum).is_none() {
            self.misfits.push((column, misfit(column, type_oid, datum)));
        } else if let Some((_, false)) = converted {
            let why = "holds bytes that have no equivalent in UTF-8, escaped in the dead letter";
            self.misfits.push((column, why.to_owned()));
        } else {
            self.has_id |= column == Column::Id && !is_nothing(datum);
        }
    }
}

/// What is wrong with a value. Payloads and headers are not repeated.
fn misfit(column: Column, type_oid: u32, datum: &Datum) -> String {
    match (column, datum) {
        (_, Datum::Null | Datum::Unchanged) => "holds null".to_owned(),
        (Column::EventVersion, Datum::Binary(bytes))
            if matches!(type_oid, INT2 | INT4 | INT8) && whole(bytes).is_some() =>
        {
            let version = whole(bytes).unwrap_or_default();
            format!("holds {version}, and a version is a whole number of 32 bits")
        }
        _ => "holds a value that cannot be read".to_owned(),
    }
}

fn is_nothing(datum: &Datum) -> bool {
    matches!(datum, Datum::Null | Datum::Unchanged)
}

/// A value as it comes, with its type's number.
struct Raw {
    type_oid: u32,
    bytes: Option<Bytes>,
}

impl<'a> FromSql<'a> for Raw {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self { type_oid: of.oid(), bytes: Some(Bytes::copy_from_slice(raw)) })
    }

    fn from_sql_null(of: &Type) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self { type_oid: of.oid(), bytes: None })
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn get<T: for<'a> FromSql<'a>>(row: &ScannedRow, at: usize) -> Result<T, Error> {
    row.try_get(at).map_err(Error::sql("read a scanned row"))
}

/// A time as PostgreSQL keeps it, in microseconds.
#[derive(Debug)]
pub(crate) struct Micros(i64);

impl From<Timestamp> for Micros {
    /// What became the end of jiff's range lay outside of it.
    fn from(time: Timestamp) -> Self {
        if time == Timestamp::MIN {
            return Self(i64::MIN); // -infinity
        }
        if time == Timestamp::MAX {
            return Self(i64::MAX); // infinity
        }
        Self(time.as_microsecond() - POSTGRES_EPOCH_UNIX_SECONDS * 1_000_000)
    }
}

impl ToSql for Micros {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_i64(self.0);
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
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

/// Puts a value in its place. `None` if it is none that belongs there.
fn set(event: &mut Event, column: Column, type_oid: u32, datum: &Datum) -> Option<()> {
    if matches!(datum, Datum::Null | Datum::Unchanged) {
        // Without a payload the message is empty.
        return (column == Column::Payload || !is_required(column)).then_some(());
    }
    match column {
        Column::Id => event.id = uuid(datum)?,
        Column::AggregateType => event.aggregate_type = string(datum, type_oid)?,
        Column::AggregateId => event.aggregate_id = string(datum, type_oid)?,
        Column::EventType => event.event_type = string(datum, type_oid)?,
        Column::EventVersion => event.event_version = integer(datum, type_oid)?,
        Column::Payload => event.payload = payload(datum, type_oid)?,
        Column::OccurredAt => event.occurred_at = instant(datum, type_oid)?,
        Column::CorrelationId => event.correlation_id = Some(uuid(datum)?),
        Column::CausationId => event.causation_id = Some(uuid(datum)?),
        Column::Headers => event.headers = Some(json(datum, type_oid)?),
    }
    Some(())
}

/// The server falls back to text for types without a binary form, column by column.
fn uuid(datum: &Datum) -> Option<Uuid> {
    match datum {
        Datum::Binary(bytes) if bytes.len() == 16 => Uuid::from_slice(bytes).ok(),
        Datum::Binary(text) | Datum::Text(text) => Uuid::try_parse_ascii(text).ok(),
        Datum::Null | Datum::Unchanged => None,
    }
}

/// As PostgreSQL prints it, or, where it pads with spaces, casts it to text. The binary form of a
/// user-defined type, such as an enumeration or `citext`, is taken for its text.
fn string(datum: &Datum, type_oid: u32) -> Option<ByteString> {
    match (datum, type_oid) {
        (Datum::Binary(bytes) | Datum::Text(bytes), BPCHAR) => {
            Some(std::str::from_utf8(bytes).ok()?.trim_end_matches(' ').into())
        }
        (Datum::Text(bytes), _) => ByteString::try_from(bytes.clone()).ok(),
        (Datum::Binary(_), UUID) => Some(uuid(datum)?.to_string().into()),
        (Datum::Binary(bytes), INT2 | INT4 | INT8) => Some(whole(bytes)?.to_string().into()),
        (Datum::Binary(bytes), TEXT | VARCHAR | NAME | CHAR | USER_DEFINED_MIN..) => {
            ByteString::try_from(bytes.clone()).ok()
        }
        _ => None,
    }
}

fn integer(datum: &Datum, type_oid: u32) -> Option<i32> {
    match (datum, type_oid) {
        (Datum::Binary(bytes), INT2 | INT4 | INT8) => whole(bytes)?.try_into().ok(),
        (Datum::Text(text), _) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// A number that only PostgreSQL writes.
fn long(datum: &Datum) -> Option<i64> {
    match datum {
        Datum::Binary(bytes) => whole(bytes),
        Datum::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        Datum::Null | Datum::Unchanged => None,
    }
}

/// The binary form of a whole number, whose width is its length.
fn whole(bytes: &[u8]) -> Option<i64> {
    match bytes.len() {
        2 => Some(i16::from_be_bytes(bytes.try_into().ok()?).into()),
        4 => Some(i32::from_be_bytes(bytes.try_into().ok()?).into()),
        8 => Some(i64::from_be_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// The payload's bytes: JSON and text as PostgreSQL prints them, `bytea` as it is.
fn payload(datum: &Datum, type_oid: u32) -> Option<Bytes> {
    match (datum, type_oid) {
        (Datum::Text(_), BYTEA) => None, // printed in hexadecimal, which nobody asked for
        (Datum::Binary(bytes), BYTEA) => Some(bytes.clone()),
        _ => json(datum, type_oid),
    }
}

fn json(datum: &Datum, type_oid: u32) -> Option<Bytes> {
    match (datum, type_oid) {
        (Datum::Text(bytes), _) => Some(bytes.clone()),
        (Datum::Binary(bytes), JSONB) => {
            (bytes.first() == Some(&JSONB_VERSION)).then(|| bytes.slice(1..))
        }
        (Datum::Binary(bytes), JSON | TEXT | VARCHAR) => Some(bytes.clone()),
        _ => None,
    }
}

fn instant(datum: &Datum, type_oid: u32) -> Option<Timestamp> {
    match (datum, type_oid) {
        (Datum::Binary(bytes), TIMESTAMPTZ | TIMESTAMP) => {
            Some(timestamp(i64::from_be_bytes(bytes.as_ref().try_into().ok()?)))
        }
        (Datum::Text(text), _) => Timestamp::from_str(std::str::from_utf8(text).ok()?).ok(),
        _ => None,
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
mod tests;
