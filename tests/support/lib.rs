//! What the end-to-end tests stand on: real servers, our own binary as a process, and waiting.
//!
//! ```no_run
//! # async fn example() {
//! let environment = support::TestEnv::new().await;
//! environment.setup().await;
//! let relay = environment.relay();
//! let ids = environment.insert(100).await;
//! environment.wait_stored(100).await;
//! relay.kill9().await;
//! assert_eq!(environment.stored_ids().await, ids);
//! # }
//! ```

mod backend;
mod broker;
mod browser;
mod http;
mod kept;
mod load;
mod process;
mod prometheus;
mod sql;
mod stream;
mod test_env;
mod wait;

pub use broker::Broker;
pub use browser::Browser;
pub use http::{ask, get};
pub use load::Load;
pub use process::{Relay, binary};
pub use prometheus::{Prometheus, SCRAPER, promtool};
pub use stream::Stored;
pub use test_env::{TestEnv, TestEnvOptions};
pub use wait::{DEADLINE, assert_promise, until, until_counted};
