//! Rows of an outbox with odd values, each of which PostgreSQL takes.

use outbox::{Column, Columns, Table};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

/// Columns of a drawn row that are odd, at most.
const ODD_MAX: usize = 3;

/// The columns of a table, and what they may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxShape {
    /// The table that `tailpost setup` makes.
    Documented,
    /// A table made for something else: other names, looser types, NULL wherever it can be. See
    /// [`OutboxShape::create`].
    Adopted,
}

impl OutboxShape {
    /// `public.outbox_events` with these columns.
    #[must_use]
    pub fn table(self) -> Table {
        match self {
            Self::Documented => Table::default(),
            Self::Adopted => {
                let mut columns = Columns::default();
                for (column, name) in ADOPTED_NAMES {
                    columns.rename(*column, name).expect("a name that PostgreSQL takes");
                }
                Table::default().with_columns(columns).expect("each column has one meaning")
            }
        }
    }

    /// Creates the adopted table, before `tailpost setup`; empty for the documented one, which
    /// that creates.
    #[must_use]
    pub fn create(self) -> String {
        match self {
            Self::Documented => String::new(),
            Self::Adopted => format!("CREATE TABLE {} ({ADOPTED_COLUMNS})", self.table().quoted()),
        }
    }

    /// What the columns that every event has are called.
    fn names(self) -> [&'static str; 4] {
        match self {
            Self::Documented => ["aggregate_type", "aggregate_id", "event_type", "payload"],
            Self::Adopted => ["aggregatetype", "aggregateid", "type", "payload"],
        }
    }

    fn columns(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Documented => DOCUMENTED,
            Self::Adopted => ADOPTED,
        }
    }
}

/// A row to insert, and what is odd about it.
#[derive(Debug, Clone)]
pub struct HostileRow {
    /// Its id.
    pub id: Uuid,
    /// Whether it has `published_at`: somebody else published it, and nobody may do so again.
    pub is_published: bool,
    /// The odd columns, each with its value as an SQL expression.
    pub odd: Vec<(&'static str, &'static str)>,
    values: Vec<(&'static str, String)>,
}

impl HostileRow {
    /// The statement that inserts it.
    #[must_use]
    pub fn insert(&self, table: &Table) -> String {
        let names: Vec<String> = self.values.iter().map(|it| format!("\"{}\"", it.0)).collect();
        let values: Vec<&str> = self.values.iter().map(|it| it.1.as_str()).collect();
        let (names, values) = (names.join(", "), values.join(", "));
        format!("INSERT INTO {} ({names}) VALUES ({values})", table.quoted())
    }

    /// The odd columns, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let column = |(name, value): &(&str, &str)| {
            let end = value.floor_char_boundary(40);
            format!("{name} = {}", &value[..end])
        };
        self.odd.iter().map(column).collect::<Vec<_>>().join(", ")
    }
}

/// Draws rows. Each row is of an aggregate of its own unless its aggregate is what is odd.
pub struct Rows {
    shape: OutboxShape,
    random: StdRng,
    drawn: u64,
}

impl Rows {
    /// Fixes what [`Rows::draw`] returns, ids included.
    #[must_use]
    pub fn new(shape: OutboxShape, seed: u64) -> Self {
        Self { shape, random: StdRng::seed_from_u64(seed), drawn: 0 }
    }

    /// A row with one to three odd columns, or now and then none.
    pub fn draw(&mut self) -> HostileRow {
        let columns = self.shape.columns();
        let count = self.random.random_range(0..=ODD_MAX);
        let columns: Vec<_> = columns.sample(&mut self.random, count).copied().collect();
        let mut odd = Vec::with_capacity(count);
        for (name, values) in columns {
            odd.extend(values.choose(&mut self.random).map(|value| (name, *value)));
        }
        self.row(odd)
    }

    /// A row for each value of each column, with that one odd.
    pub fn every(&mut self) -> Vec<HostileRow> {
        let columns = self.shape.columns().iter();
        let each = columns.flat_map(|(name, values)| values.iter().map(|value| (*name, *value)));
        let each: Vec<_> = each.collect();
        each.into_iter().map(|odd| self.row(vec![odd])).collect()
    }

