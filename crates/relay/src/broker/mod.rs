//! The NATS side: publishing, answers, the stream's tail and its fitness.

mod answer;
pub(crate) mod fitness;
mod publisher;
mod reply;
mod stranded;
mod tail;

pub(crate) use publisher::{Answers, History, Publisher};
pub(crate) use stranded::leave_server;
pub(crate) use tail::{TailReader, WayBack};
