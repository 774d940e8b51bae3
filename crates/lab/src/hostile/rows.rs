//! Rows of an outbox with odd values, each of which PostgreSQL takes.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

/// Columns of a drawn row that are odd, at most.
const ODD_MAX: usize = 3;

/// How the outbox was made. All shapes have the documented names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The documented table.
    Documented,
    /// A table that was made for something else: nothing but the id has to be there, and types are
    /// as wide as the relay allows.
    Adopted,
    /// The documented columns, partitioned by time.
    Partitioned,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 3] = [Self::Documented, Self::Adopted, Self::Partitioned];

    /// The statements that make the table, before `tailpost setup`.
    pub fn create(self) -> &'static str {
        match self {
            Self::Documented => {
                "CREATE TABLE outbox_events (
                     id UUID PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
                     event_type TEXT NOT NULL, event_version INT DEFAULT 1, payload JSONB NOT NULL,
                     occurred_at TIMESTAMPTZ DEFAULT NOW(), correlation_id UUID, causation_id UUID,
                     headers JSONB, published_at TIMESTAMPTZ, publish_attempts INT DEFAULT 0,
                     publish_error TEXT)"
            }
            Self::Adopted => {
                "CREATE TABLE outbox_events (
                     id UUID PRIMARY KEY, aggregate_type VARCHAR, aggregate_id TEXT,
                     event_type BPCHAR, event_version BIGINT, payload TEXT,
                     occurred_at TIMESTAMP, correlation_id UUID, causation_id UUID, headers TEXT,
                     published_at TIMESTAMPTZ, publish_attempts INT, publish_error TEXT)"
            }
            Self::Partitioned => {
                "CREATE TABLE outbox_events (
                     id UUID, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
                     event_type TEXT NOT NULL, event_version INT DEFAULT 1, payload JSONB NOT NULL,
                     occurred_at TIMESTAMPTZ DEFAULT NOW(), correlation_id UUID, causation_id UUID,
                     headers JSONB, published_at TIMESTAMPTZ, publish_attempts INT DEFAULT 0,
                     publish_error TEXT, txid XID8 DEFAULT pg_current_xact_id(), seq BIGSERIAL,
                     PRIMARY KEY (id, occurred_at)
                 ) PARTITION BY RANGE (occurred_at);
                 CREATE TABLE outbox_old PARTITION OF outbox_events
                     FOR VALUES FROM (MINVALUE) TO ('2000-01-01');
                 CREATE TABLE outbox_rest PARTITION OF outbox_events DEFAULT"
            }
        }
    }

    /// The columns that say something about the event, and what they may hold.
    fn columns(self) -> Vec<(&'static str, &'static [&'static str])> {
        let mut columns = DOCUMENTED.to_vec();
        for column in &mut columns {
            let own = match self {
                Self::Documented => None,
                Self::Adopted => ADOPTED.iter().find(|it| it.0 == column.0),
                // The key of a partitioned table holds its time.
                Self::Partitioned => (column.0 == "occurred_at").then_some(&TIMES_OF_A_KEY),
            };
            *column = own.copied().unwrap_or(*column);
        }
        columns
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
    pub fn insert(&self) -> String {
        self.insert_as(self.id)
    }

    /// The statement that inserts it under another id, so that it can be told from the first.
    pub fn insert_as(&self, id: Uuid) -> String {
        let names: Vec<&str> = self.values.iter().map(|it| it.0).collect();
        let values: Vec<&str> = self.values.iter().map(|it| it.1.as_str()).collect();
        let (names, values) = (names.join(", "), values.join(", "));
        format!("INSERT INTO outbox_events (id, {names}) VALUES ('{id}', {values})")
    }

    /// The odd columns, for people.
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
    columns: Vec<(&'static str, &'static [&'static str])>,
    random: StdRng,
}

impl Rows {
    /// Fixes what [`Rows::draw`] returns, ids included.
    pub fn new(shape: Shape, seed: u64) -> Self {
        Self { columns: shape.columns(), random: StdRng::seed_from_u64(seed) }
    }

    /// Also what the relay writes down about an event is odd.
    pub fn with_bookkeeping(mut self) -> Self {
        self.columns.extend_from_slice(BOOKKEEPING);
        self
    }

    /// A row with one to three odd columns, or now and then none.
    pub fn draw(&mut self) -> HostileRow {
        let count = self.random.random_range(0..=ODD_MAX);
        let columns: Vec<_> = self.columns.sample(&mut self.random, count).copied().collect();
        let mut odd = Vec::with_capacity(count);
        for (name, values) in columns {
            odd.extend(values.choose(&mut self.random).map(|value| (name, *value)));
        }
        self.row(odd)
    }

    /// A row for each value of each column, with that one odd.
    pub fn every(&mut self) -> Vec<HostileRow> {
        let columns = self.columns.iter();
        let each = columns.flat_map(|(name, values)| values.iter().map(|value| (*name, *value)));
        let each: Vec<_> = each.collect();
        each.into_iter().map(|odd| self.row(vec![odd])).collect()
    }

    fn row(&mut self, odd: Vec<(&'static str, &'static str)>) -> HostileRow {
        let id = uuid::Builder::from_random_bytes(self.random.random()).into_uuid();
        let plain = [
            ("aggregate_type", "'hostile'".to_owned()),
            ("aggregate_id", format!("'h-{id}'")),
            ("event_type", "'Odd'".to_owned()),
            ("payload", "'{\"n\": 1}'".to_owned()),
        ];
        let mut values = Vec::from(plain);
        values.retain(|it| odd.iter().all(|odd| odd.0 != it.0));
        values.extend(odd.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let is_published = odd.iter().any(|it| it.0 == "published_at");
        HostileRow { id, is_published, odd, values }
    }
}

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
];

const BOOKKEEPING: &[(&str, &[&str])] = &[
    ("published_at", &["'infinity'", "'-infinity'", "now()"]),
    ("publish_attempts", NUMBERS),
    ("publish_error", TEXTS),
    ("next_attempt_at", TIMES),
    ("stream", TEXTS),
    ("stream_seq", LONG_NUMBERS),
    ("commit_lsn", &["NULL", "'0/0'", "'FFFFFFFF/FFFFFFFF'"]),
];

const TIMES_OF_A_KEY: (&str, &[&str]) = ("occurred_at", TIMES.split_at(1).1);

const LOOSE_TEXTS: &[&str] = &[
    "NULL",
    "''",
    "' '",
    "'a.b > * c'",
    "'%00%2E'",
    "repeat('x', 70000)",
    r"E'a\r\nb'",
    // Not to be compressed, and beyond what fits an index.
    "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n)",
];

/// What only looser types can hold.
const ADOPTED: &[(&str, &[&str])] = &[
    ("aggregate_type", LOOSE_TEXTS),
    ("aggregate_id", LOOSE_TEXTS),
    ("event_type", LOOSE_TEXTS),
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
    (
        "event_version",
        &["NULL", "0", "-1", "2147483648", "9223372036854775807", "-9223372036854775808"],
    ),
];

#[cfg(test)]
mod tests {
    use outbox::Table;
    use outbox::migrations::{Layout, migrate};

    use super::*;
    use crate::{Postgres, PostgresOptions};

    #[test]
    fn a_seed_fixes_the_rows() {
        let drawn = |seed| {
            let mut rows = Rows::new(Shape::Documented, seed);
            (0..50).map(|_| rows.draw().insert()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    /// Else it would test nothing.
    #[tokio::test]
    async fn postgres_takes_every_row() {
        let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
        let mut client = postgres.client("postgres").await.unwrap();
        for shape in Shape::ALL {
            client.batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public").await.unwrap();
            client.batch_execute(shape.create()).await.unwrap();
            migrate(&mut client, &Table::default(), Layout::Marked).await.unwrap();
            let mut rows = Rows::new(shape, 1).with_bookkeeping();
            let mut all = rows.every();
            all.extend((0..100).map(|_| rows.draw()));
            for row in all {
                let inserted = client.batch_execute(&row.insert()).await;
                assert!(inserted.is_ok(), "{shape:?}: {}: {inserted:?}", row.describe());
            }
        }
    }
}