    fn row(&mut self, odd: Vec<(&'static str, &'static str)>) -> HostileRow {
        self.drawn += 1;
        let id = uuid::Builder::from_random_bytes(self.random.random()).into_uuid();
        let mut values = vec![("id", format!("'{id}'"))];
        let aggregate_id = format!("'h-{id}'");
        let plain = ["'hostile'", &aggregate_id, "'Odd'", "'{\"n\": 1}'"];
        values.extend(self.shape.names().into_iter().zip(plain.map(str::to_owned)));
        for (name, value) in &odd {
            values.retain(|it| it.0 != *name);
            values.push((*name, (*value).to_owned()));
        }
        let is_published = odd.iter().any(|it| it.0 == "published_at");
        HostileRow { id, is_published, odd, values }
    }
}

const ADOPTED_COLUMNS: &str = "
    id UUID PRIMARY KEY, aggregatetype VARCHAR, aggregateid TEXT, type TEXT, payload TEXT,
    headers TEXT, version BIGINT, created TIMESTAMP, correlation UUID";

const ADOPTED_NAMES: &[(Column, &str)] = &[
    (Column::AggregateType, "aggregatetype"),
    (Column::AggregateId, "aggregateid"),
    (Column::EventType, "type"),
    (Column::EventVersion, "version"),
    (Column::OccurredAt, "created"),
    (Column::CorrelationId, "correlation"),
];

/// Text that a subject, a header or an index may stumble over.
const TEXTS: &[&str] = &[
    "''",
    "' '",
    "' leading and trailing '",
    "'.'",
    "'*.>'",
    "'$JS.API.STREAM.DELETE.OUTBOX'",
    "'%'",
    "'%00'",
    r"E'\x01\x1b[31m\x7f'",
    r"E'a\r\nNats-Msg-Id: b\r\n\r\nc'",
    r"E'a\rb'",
    r"E'a\nb'",
    r"E'\t'",
    r"'\u0000'",
    r"E'\U0001F600\u202E\u0301\uFEFF'",
    r"E'\u0080\uFFFF'",
    "'null'",
    "repeat('x', 300)",
    "repeat('x', 70000)",
    "repeat('é', 700000)",
    // Not to be compressed, and beyond what fits an index.
    "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100) AS n)",
    "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) AS n)",
];

