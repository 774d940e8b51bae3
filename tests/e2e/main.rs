//! What users rely on, proven against real servers: the binary as users run it, with faults.

mod connections;
mod crashes;
