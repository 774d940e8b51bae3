//! The back-off table: how long an inbox waits before it tries again.

use std::time::Duration;

pub use servers::Backoff;

/// An event whose handler failed, unless configured: a random time up to `first`, then up to twice
/// that, and so on. Its `max` also caps what a handler asks for.
pub(crate) const EVENT: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// A database that cannot be reached.
pub(crate) const DATABASE: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// The consumer's acknowledgement floor does not move, mostly since an event is failing there:
/// what is behind it is looked up.
pub(crate) const FLOOR: Backoff = Backoff::new(Duration::from_secs(20), Duration::from_mins(10));
