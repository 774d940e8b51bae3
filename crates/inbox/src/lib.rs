//! Takes events from NATS JetStream and gives each one effect.
//!
//! ```text
//!                 ┌───────────────────── session ─────────────────────┐
//!  stream ──────▶ │ source ──▶ ┌───────┐ ──▶ claim ─▶ handler ─▶ end ─┼──▶ inbox_messages,
//!    ▲            │            │ lanes │                              │    and the effect
//!    └── acks ────┤ ◀── ended ─└───────┘ ◀── again, after a pause     │    inbox_dead_letter
//!                 └───────────────────────────────────────────────────┘
//! ```
//!
//! # What is guaranteed
//!
//! With a [`TransactionalHandler`] each event has exactly one effect in the database: the record that
//! it was handled, and what the handler wrote, commit together or not at all. With a
//! [`LeasedHandler`] it has at least one, anywhere, and never two at a time; a handler runs again
//! only if the process died before its verdict was written down. In both, the events of one aggregate
//! are handled in the order of the stream, and an event that cannot be handled ends in
//! `inbox_dead_letter`.
//!
//! # Why no event is handled twice
//!
//! A record is keyed by consumer, event id and event time, which are the same at every delivery. A
//! new event's record is inserted in the transaction of its effect: the second insert fails. Any
//! other is claimed first, by one statement with a token of its own, and completed only under that
//! token.
//!
//! # Why none is lost
//!
//! A message is acknowledged only when its record says `PROCESSED`, `DEAD` or `REJECTED`, durably.
//!
//! # Why aggregates stay in order
//!
//! One worker of a consumer is active. It handles an aggregate's events one after the other, keeps
//! those that have to wait, and reads from the stream what a predecessor had when it died before it
//! takes anything new.
//!
//! `examples/orders.rs` is a whole service.

pub mod access;
mod attempt;
mod config;
mod connection;
mod controls;
mod engine;
mod error;
mod feed;
mod handler;
pub mod http;
mod inbox;
mod message;
mod nats;
mod postgres;
mod record;
mod rewind;
mod status;
mod tally;
mod unhandled;
mod unread;
mod worker;

pub use connection::{BoxError, Connection};
pub use controls::{Control, OperatorPause};
pub use engine::{Backoff, Pauses, Rate, RateError};
pub use error::Error;
pub use handler::{Delivery, LeasedHandler, TransactionalHandler, Verdict};
pub use inbox::{Builder, Inbox, Leased, Transactional};
pub use nats::durable_consumer::RewindMethod;
pub use postgres::tables::{Keep, Maintained, Upkept, create_tables, look_after, render_tables};
pub use rewind::{RewindOnly, RewindState};
pub use status::{
    Attempts, BreakerState, Claims, DeadLetterCounts, Handler, HeldUp, LeaseCounts, State, Status,
    Summary,
};
pub use worker::retention_problem;
