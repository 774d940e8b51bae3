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
    /// Whether another worker's lease is taken without waiting for its end: right where the role's
    /// token stops everything that the other could still do. Only the active worker claims.
    pub(crate) takes_over: bool,
    /// Whether handlers run statements of their own on the connections.
    pub(crate) lent: bool,
}
