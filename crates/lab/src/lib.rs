//! What it takes to try Tailpost out: throw-away PostgreSQL and NATS servers, a faulty network
//! between, a workload, and a ledger of what went where; and on them [`demo`] and [`chaos`].
//!
//! The tests and the benchmarks use the same. The servers are real ones: binaries found on the
//! machine or fetched by `scripts/servers`, in temporary folders, on free ports of 127.0.0.1.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use lab::{Nats, NatsOptions, Postgres, PostgresOptions};
//!
//! let mut postgres = Postgres::start(PostgresOptions::default()).await?;
//! let nats = Nats::start(NatsOptions::default()).await?;
//! postgres.kill().await?; // like a crash: nothing of it is left running
//! postgres.start_again().await?; // same port, same data
//! # Ok(())
//! # }
//! ```

mod binaries;
pub mod chaos;
pub mod demo;
mod hostile;
mod ledger;
mod major_upgrade;
mod nats;
mod pauses;
mod port;
mod postgres;
mod process;
mod process_table;
mod proxy;
mod seeds;
mod server;
mod statements;
mod strangers;
mod template_cluster;
mod user;
mod workload;

pub use binaries::prometheus_binaries;
pub use hostile::{HostileMessage, HostileRow, Messages, RawNats, Rows, Shape};

pub use ledger::{Ledger, Stored, Tally};
pub use nats::{Nats, NatsCluster, NatsOptions};
pub use pauses::Pauses;
pub use port::Port;
pub use postgres::{Postgres, PostgresOptions};
pub use process::{Process, file_memory_bytes, peak_memory_bytes};
pub use proxy::{After, Direction, Protocol, Proxy};
pub use seeds::{Seeds, seeds};
pub use statements::check_statements;
pub use strangers::{Forged, Forger, Stranger};
pub use workload::{BeforeCommit, CommittedEvent, Workload, WorkloadOptions, Written};
