//! Takes events from NATS JetStream and gives each one effect.

mod config;
mod connection;
mod dead_letters;
mod error;
mod handler;
pub mod http;
mod inbox;
mod status;

pub use config::Backoff;
pub use connection::{BoxError, Connection};
pub use dead_letters::{
    Backlog, DeadLetter, DeadLetters, Decision, Grounds, Marked, Original, Selection,
};
pub use error::Error;
pub use handler::{Delivery, LeasedHandler, TransactionalHandler, Verdict};
pub use inbox::{Builder, Inbox, Leased, Transactional};
pub use status::{State, Status, Summary};