const UUIDS: &[&str] =
    &["NULL", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"];

const TIMES: &[&str] = &[
    "NULL",
    "'infinity'",
    "'-infinity'",
    "'4713-01-01 00:00:00 BC'",
    "'0001-12-31 23:59:59.999999 BC'",
    "'0001-01-01'",
    "'epoch'",
    "'9999-12-31 23:59:59.999999'",
    "'10000-01-01'",
    "'294276-12-31 23:59:59.999999'",
];

const JSON: &[&str] = &[
    "'null'",
    "'true'",
    "'\"\"'",
    "'[]'",
    "'{}'",
    "'-0'",
    "'1e400'",
    "'0.1000000000000000000000000000000000000000000000001'",
    r#"'{"": {"": [null, "\u0001\u001f\u007f\ud83d\ude00"]}}'"#,
    "to_jsonb(repeat('x', 5000))",
    "to_jsonb(repeat('x', 3000000))",
    "(repeat('[', 5000) || repeat(']', 5000))::jsonb",
    "to_jsonb(array_fill(0, ARRAY[100000]))",
    "(repeat('9', 100000))::jsonb",
];

const HEADERS: &[&str] = &[
    "NULL",
    "'null'",
    "'[]'",
    "'[[\"a\", \"b\"]]'",
    "'\"text\"'",
    "'42'",
    "'true'",
    "'{}'",
    r#"'{"": ""}'"#,
    r#"'{"a": null, "b": true, "c": 1e400, "d": [1], "e": {"f": "g"}}'"#,
    r#"'{"a\r\nNats-Msg-Id": "b\r\nc: d\r\n\r\n"}'"#,
    r#"'{"a b:c": "\u0001 \u007f", "\ud83d\ude00": "\ud83d\ude00", " ": " "}'"#,
    r#"'{"a": "\\u0000"}'"#,
    r#"'{"Nats-Msg-Id": "other", "nats-msg-id": "other", "NATS-Expected-Stream": "OTHER"}'"#,
    r#"'{"Nats-Expected-Last-Sequence": "1", "Nats-Expected-Last-Subject-Sequence": "7"}'"#,
    r#"'{"Nats-Rollup": "all", "Nats-TTL": "1s", "Nats-Marker-Reason": "MaxAge"}'"#,
    r#"'{"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Incr": "1", "Nats-Batch-Id": "b"}'"#,
    r#"'{"Tailpost-Position": "1:1:0/0:0", "Tailpost-Escaped": "a,b", "tailpost-event-id": "x"}'"#,
    r#"'{"Event-Type": "Other", "aggregate-id": "other", "Status": "503", "Description": "d"}'"#,
    r#"'{"Host": "h", "Content-Length": "7", "Transfer-Encoding": "chunked", "Cookie": "c"}'"#,
    r#"'{"a%": "%", "a%25": "%25", "X-Nats-Msg-Id": "x"}'"#,
    "jsonb_build_object('long', repeat('x', 70000))",
    "jsonb_build_object(repeat('n', 70000), 'long')",
    "jsonb_build_object('very long', repeat('x', 2000000))",
    "(SELECT jsonb_object_agg('h-' || n, n) FROM generate_series(1, 5000) AS n)",
    "(repeat('{\"a\":', 3000) || '1' || repeat('}', 3000))::jsonb",
];

const NUMBERS: &[&str] = &["NULL", "0", "-1", "2147483647", "-2147483648"];
const LONG_NUMBERS: &[&str] = &["NULL", "-1", "9223372036854775807", "-9223372036854775808"];

const DOCUMENTED: &[(&str, &[&str])] = &[
    ("aggregate_type", TEXTS),
    ("aggregate_id", TEXTS),
    ("event_type", TEXTS),
    ("event_version", NUMBERS),
    ("payload", JSON),
    ("occurred_at", TIMES),
    ("correlation_id", UUIDS),
    ("causation_id", UUIDS),
    ("headers", HEADERS),
    ("published_at", &["'infinity'", "'-infinity'", "now()"]),
    ("publish_attempts", NUMBERS),
    ("publish_error", TEXTS),
    ("next_attempt_at", TIMES),
    ("stream", TEXTS),
    ("stream_seq", LONG_NUMBERS),
    ("commit_lsn", &["NULL", "'0/0'", "'FFFFFFFF/FFFFFFFF'"]),
];

/// What only looser types can hold.
const ADOPTED: &[(&str, &[&str])] = &[
    ("aggregatetype", &["NULL", "''", "' '", "repeat('x', 70000)", r"E'a\r\nb'"]),
    ("aggregateid", &["NULL", "''", "' '", "repeat('x', 70000)", r"E'a\r\nb'"]),
    ("type", &["NULL", "''", "' '", "repeat('x', 70000)", r"E'a\r\nb'"]),
    ("payload", &["NULL", "''", "'no json'", r"E'\x01\U0001F600'", "repeat('x', 3000000)"]),
    (
        "headers",
        &[
            "NULL",
            "''",
            "' '",
            "'no json'",
            "'{'",
            "'{\"a\": 1'",
            "'{\"a\": 1} {\"b\": 2}'",
            "'{\"a\": 1,}'",
            "'NaN'",
            r#"'{"a": "\u0000"}'"#,
            r#"'{"\u0000": "a"}'"#,
            r#"'{"a": "\ud800"}'"#,
            r#"'{"a": 1, "a": 2}'"#,
            r#"'{"a": 1e999999}'"#,
            "repeat('[', 10000)",
            "repeat('{\"a\":', 10000) || '1' || repeat('}', 10000)",
        ],
    ),
    ("version", &["NULL", "0", "-1", "2147483648", "9223372036854775807", "-9223372036854775808"]),
    ("created", TIMES),
    ("correlation", UUIDS),
    ("publish_attempts", NUMBERS),
    ("next_attempt_at", TIMES),
];

#[cfg(test)]
mod tests {
    use outbox::migrations::{Layout, render};

    use super::*;
    use crate::{Postgres, PostgresOptions};

    #[test]
    fn a_seed_fixes_the_rows() {
        let drawn = |seed| {
            let mut rows = Rows::new(OutboxShape::Documented, seed);
            let table = Table::default();
            (0..50).map(|_| rows.draw().insert(&table)).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    /// Else it would test nothing.
    #[tokio::test]
    async fn postgres_takes_every_row() {
        let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
        let client = postgres.client("postgres").await.unwrap();
        for shape in [OutboxShape::Documented, OutboxShape::Adopted] {
            let table = shape.table();
            client.batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public").await.unwrap();
            client.batch_execute(&shape.create()).await.unwrap();
            client.batch_execute(&render(&table, Layout::Standard)).await.unwrap();
            let mut rows = Rows::new(shape, 1);
            let mut all = rows.every();
            all.extend((0..100).map(|_| rows.draw()));
            for row in all {
                let inserted = client.batch_execute(&row.insert(&table)).await;
                assert!(inserted.is_ok(), "{}: {inserted:?}", row.describe());
            }
        }
    }
}
