//! What to do next, without I/O and without a clock: lanes, retries, pauses, the role.

mod backoff;
mod breaker;
mod capacity;
mod lanes;
#[cfg(test)]
mod outages;
mod redrive_schedule;
mod retry;
mod role_lease;
#[cfg(test)]
mod role_simulation;
#[cfg(test)]
pub(crate) mod seeds;
#[cfg(test)]
mod simulation;

pub use backoff::Backoff;
pub(crate) use breaker::{Breaker, Convicted, Trouble, TroubleKind};
pub(crate) use capacity::{Capacity, Full, LEFT_MAX};
pub(crate) use lanes::{Delivered, Ending, Item, Lanes, Load, Offered, Path};
pub(crate) use redrive_schedule::{Due, RedriveSchedule, Task};
pub(crate) use retry::{Decision, decide};
pub(crate) use role_lease::{Former, Found, Role, RoleLease, Step};
