//! What all statements of a worker are about.

use std::time::Duration;

/// What the statements are about.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) schema: String,
    pub(crate) consumer: String,
    pub(crate) stream: String,
    /// Names the worker in `lease_owner`.
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    /// Whether handlers run in transactions on the connections. Then another worker's lease is taken
    /// without waiting for its end: its transactions were ended when the role was taken, and the
    /// role's token stops all others. Only the active worker claims.
    pub(crate) transactional: bool,
}
