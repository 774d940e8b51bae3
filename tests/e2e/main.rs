//! What a user would see, on real servers.

mod batches;
mod broker_faults;
mod commands;
mod commits;
mod confirmation;
mod connections;
mod crashes;
mod debezium;
mod demo;
mod gaps;
mod inbox;
mod keyed;
mod payloads;
mod poison;
mod postgres_faults;
mod routes;
mod scanner;
mod schema;
mod setup;
mod standby;
mod stop;
mod storm;
mod takeover;
mod versioning;
mod wire;
