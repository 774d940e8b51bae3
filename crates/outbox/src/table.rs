use std::fmt;
use std::str::FromStr;

use crate::identifier::{check_identifier, quote};
use crate::{Column, Columns, Malformed};

/// What `publish_error` says of a row that has `published_at` although no stream has the event: a
/// route of the relay dropped it. Such a row has neither `stream` nor `stream_seq`.
pub const DROPPED: &str = "dropped by a route";

/// The tables that the migrations create beside the outbox.
pub const COMPANIONS: [&str; 16] = [
    "outbox_dead_letter",
    "outbox_dead_letter_audit",
    STATUS_VIEW,
    "tailpost_detached",
    "tailpost_epochs",
    "tailpost_migrations",
    "tailpost_owed",
    "tailpost_published",
    "tailpost_published_history",
    "tailpost_replay_events",
    "tailpost_replays",
    "tailpost_retention",
    "tailpost_rewind",
    "tailpost_rewind_marks",
    "tailpost_state",
    "tailpost_streams",
];

const SYNTAX: Malformed = Malformed::because(
    "not a table name; write schema.name, and put names with capitals or other characters than a-z, \
     0-9 and _ in double quotes",
);

/// The view among them.
pub(crate) const STATUS_VIEW: &str = "outbox_status";

/// The name of an outbox table. Its companions live in the same schema.
///
/// Parsed from `name` (in `public`) or `schema.name`. Names that PostgreSQL would fold or refuse
/// unquoted are written in double quotes, as in SQL: `app."Order Events"`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    schema: String,
    name: String,
    columns: Columns,
}

impl Table {
    /// Names a table by its exact schema and name, unquoted.
    ///
    /// # Errors
    ///
    /// If PostgreSQL would refuse or shorten a name, or the name is one of a companion object.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Result<Self, Malformed> {
        let columns = Columns::default();
        let table = Self { schema: schema.into(), name: name.into(), columns };
        check_identifier(&table.schema)?;
        check_identifier(&table.name)?;
        if COMPANIONS.contains(&table.name.as_str()) {
            let problem =
                format!("the name {} is needed for an object beside the outbox table", table.name);
            return Err(problem.into());
        }
        Ok(table)
    }

    /// The same table, whose columns are called as `columns` says.
    ///
    /// # Errors
    ///
    /// If a column has two meanings.
    pub fn with_columns(self, columns: Columns) -> Result<Self, Malformed> {
        columns.check()?;
        Ok(Self { columns, ..self })
    }

    /// What its columns are called.
    #[must_use]
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The name of a column, quoted for use in SQL.
    #[must_use]
    pub fn column(&self, column: Column) -> String {
        self.columns.quoted(column)
    }

    /// The schema, unquoted.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The name within its schema, unquoted.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The qualified name, quoted for use in SQL.
    #[must_use]
    pub fn quoted(&self) -> String {
        self.companion(&self.name)
    }

    /// The qualified and quoted name of another object in the same schema, such as
    /// `tailpost_state`.
    #[must_use]
    pub fn companion(&self, name: &str) -> String {
        format!("{}.{}", quote(&self.schema), quote(name))
    }

    /// The prefix of messages in PostgreSQL's log that are events of this outbox
    /// (`outbox_emit_wal`). Outboxes of one database have different ones.
    #[must_use]
    pub fn wal_prefix(&self) -> String {
        format!("tailpost:{self}")
    }

    /// The schema, quoted for use in SQL.
    #[must_use]
    pub fn quoted_schema(&self) -> String {
        quote(&self.schema)
    }
}

impl Default for Table {
    /// `public.outbox_events`.
    fn default() -> Self {
        let (schema, name) = ("public".to_owned(), "outbox_events".to_owned());
        Self { schema, name, columns: Columns::default() }
    }
}

impl fmt::Display for Table {
    /// Quotes only what needs it; parses back to the same table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, identifier) in [&self.schema, &self.name].into_iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            if is_plain(identifier) {
                f.write_str(identifier)?;
            } else {
                f.write_str(&quote(identifier))?;
            }
        }
        Ok(())
    }
}

impl FromStr for Table {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (first, rest) = take_identifier(text)?;
        match rest.strip_prefix('.') {
            None if rest.is_empty() => Self::new("public", first),
            Some(rest) => match take_identifier(rest)? {
                (second, "") => Self::new(first, second),
                _ => Err(SYNTAX),
            },
            None => Err(SYNTAX),
        }
    }
}

/// Whether PostgreSQL takes the name as it is without quotes (keywords aside, which it refuses).
fn is_plain(identifier: &str) -> bool {
    let mut bytes = identifier.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Splits one identifier off the front and removes its quotes.
fn take_identifier(text: &str) -> Result<(String, &str), Malformed> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let (identifier, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
        let valid = identifier.is_empty() || is_plain(identifier);
        return if valid { Ok((identifier.to_owned(), rest)) } else { Err(SYNTAX) };
    };
    let mut identifier = String::new();
    loop {
        let (part, after) = rest.split_once('"').ok_or(SYNTAX)?;
        identifier.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                identifier.push('"');
                rest = after;
            }
            None => return Ok((identifier, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_parsed_as_sql_would() {
        for (text, schema, name) in [
            ("outbox_events", "public", "outbox_events"),
            ("app.events", "app", "events"),
            (r#"app."Order Events""#, "app", "Order Events"),
            (r#""a.b"."c""d""#, "a.b", "c\"d"),
        ] {
            assert_eq!(text.parse(), Table::new(schema, name), "{text}");
        }
        for text in ["Events", "a b", "a.b.c", "\"a", "\"a\"b", "a;b", "\"a\".\"b\"c"] {
            assert_eq!(text.parse::<Table>(), Err(SYNTAX), "{text}");
        }
        for text in ["", ".", "a.", ".a", "\"\""] {
            let refused = text.parse::<Table>().unwrap_err().to_string();
            assert_eq!(refused, "a name is empty", "{text}");
        }
    }

    #[test]
    fn names_that_postgres_would_change_or_the_outbox_needs_are_refused() {
        let long = "x".repeat(64);
        assert!(Table::new("public", "x".repeat(63)).is_ok());
        let refused = |table: Result<Table, Malformed>| table.unwrap_err().to_string();
        let is = refused(Table::new("public", &long));
        assert_eq!(is, format!("the name {long:?} is longer than 63 bytes"));
        assert_eq!(refused(Table::new("a\0b", "t")), "a name contains a nul byte");
        let is = refused("tailpost_state".parse());
        assert_eq!(is, "the name tailpost_state is needed for an object beside the outbox table");
    }

    #[test]
    fn quoting_survives_hostile_names() {
        let table = Table::new("s\"; --", "{schema}").unwrap();
        assert_eq!(table.quoted(), r#""s""; --"."{schema}""#);
        assert_eq!(table.companion("tailpost_state"), r#""s""; --"."tailpost_state""#);
    }

    proptest! {
        #[test]
        fn display_round_trips(schema in "[^\0]{1,15}", name in "[^\0]{1,15}") {
            if let Ok(table) = Table::new(schema, name) {
                prop_assert_eq!(table.to_string().parse(), Ok(table));
            }
        }
    }
}
