//! What all statements of a worker are about.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use uuid::Uuid;

/// What the statements are about.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) schema: String,
    pub(crate) consumer: String,
    pub(crate) stream: String,
    /// Names the worker in `lease_owner`.
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    /// The role's, without which no event is begun.
    pub(crate) role: RoleToken,
    /// Whether another worker's lease is taken without waiting for its end: right where the role's
    /// token stops everything that the other could still do. Only the active worker claims.
    pub(crate) takes_over: bool,
    /// Whether handlers run statements of their own on the connections.
    pub(crate) lent: bool,
}

/// The token of the role, for the statements that need it. Nil while there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoleToken(Arc<RwLock<Uuid>>);

impl RoleToken {
    pub(crate) fn get(&self) -> Uuid {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, token: Uuid) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = token;
    }
}
