//! What users rely on, proven against real servers: the binary as users run it, with faults.

mod broker_faults;
mod confirmation;
mod connections;
mod crashes;
mod postgres_faults;
mod stop;
mod storm;
mod takeover;
