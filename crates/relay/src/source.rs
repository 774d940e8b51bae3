//! Where events come from.

mod replication;

pub(crate) use self::replication::Source;
