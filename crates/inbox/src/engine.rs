//! What to do next, without I/O and without a clock: lanes, retries, pauses, the role.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod assertions;
pub(crate) mod backoff;
mod breaker;
mod capacity;
mod consumer_effect;
mod consumer_engine;
#[cfg(test)]
mod consumer_simulation;
mod halving;
mod hold_limits;
mod lanes;
mod rate;
mod redrive_schedule;
pub(crate) mod report;
mod retry;
mod role_lease;
#[cfg(test)]
mod role_simulation;
mod share;
#[cfg(test)]
pub(crate) mod simulation;

pub use backoff::{Backoff, Pauses};
pub(crate) use breaker::{Trouble, TroubleKind};
pub(crate) use capacity::Full;
pub(crate) use consumer_effect::{Effect, Notice, Pause};
pub(crate) use consumer_engine::{ConsumerEngine, ConsumerStart, Surroundings};
pub(crate) use halving::Halving;
pub(crate) use hold_limits::HoldLimits;
#[cfg(test)]
pub(crate) use lanes::Lanes;
pub(crate) use lanes::{Delivered, Item, Load, Loaded, Path};
pub use rate::{Rate, RateError};
pub(crate) use redrive_schedule::{Due, RedriveSchedule, Task};
pub(crate) use report::Report;
pub(crate) use retry::{Begin, Decision, Patience, begin, decide};
#[cfg(test)]
pub(crate) use role_lease::RoleLease;
pub(crate) use role_lease::{Former, Found, Role, Step, Term};
pub(crate) use share::{Move, Renewed, Seen, Share};
