//! The inbox.

mod handler;
pub mod http;

pub use handler::{Delivery, LeasedHandler, Verdict};
