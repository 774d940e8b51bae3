//! The broker behind an environment: one server, or a cluster.

use std::future::Future;

use async_nats::jetstream::Context;
use lab::{Nats, NatsCluster};

/// What an environment needs of its broker.
pub trait Broker: Sync {
    /// Its URL, or those of its servers separated by commas.
    fn url(&self) -> String;

    /// What it logged so far.
    fn log(&self) -> String;

    /// Connects.
    ///
    /// # Panics
    ///
    /// When no server takes the connection.
    fn jetstream(&self) -> impl Future<Output = Context> + Send;
}

impl Broker for Nats {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn log(&self) -> String {
        Self::log(self)
    }

    async fn jetstream(&self) -> Context {
        Self::jetstream(self).await.expect("connect to NATS")
    }
}

impl Broker for NatsCluster {
    fn url(&self) -> String {
        self.urls()
    }

    fn log(&self) -> String {
        Self::log(self)
    }

    async fn jetstream(&self) -> Context {
        Self::jetstream(self).await.expect("connect to the NATS cluster")
    }
}
