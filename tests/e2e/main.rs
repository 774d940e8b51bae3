//! What a user would see, on real servers.

mod broker_faults;
mod commands;
mod commits;
mod confirmation;
mod connections;
mod crashes;
mod demo;
mod gaps;
mod keyed;
mod poison;
mod postgres_faults;
mod replicas;
mod scanner;
mod schema;
mod setup;
mod standby;
mod stop;
mod storm;
mod takeover;
mod wire;
