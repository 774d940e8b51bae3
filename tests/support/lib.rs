//! What the end-to-end tests stand on: real servers, our own binary as a process, and waiting.
//!
//! ```no_run
//! # async fn example() {
//! let rig = support::Rig::new().await;
//! rig.setup().await;
//! let relay = rig.relay();
//! let ids = rig.insert(100).await;
//! rig.wait_stored(100).await;
//! relay.kill9().await;
//! assert_eq!(rig.stored_ids().await, ids);
//! # }
//! ```

mod broker;
mod http;
mod load;
mod process;
mod rig;
mod sql;
mod stream;
mod wait;

pub use broker::Broker;
pub use http::{ask, get};
pub use load::Load;
pub use process::{Relay, peak_memory};
pub use rig::{Rig, RigOptions};
pub use stream::Stored;
pub use wait::{DEADLINE, until};
