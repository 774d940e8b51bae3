//! Takes events from NATS JetStream and gives each one effect.

mod acks;
mod config;
mod connection;
mod core;
mod error;
mod handler;
mod inbox;
mod keeper;
mod leased;
mod message;
mod pool;
mod run;
mod session;
mod source;
mod status;
mod store;
mod tables;
mod transactional;
mod work;

pub use config::Backoff;
pub use connection::{BoxError, Connection};
pub use error::Error;
pub use handler::{Delivery, LeasedHandler, TransactionalHandler, Verdict};
pub use inbox::{Builder, Inbox, Leased, Transactional};
pub use status::{State, Status, Summary};
pub use tables::{Layout, Maintained, create_tables, maintain, render_tables};
