//! What users rely on, proven against real servers.

mod connections;
