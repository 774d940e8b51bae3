use bytes::{Buf, Bytes};

use crate::{DecodeError, Lsn};

/// Takes fields off the front of a message; every method checks the length first.
pub(crate) struct Reader {
    bytes: Bytes,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    pub(crate) fn remaining(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.bytes.try_get_u8().map_err(|_| DecodeError::Truncated { field })
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.bytes.try_get_u16().map_err(|_| DecodeError::Truncated { field })
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.bytes.try_get_u32().map_err(|_| DecodeError::Truncated { field })
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.bytes.try_get_i32().map_err(|_| DecodeError::Truncated { field })
    }

    pub(crate) fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.bytes.try_get_i64().map_err(|_| DecodeError::Truncated { field })
    }

    pub(crate) fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.bytes.try_get_u64().map(Lsn).map_err(|_| DecodeError::Truncated { field })
    }

    pub(crate) fn bytes(
        &mut self,
        byte_count: usize,
        field: &'static str,
    ) -> Result<Bytes, DecodeError> {
        if byte_count > self.bytes.len() {
            return Err(DecodeError::Truncated { field });
        }
        Ok(self.bytes.split_to(byte_count))
    }

    /// A string that ends with a NUL byte. One that is not UTF-8 has a character for each byte.
    pub(crate) fn string(&mut self, field: &'static str) -> Result<String, DecodeError> {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let text = self.bytes.split_to(end.ok_or(DecodeError::Truncated { field })?);
        self.bytes.advance(1);
        Ok(match std::str::from_utf8(&text) {
            Ok(text) => text.to_owned(),
            Err(_) => text.iter().copied().map(char::from).collect(),
        })
    }

    /// Fails unless everything has been taken.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.bytes.len() {
            0 => Ok(()),
            byte_count => Err(DecodeError::TrailingBytes { byte_count }),
        }
    }
}
