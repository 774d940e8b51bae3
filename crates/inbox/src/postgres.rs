//! What the inbox asks of PostgreSQL: records, leases, tables, and connections to do it with.

pub(crate) mod attended;
pub(crate) mod pool;
pub(crate) mod resolved;
pub(crate) mod role_statements;
pub(crate) mod scope;
pub(crate) mod sql;
pub(crate) mod sqlstate;
pub(crate) mod store;
pub(crate) mod tables;
