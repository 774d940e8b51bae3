//! The NATS side: publishing, answers, the stream's tail and its fitness.

mod answer;
mod denials;
pub(crate) mod fitness;
mod limits;
mod publisher;
mod reply;
pub(crate) mod stored;
mod stranded;
mod tail;

#[cfg(fuzzing)]
pub(crate) use answer::read_any as read_any_answer;
#[cfg(test)]
pub(crate) use limits::Limits;
pub(crate) use publisher::{Answers, History, Publisher};
pub(crate) use stranded::{has_ended, leave_server};
pub(crate) use tail::{SOUGHT_AT_ONCE, TailReader, WAY_BACK_MAX, WayBack};
