use std::any::Any;
use std::ops::DerefMut;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio_postgres::Client;

/// What went wrong with something that is not ours.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection to PostgreSQL, and what keeps it open.
pub struct Connection {
    pub(crate) client: Box<dyn DerefMut<Target = Client> + Send + Sync>,
    /// Dropped with it, after it.
    _guard: Box<dyn Any + Send + Sync>,
}

impl Connection {
    /// A client whose connection is driven by a task of its own and ends with the client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self::with_guard(client, ())
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A client whose connection lives as long as `guard`.
    #[must_use]
    pub fn with_guard(client: Client, guard: impl Any + Send + Sync) -> Self {
        Self { _guard: Box::new(guard), ..Self::lent(Box::new(client)) }
    }

    /// A client that somebody lends, of a pool for instance, and gets back when it is dropped.
    #[must_use]
    pub fn lent(client: impl DerefMut<Target = Client> + Send + Sync + 'static) -> Self {
        Self { client: Box::new(client), _guard: Box::new(()) }
    }
}

/// Connects to the broker anew.
pub(crate) type ConnectNats =
    Arc<dyn Fn() -> BoxFuture<'static, Result<async_nats::Client, BoxError>> + Send + Sync>;

/// Opens connections; called again whenever one is lost.
pub(crate) type Connect =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Connection, BoxError>> + Send + Sync>;
