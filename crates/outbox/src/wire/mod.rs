//! Event to subject and headers, and back: everything that travels, in one place.
//!
//! The payload travels as it is. Subject tokens and header values are escaped so that no byte of a
//! row can break the NATS protocol, and so that the way back is exact. The law, checked by property
//! tests: [`parse_event`] of what [`event_headers`] emits is the event, up to the JSON type of user
//! headers (a number or object comes back as the string of its JSON text).

mod attribute_names;
pub mod cloudevents;
mod escape;
pub mod header;
mod headers;
mod name;
mod partition;
mod position;
mod replayed;
mod stored;
mod subject;
mod trace_context;

pub use cloudevents::CloudEvents;
pub use escape::{escape_token, unescape_token};
pub use headers::{event_headers, parse_event, value_from_wire, value_to_wire};
pub use name::{escape_name, name_from_wire};
pub use partition::{PARTITIONS, partition};
pub use position::Position;
pub use replayed::{replayed_id, replayed_msg_id};
pub use stored::{RawHeaders, StoredMessage};
pub use subject::{SubjectTemplate, subject_matches, subjects_overlap, transformed};
pub use trace_context::{SpanId, TraceContext, TraceId, TraceParent, trace_id};
