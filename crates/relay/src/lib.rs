//! Tails the outbox in PostgreSQL's log and publishes it to NATS JetStream.

pub mod connect;
