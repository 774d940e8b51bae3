//! How an inbox reaches its tables, its consumer and its stream, for what operators do beside it.
//!
//! Only the crate `operate` uses this.

pub use crate::config::Config;
pub use crate::message::Origin;
pub use crate::nats::durable_consumer;
pub use crate::nats::source::silence;
pub use crate::nats::stream_range::{self, StoredAt};
pub use crate::postgres::attended::{answered, answered_within};
pub use crate::postgres::sql::claim::remembered;
pub use crate::postgres::sql::rewind_records;
pub use crate::postgres::sql::unread_words::in_words as unread_in_words;
pub use crate::postgres::sql::{SAME, as_json, find_controls};
pub use crate::postgres::store::MAKE_DURABLE;
pub use crate::postgres::tables::{Partitions, Room, upkept};
pub use crate::unhandled::Unhandled;
pub use servers::describe;
