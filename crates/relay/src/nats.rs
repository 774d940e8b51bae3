//! The NATS side: publishing, answers, the stream's tail, and whether the stream fits.

mod attributes;
mod broker_failover;
pub mod direct_get;
mod error_codes;
mod limits;
mod permission_violations;
mod pub_ack;
mod publisher;
mod reading_pace;
mod reply_subject;
pub mod stream_check;
mod stream_tail;
mod subjects;
mod suspects;

pub(crate) use attributes::Attributes;
pub(crate) use broker_failover::{has_ended, leave_server};
#[cfg(test)]
pub(crate) use limits::Limits;
pub use permission_violations::{unless_denied, unless_unheard};
#[cfg(fuzzing)]
pub(crate) use pub_ack::read_any as read_any_answer;
pub(crate) use publisher::{Answers, History, Publisher};
pub use stream_tail::TailReader;
pub(crate) use stream_tail::{LookedUp, SOUGHT_AT_ONCE, WAY_BACK_MAX, WHOLE_AT_ONCE, WayBack};
pub(crate) use suspects::{Judge, Suspect};
