//! What users rely on, proven against real servers: the binary as users run it, with faults.

mod commits;
mod connections;
mod crashes;
mod keyed;
mod poison;
mod scanner;
mod schema;
mod setup;
mod standby;
mod wire;
