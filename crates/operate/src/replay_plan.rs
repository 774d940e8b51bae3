//! What a replay would do.

use pgoutput::Lsn;
use relay::ReplaySource;
use schemars::JsonSchema;
use serde::Serialize;

/// What a source has of a selection.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SourceHolds {
    /// Which.
    pub source: &'static str,
    /// The oldest that it has, of all events: when that was published.
    pub from: Option<String>,
    /// Its sequence, in a stream.
    pub first_sequence: Option<u64>,
    /// Its position, in PostgreSQL's log.
    #[serde(serialize_with = "relay::access::lsn_text")]
    #[schemars(with = "Option<String>")]
    pub from_lsn: Option<Lsn>,
    /// What keeping it costs, in bytes of PostgreSQL's log; `None` where nothing is kept for replays.
    pub bytes: Option<u64>,
    /// Events that are meant; in a stream, messages among which they are. `None` where only reading
    /// tells.
    pub events: Option<u64>,
    /// Whether `events` are exactly those that are meant.
    pub is_exact: bool,
    /// Whether it surely has all that is meant.
    pub is_complete: bool,
    /// What it lacks, or why it cannot be used.
    pub note: Option<String>,
    #[serde(skip)]
    pub(crate) places: (u64, u64),
}

/// What would be done in one shard.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ReplayPlan {
    /// Who would do it.
    pub slot: String,
    /// Where the events were stored, and are again.
    pub stream: String,
    /// What each source has.
    pub sources: Vec<SourceHolds>,
    /// The one that would be read.
    #[schemars(with = "String")]
    pub chosen: ReplaySource,
    /// The stream's durable consumers; `None` if they are unknown, and a warning says why.
    pub consumers: Option<Vec<String>>,
    /// Warnings.
    pub warnings: Vec<String>,
}

impl ReplayPlan {
    /// The source that would be read.
    pub fn source(&self) -> Option<&SourceHolds> {
        self.sources.iter().find(|it| it.source == self.chosen.name())
    }
}
