use std::fmt;

use bytes::{Buf, Bytes};

use crate::DecodeError;
use crate::reader::Reader;

/// One value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    /// SQL `NULL`.
    Null,
    /// A TOASTed value that the update did not touch; the log does not carry it.
    Unchanged,
    /// The value as its type's output function prints it.
    Text(Bytes),
    /// The value as its type's send function writes it (only with the option `binary`).
    Binary(Bytes),
}

/// The values of one row, in the column order of its relation.
///
/// Checked when it was decoded, so iterating cannot fail. Cheap to clone: it is a slice of the
/// message it came in, and keeps that message in memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Tuple {
    column_count: u16,
    // Invariant: holds exactly `column_count` well-formed values.
    values: Bytes,
}

impl Tuple {
    /// The number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.column_count)
    }

    /// Whether the row has no columns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.column_count == 0
    }

    /// Iterates over the values without allocating.
    #[must_use]
    pub fn iter(&self) -> Datums {
        Datums { column_count: self.column_count, values: self.values.clone() }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let column_count = reader.u16("column count")?;
        let byte_count = check_values(reader.remaining(), column_count)?;
        Ok(Self { column_count, values: reader.bytes(byte_count, "row")? })
    }
}

impl IntoIterator for &Tuple {
    type Item = Datum;
    type IntoIter = Datums;

    fn into_iter(self) -> Datums {
        self.iter()
    }
}

impl fmt::Debug for Tuple {
    /// Prints the shape only: rows carry what must not end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tuple")
            .field("column_count", &self.column_count)
            .field("byte_count", &self.values.len())
            .finish()
    }
}

/// Returns how many bytes `column_count` values take at the front of `bytes`.
fn check_values(bytes: &[u8], column_count: u16) -> Result<usize, DecodeError> {
    const TRUNCATED: DecodeError = DecodeError::Truncated { field: "row" };

    let mut rest = bytes;
    for _ in 0..column_count {
        let (kind, tail) = rest.split_first().ok_or(TRUNCATED)?;
        rest = match kind {
            b'n' | b'u' => tail,
            b't' | b'b' => {
                let (length, tail) = tail.split_first_chunk().ok_or(TRUNCATED)?;
                // A length that does not fit is longer than any message.
                let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| TRUNCATED)?;
                tail.get(length..).ok_or(TRUNCATED)?
            }
            kind => return Err(DecodeError::UnknownValue { field: "kind of value", value: *kind }),
        };
    }
    Ok(bytes.len() - rest.len())
}

/// Iterator over the values of a [`Tuple`].
#[derive(Clone)]
pub struct Datums {
    column_count: u16,
    values: Bytes,
}

impl Datums {
    fn counted(&mut self) -> Bytes {
        let length = self.values.get_u32();
        self.values.split_to(usize::try_from(length).expect("the length was checked"))
    }
}

impl Iterator for Datums {
    type Item = Datum;

    fn next(&mut self) -> Option<Datum> {
        self.column_count = self.column_count.checked_sub(1)?;
        Some(match self.values.get_u8() {
            b'n' => Datum::Null,
            b'u' => Datum::Unchanged,
            b't' => Datum::Text(self.counted()),
            // The only kind left: `check_values` refused every other.
            _ => Datum::Binary(self.counted()),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.column_count), Some(usize::from(self.column_count)))
    }
}

impl ExactSizeIterator for Datums {}

impl fmt::Debug for Datums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datums").field("column_count", &self.column_count).finish_non_exhaustive()
    }
}
