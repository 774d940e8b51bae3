//! How relay and inbox reach their two servers, PostgreSQL and NATS, and how long that takes.
//!
//! A *target* is everything needed to open a connection: address, credentials, TLS. Targets are
//! parsed and checked once, at start-up; connecting may then fail only for reasons outside the
//! configuration. Neither `Debug` nor `Display` of a target shows a secret.

mod backoff;
pub mod error;
mod latency;
mod nats;
pub mod nats_version;
pub mod partitions;
pub mod postgres;
mod secret;
pub mod tls;

pub use backoff::{Backoff, pause_after};
pub use error::{Error, Renewed, describe};
pub use latency::{Latency, NativeBuckets};
pub use nats::{NatsAccess, NatsLink, NatsTarget, jetstream_of};
pub use postgres::{
    ConnectionTask, PoolLimits, PostgresTarget, PostgresTls, Session, SslMode, check_name,
};
pub use secret::{SecretCommand, SecretSource, read_secret};
pub use tls::{https_config, install_crypto_provider};
