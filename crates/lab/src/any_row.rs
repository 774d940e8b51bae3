//! Rows of an outbox with any values that PostgreSQL takes for their columns.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

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
    #[must_use]
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

    fn allows_null(self) -> bool {
        self == Self::Adopted
    }
}

/// A source of such rows. The same seed brings the same rows, but for their ids' being unique.
#[derive(Debug)]
pub struct AnyRow {
    rng: StdRng,
    shape: Shape,
}

/// A row, as the values of an INSERT.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// The event's id.
    pub id: Uuid,
    /// The values of [`AnyRow::COLUMNS`], as SQL.
    pub values: String,
}

impl AnyRow {
    /// The columns that are drawn.
    pub const COLUMNS: &str = "id, aggregate_type, aggregate_id, event_type, event_version, \
                               payload, occurred_at, correlation_id, causation_id, headers";

    /// Rows for a table of `shape`.
    #[must_use]
    pub fn new(seed: u64, shape: Shape) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), shape }
    }

    /// Draws a row. Half of its values are harmless.
    pub fn draw(&mut self) -> Drawn {
        let id = Uuid::from_u128(self.rng.random());
        let values = [
            format!("'{id}'"),
            self.name("order"),
            self.name("o-1"),
            self.name("Placed"),
            self.version(),
            self.payload(),
            self.time(),
            self.uuid(),
            self.uuid(),
            self.headers(),
        ];
        Drawn { id, values: values.join(", ") }
    }

    /// The statement that inserts a row under another id, so that it can be told from the first.
    #[must_use]
    pub fn insert(id: Uuid, drawn: &Drawn) -> String {
        let values = drawn.values.replacen(&drawn.id.to_string(), &id.to_string(), 1);
        format!("INSERT INTO outbox_events ({}) VALUES ({values})", Self::COLUMNS)
    }

    fn one_of(&mut self, values: &[&str]) -> String {
        values[self.rng.random_range(0..values.len())].to_owned()
    }

    fn is_harmless(&mut self) -> bool {
        self.rng.random_bool(0.5)
    }

    fn null_or(&mut self, otherwise: &str) -> String {
        if self.shape.allows_null() { "NULL".into() } else { otherwise.into() }
    }

    fn name(&mut self, harmless: &str) -> String {
        if self.is_harmless() {
            return format!("'{harmless}'");
        }
        match self.rng.random_range(0..10) {
            0 => self.null_or("''"),
            // Does not compress: longer than an index takes, in a page and in all.
            1 => self.long(90),
            2 => self.long(300),
            _ => self.one_of(&[
                "''",
                "' '",
                "'a.b > * c'",
                "E'\\r\\nNats-Msg-Id: x\\t\\x01\\x7f'",
                "'\u{fc}\u{1f980}\u{feff}'",
                "repeat('x', 3000)",
                "'%00%2E'",
                "'$JS.API.>'",
            ]),
        }
    }

    fn long(&mut self, pieces: u32) -> String {
        let seed = self.rng.random_range(0..i32::MAX);
        format!(
            "(SELECT string_agg(md5((n + {seed})::TEXT), '') FROM generate_series(1, {pieces}) n)"
        )
    }

    fn version(&mut self) -> String {
        if self.is_harmless() {
            return "1".into();
        }
        match self.shape {
            Shape::Adopted => {
                self.one_of(&["NULL", "3000000000", "-9223372036854775808", "2147483647"])
            }
            _ => self.one_of(&["NULL", "0", "-2147483648", "2147483647"]),
        }
    }

    fn payload(&mut self) -> String {
        if self.is_harmless() {
            return "'{\"n\": 1}'".into();
        }
        if self.shape == Shape::Adopted {
            return self.one_of(&["NULL", "''", "'no json'", "E'\\x01'", "'{\"a\":'", "'\\u0000'"]);
        }
        self.one_of(&[
            "'null'",
            "'1e400'",
            "('1' || repeat('0', 1000) || '.5')::JSONB",
            "'\"\\u0001\\ufffe\"'",
            "(repeat('[', 500) || repeat(']', 500))::JSONB",
            "jsonb_build_object('x', repeat('y', 100000))",
            "'[]'",
        ])
    }

    fn time(&mut self) -> String {
        if self.is_harmless() {
            return "'2026-11-21 01:24:33.123456'".into();
        }
        match self.shape {
            Shape::Partitioned => self.one_of(&[
                "'infinity'",
                "'-infinity'",
                "'4713-01-01 BC'",
                "'294276-12-31 23:59:59.999999'",
                "'1969-12-31 23:59:59.999999'",
            ]),
            _ => self.one_of(&[
                "NULL",
                "'infinity'",
                "'-infinity'",
                "'4713-01-01 BC'",
                "'0044-03-15 BC'",
                "'294276-12-31 23:59:59.999999'",
                "'9999-12-31 23:59:59.999999'",
            ]),
        }
    }

    fn uuid(&mut self) -> String {
        self.one_of(&[
            "NULL",
            "'00000000-0000-0000-0000-000000000000'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        ])
    }

    fn headers(&mut self) -> String {
        if self.is_harmless() {
            return self.one_of(&["NULL", "'{\"traceparent\": \"00-1-2-3\"}'"]);
        }
        if self.shape == Shape::Adopted {
            return self.one_of(&[
                "''",
                "'no json'",
                "'{\"a\":'",
                "'{\"a\": \"\\u0000\"}'",
                "'{\"a\": \"\\ud800\"}'",
                "'{\"a\": 1e999999999}'",
                "'[1]'",
                "'null'",
                "'{} {}'",
                "E'{\"a\": \"\\x01\"}'",
                "repeat('[', 20000)",
            ]);
        }
        self.one_of(&[
            "'null'",
            "'[]'",
            "'3'",
            "'\"text\"'",
            "'{\"\": \"\", \" \": \"x\", \"a:b\\r\\nc\": \"d\\r\\ne\"}'",
            "'{\"Nats-Msg-Id\": \"x\", \"Event-Type\": \"y\", \"Tailpost-Position\": \"z\"}'",
            "'{\"n\": 1e400, \"deep\": [[[{}]]]}'",
            "jsonb_build_object('big', repeat('x', 100000))",
            "jsonb_build_object(repeat('k', 70000), 'v')",
        ])
    }
}
