//! Names in SQL.

/// The most bytes that PostgreSQL keeps of an identifier; it cuts longer ones silently.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Why a table's name is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Not of the form `name` or `schema.name`.
    #[error(
        "not a table name; write schema.name, and put names with capitals or other characters \
         than a-z, 0-9 and _ in double quotes"
    )]
    Syntax,
    /// A name is empty.
    #[error("a name is empty")]
    Empty,
    /// PostgreSQL would shorten a name.
    #[error("the name {identifier:?} is longer than {IDENTIFIER_BYTES_MAX} bytes")]
    TooLong {
        /// The name.
        identifier: String,
    },
    /// A name contains a NUL byte.
    #[error("a name contains a nul byte")]
    Nul,
    /// A column would hold two things.
    #[error("the column {name} is named twice, or is one that the relay keeps for itself")]
    Column {
        /// The name.
        name: String,
    },
    /// The name is taken by an object that belongs to the outbox.
    #[error("the name {name} is needed for an object beside the outbox table")]
    Companion {
        /// The name.
        name: String,
    },
}

pub(crate) fn check_identifier(identifier: &str) -> Result<(), TableError> {
    if identifier.is_empty() {
        return Err(TableError::Empty);
    }
    if identifier.len() > IDENTIFIER_BYTES_MAX {
        return Err(TableError::TooLong { identifier: identifier.to_owned() });
    }
    if identifier.contains('\0') {
        return Err(TableError::Nul);
    }
    Ok(())
}

/// A name for use in SQL.
#[must_use]
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
