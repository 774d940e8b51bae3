//! What to do next, without I/O and without a clock: lanes, retries, pauses.

mod breaker;
mod lanes;
#[cfg(test)]
mod outages;
mod retry;
#[cfg(test)]
mod simulation;

pub(crate) use breaker::{Breaker, Convicted, Trouble, TroubleKind};
pub(crate) use lanes::{Ending, Item, Lanes, Load, Offered, Path};
pub(crate) use retry::{Decision, decide};
