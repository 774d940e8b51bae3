//! How the relay reaches its two servers.
//!
//! A *target* is everything needed to open a connection: address, credentials, TLS. Targets are
//! parsed and checked once, at start-up; connecting may then fail only for reasons outside the
//! configuration. Neither `Debug` nor `Display` of a target shows a secret.

mod dsn;
mod error;
mod nats;
mod postgres;
mod tls;

pub use error::Error;
pub use nats::{NatsAccess, NatsLink, NatsTarget};
pub(crate) use postgres::check_name;
pub use postgres::{ConnectionTask, PostgresTarget, PostgresTls, SslMode};
pub use tls::{https_config, install_crypto_provider};
