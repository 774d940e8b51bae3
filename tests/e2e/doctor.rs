//! `tailpost doctor` finds what is planted, its remedies mend it, and it finds nothing else.

mod clinic;
mod inbox_faults;
pub(crate) mod nats_commands;
mod other_servers;
mod outbox_faults;
mod over_http;
mod server_faults;
mod sound;
mod stream_faults;
