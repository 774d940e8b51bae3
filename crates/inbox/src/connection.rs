use std::any::Any;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio_postgres::Client;

/// What went wrong with something that is not ours.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection to PostgreSQL, and what keeps it open.
pub struct Connection {
    pub(crate) client: Client,
    /// Dropped with it, after it.
    _guard: Box<dyn Any + Send + Sync>,
}

impl Connection {
    /// A client whose connection is driven by a task of its own and ends with the client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self::with_guard(client, ())
    }

    /// A client whose connection lives as long as `guard`.
    #[must_use]
    pub fn with_guard(client: Client, guard: impl Any + Send + Sync) -> Self {
        Self { client, _guard: Box::new(guard) }
    }
}

/// Connects to the broker anew.
pub(crate) type ConnectNats =
    Arc<dyn Fn() -> BoxFuture<'static, Result<async_nats::Client, BoxError>> + Send + Sync>;

/// Opens connections; called again whenever one is lost.
pub(crate) type Connect =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Connection, BoxError>> + Send + Sync>;
