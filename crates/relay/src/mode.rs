use serde::{Deserialize, Serialize};

/// How events are kept single and in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each message names the sequence it must follow; the relay is the stream's only writer.
    #[default]
    Fenced,
    /// One unacknowledged message per aggregate, deduplicated by id; the stream may be shared.
    Keyed,
    /// As keyed, but rows are claimed in the table instead of read from the log: needs no logical
    /// decoding, and any number of relays work side by side.
    Poll,
}
