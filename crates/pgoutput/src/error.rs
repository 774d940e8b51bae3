/// Why a `pgoutput` message could not be decoded.
///
/// Every variant means that both sides do not speak the same protocol: trying again with the same
/// bytes fails the same way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ended in the middle of a field.
    #[error("pgoutput message ends in the middle of its {field}")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
    },
    /// Bytes were left over after the last field.
    #[error("pgoutput message has {byte_count} bytes after its end")]
    TrailingBytes {
        /// How many bytes were left over.
        byte_count: usize,
    },
    /// The first byte names no message of protocol version 1.
    #[error("unknown pgoutput message tag {}", tag.escape_ascii())]
    UnknownTag {
        /// The first byte of the message.
        tag: u8,
    },
    /// A field holds a value that the protocol does not define.
    #[error("unknown {field} {} in a pgoutput message", value.escape_ascii())]
    UnknownValue {
        /// The field that was being read.
        field: &'static str,
        /// The byte found there.
        value: u8,
    },
}
