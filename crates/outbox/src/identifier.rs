//! Names in SQL.

use crate::Malformed;

/// The most bytes that PostgreSQL keeps of an identifier; it cuts longer ones silently.
const IDENTIFIER_BYTES_MAX: usize = 63;

pub(crate) fn check_identifier(identifier: &str) -> Result<(), Malformed> {
    if identifier.is_empty() {
        return Err(Malformed::because("a name is empty"));
    }
    if identifier.len() > IDENTIFIER_BYTES_MAX {
        let problem =
            format!("the name {identifier:?} is longer than {IDENTIFIER_BYTES_MAX} bytes");
        return Err(problem.into());
    }
    if identifier.contains('\0') {
        return Err(Malformed::because("a name contains a nul byte"));
    }
    Ok(())
}

/// A name for use in SQL.
#[must_use]
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
