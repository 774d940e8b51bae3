//! Where events come from.

mod polling;
mod replication;

pub(crate) use self::polling::Poll;
pub(crate) use self::replication::LogStream;
