//! Takes events from NATS JetStream and gives each one effect.

mod acks;
mod config;
mod connection;
mod core;
mod dead_letters;
mod error;
mod handler;
pub mod http;
mod inbox;
mod keeper;
mod leased;
mod message;
mod pool;
mod redrive;
mod run;
mod session;
mod source;
mod status;
mod store;
mod strays;
mod tables;
mod transactional;
mod work;

pub use config::Backoff;
pub use connection::{BoxError, Connection};
pub use dead_letters::{
    Backlog, DeadLetter, DeadLetters, Decision, Grounds, Marked, Original, Selection,
};
pub use error::Error;
pub use handler::{Delivery, LeasedHandler, TransactionalHandler, Verdict};
pub use inbox::{Builder, Inbox, Leased, Transactional};
pub use status::{State, Status, Summary};
pub use tables::{Layout, Maintained, create_tables, maintain, render_tables};
