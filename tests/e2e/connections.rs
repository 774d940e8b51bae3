//! TLS and authentication to both servers, for SQL, replication, and publishing.

pub(crate) mod certificates;
mod nats;
mod own_certificates;
mod postgres;
