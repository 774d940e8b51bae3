//! TLS and authentication to both servers, for SQL, replication, and publishing.

mod certificates;
mod nats;
mod postgres;
