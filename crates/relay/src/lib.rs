//! Tails the outbox in PostgreSQL's log and publishes it to NATS JetStream.

mod config;
pub mod connect;
mod report;
mod status;

pub use config::{Config, MarkConfig, Mode, ScanConfig, StreamConfig, WindowLimits};
pub use connect::{NatsTarget, PostgresTarget};
pub use report::{OutboxReport, SlotReport, StatusReport, StreamReport};
pub use status::{Latency, Role, Status};
