//! The log as a source of events.

mod log_stream;

pub(crate) use self::log_stream::LogStream;
