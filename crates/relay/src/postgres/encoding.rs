//! How texts become UTF-8 that a database has in another encoding.
//!
//! A server that converts for its client ends the statement, or the log, at the first byte that has no
//! equivalent, and again whenever it comes there. So rows come as they are stored, and are converted
//! here.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use futures_util::future::join_all;
use pgoutput::Datum;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::Connection;
use super::columns::{BPCHAR, CHAR, JSON, JSONB, NAME, TEXT, USER_DEFINED_MIN, VARCHAR};
use crate::error::Error;

const DOING: &str = "look at the database's encoding";

/// Has a session's rows come as they are stored. In UTF-8 that is no difference.
pub(crate) const AS_STORED: &str = "SELECT set_config('client_encoding', 'SQL_ASCII', false)";

/// What a database has its texts in.
#[derive(Debug, Clone)]
pub(crate) enum Encoding {
    Utf8,
    /// `SQL_ASCII`: whoever wrote a text knew.
    Unknown,
    /// One byte for a character: those of the bytes from 128 on that have an equivalent.
    OneByte(Arc<[Option<char>]>),
}

/// Why no relay works in a database with this encoding, and what to do, if so. With several bytes for a
/// character only the server knows which have an equivalent.
pub fn refusal(name: &str) -> Option<(String, String)> {
    (name.starts_with("EUC_") || name == "MULE_INTERNAL").then(|| {
        (
            format!("the database's encoding is {name}, in which texts may have no equivalent in UTF-8"),
            "move the database into one with ENCODING 'UTF8': `pg_dump`, CREATE DATABASE, `pg_restore`"
                .to_owned(),
        )
    })
}

/// The database's encoding.
///
/// # Errors
///
/// [`Error::Unusable`] if no relay works with it.
pub(super) async fn check(connection: &Connection) -> Result<String, Error> {
    let sql = "SELECT current_setting('server_encoding')";
    let name: String = connection.query_one(DOING, sql, &[]).await?.get(0);
    match refusal(&name) {
        Some((problem, fix)) => Err(Error::Unusable { problem, fix }),
        None => Ok(name),
    }
}

impl Encoding {
    /// Asks the server, which also says what the characters are.
    ///
    /// # Errors
    ///
    /// As [`check`].
    pub(crate) async fn of(connection: &Connection) -> Result<Self, Error> {
        match check(connection).await?.as_str() {
            "UTF8" => return Ok(Self::Utf8),
            "SQL_ASCII" => return Ok(Self::Unknown),
            _ => {}
        }
        let bytes: Vec<i32> = (128..256).collect();
        let statement = connection.prepare("SELECT chr($1)").await?;
        let asked =
            bytes.iter().map(async |byte| connection.client().query_one(&statement, &[byte]).await);
        let character = |answer: Result<Row, tokio_postgres::Error>| match answer {
            Ok(row) => Ok(row.get::<_, String>(0).chars().next()),
            Err(error) if error.code() == Some(&SqlState::UNTRANSLATABLE_CHARACTER) => Ok(None),
            Err(error) => Err(Error::sql(DOING)(error)),
        };
        let characters: Result<_, _> = join_all(asked).await.into_iter().map(character).collect();
        characters.map(Self::OneByte)
    }

    /// A value of type `type_oid` in UTF-8, and whether all of it is a text: what is not is escaped.
    /// `None` if it stays as it is.
    pub(super) fn convert(&self, type_oid: u32, datum: &Datum) -> Option<(Datum, bool)> {
        if let Self::Utf8 = self {
            return None;
        }
        let is_text = matches!(
            type_oid,
            TEXT | VARCHAR | NAME | CHAR | BPCHAR | JSON | JSONB | USER_DEFINED_MIN..
        );
        let bytes = match datum {
            Datum::Binary(bytes) | Datum::Text(bytes) if is_text && !bytes.is_ascii() => bytes,
            Datum::Binary(_) | Datum::Text(_) | Datum::Null | Datum::Unchanged => return None,
        };
        let (mut text, mut is_whole) = (String::with_capacity(bytes.len() + 16), true);
        for chunk in bytes.utf8_chunks() {
            match self {
                Self::Utf8 | Self::Unknown => {
                    text.push_str(chunk.valid());
                    escape(chunk.invalid(), &mut text);
                    is_whole &= chunk.invalid().is_empty();
                }
                Self::OneByte(characters) => {
                    for byte in chunk.valid().bytes().chain(chunk.invalid().iter().copied()) {
                        match one(characters, byte) {
                            Some(character) => text.push(character),
                            None => {
                                escape(&[byte], &mut text);
                                is_whole = false;
                            }
                        }
                    }
                }
            }
        }
        Some((Datum::Binary(text.into()), is_whole))
    }

    /// A name of the log, of which each byte is a character if it is no UTF-8.
    pub(super) fn name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self {
            Self::OneByte(characters) if !name.is_ascii() => {
                let character = |it: char| {
                    u8::try_from(it).ok().and_then(|it| one(characters, it)).unwrap_or(it)
                };
                name.chars().map(character).collect()
            }
            Self::Utf8 | Self::Unknown | Self::OneByte(_) => name.into(),
        }
    }
}

fn one(characters: &[Option<char>], byte: u8) -> Option<char> {
    match byte.checked_sub(128) {
        None => Some(byte.into()),
        Some(at) => characters.get(usize::from(at)).copied().flatten(),
    }
}

/// As PostgreSQL escapes them.
fn escape(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let _ = write!(text, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_has_no_equivalent_is_escaped_and_said() {
        let mut high = vec![None; 128];
        (high[0], high[105]) = (Some('€'), Some('é'));
        let one_byte = Encoding::OneByte(high.into());
        let converted = |encoding: &Encoding, oid, bytes: &'static [u8]| {
            let (datum, is_whole) = encoding.convert(oid, &Datum::Binary(Bytes::from(bytes)))?;
            let Datum::Binary(bytes) = datum else { panic!("text") };
            Some((String::from_utf8(bytes.to_vec()).unwrap(), is_whole))
        };
        let whole = |text: &str| Some((text.to_owned(), true));
        let escaped = |text: &str| Some((text.to_owned(), false));
        assert_eq!(converted(&one_byte, TEXT, b"caf\xe9 \x80"), whole("café €"));
        assert_eq!(converted(&one_byte, JSONB, b"\x01\"\x81\""), escaped("\x01\"\\201\""));
        assert_eq!(converted(&one_byte, super::super::columns::BYTEA, b"\x81"), None);
        assert_eq!(converted(&Encoding::Unknown, TEXT, "é".as_bytes()), whole("é"));
        assert_eq!(converted(&Encoding::Unknown, TEXT, b"a\xe9b"), escaped("a\\351b"));
        assert_eq!(converted(&Encoding::Utf8, TEXT, b"\xe9"), None);
        assert_eq!(one_byte.name("\u{e9}\u{80}"), "é€");
    }
}
