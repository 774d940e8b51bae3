//! What a refusal of PostgreSQL's is about, by its SQLSTATE.

use tokio_postgres::error::SqlState;

use crate::Error;
use crate::postgres::sql::park::NO_LETTER;

/// Whether the statement failed, rather than the connection or the server.
pub(crate) fn is_refused(error: &tokio_postgres::Error) -> bool {
    // 57: the server ends or is ended; 53: it lacks something.
    let temporary = |code: &SqlState| ["57", "53", "08"].contains(&&code.code()[..2]);
    error.code().is_some_and(|code| !temporary(code)) && !asks_again(error)
}

/// Whether the database refuses what a statement says about a message: a value that it cannot keep
/// (22), a constraint (23), a limit (54), or a value that the driver cannot even send. Of a statement
/// about many messages it is one's fault.
pub(crate) fn is_about_data(error: &Error) -> bool {
    let Error::Sql { source, .. } = error else { return false };
    match source.code() {
        Some(code) => ["22", "23", "54"].contains(&&code.code()[..2]),
        None => source.to_string().starts_with("error serializing parameter"),
    }
}

/// Whether one of several events is to blame: what is said about it, or somebody has locked its
/// record.
pub(crate) fn is_of_one(error: &Error) -> bool {
    is_locked(error) || is_about_data(error) || matches!(error, Error::KeptOut { .. })
}

/// Whether somebody has locked what the statement needs.
pub(crate) fn is_locked(error: &Error) -> bool {
    matches!(error, Error::Sql { source, .. } if asks_again(source))
}

/// Why there is no dead letter.
pub(crate) fn without_letter(source: tokio_postgres::Error) -> Error {
    let of_cast = source.as_db_error();
    let of_cast = of_cast.filter(|it| *it.code() == SqlState::INVALID_TEXT_REPRESENTATION);
    if of_cast.is_some_and(|it| it.message().contains(NO_LETTER)) {
        return Error::KeptOut { table: "inbox_dead_letter", what: "the dead letter" };
    }
    Error::Sql { doing: "write a dead letter", source }
}

/// Whether a table or a column is not there.
pub(crate) fn is_lack(error: &tokio_postgres::Error) -> bool {
    [Some(&SqlState::UNDEFINED_TABLE), Some(&SqlState::UNDEFINED_COLUMN)].contains(&error.code())
}

/// Whether the role may not do that.
pub(crate) fn is_forbidden(error: &Error) -> bool {
    let Error::Sql { source, .. } = error else { return false };
    source.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
}

/// Whether two got in each other's way, and all is well with the database: a deadlock, a lock that
/// took too long, a serialization failure.
pub(crate) fn asks_again(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|it| it.code().starts_with("40") || *it == SqlState::LOCK_NOT_AVAILABLE)
}

/// Whether the server ended the statement, such as after `statement_timeout`.
pub(crate) fn takes_too_long(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}
