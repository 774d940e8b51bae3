//! What the relay is told, where that is not the default.

use serde::Serialize;

/// What rows may be marked by.
pub(crate) const ROW: &str = "row";
pub(crate) const LEAN: &str = "lean";
pub(crate) const DELETE: &str = "delete";

/// A set-up to be measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Variant {
    /// `relay.mark`.
    pub(crate) mark: &'static str,
    /// `relay.shards`.
    pub(crate) shards: u32,
}

impl Variant {
    pub(crate) const DEFAULT: Self = Self { mark: ROW, shards: 1 };
}
