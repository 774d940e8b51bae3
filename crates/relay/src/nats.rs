//! The NATS side: publishing, answers, the stream's tail, and whether the stream fits.

mod broker_failover;
pub(crate) mod direct_get;
mod error_codes;
mod limits;
mod permission_violations;
mod pub_ack;
mod publisher;
mod reply_subject;
pub(crate) mod stream_check;
mod stream_messages;
mod stream_tail;
pub(crate) mod whole_stream;

pub(crate) use broker_failover::{has_ended, leave_server};
#[cfg(test)]
pub(crate) use limits::Limits;
pub(crate) use permission_violations::unless_denied;
#[cfg(fuzzing)]
pub(crate) use pub_ack::read_any as read_any_answer;
pub(crate) use publisher::{Answers, History, Publisher};
pub(crate) use stream_messages::{AT_ONCE, StreamMessages};
pub(crate) use stream_tail::{SOUGHT_AT_ONCE, TailReader, WAY_BACK_MAX, WayBack};
