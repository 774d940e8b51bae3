//! What is known and what follows from it, without I/O and without a clock.

pub(crate) mod answers;
pub(crate) mod chart;
mod consumer_view;
pub(crate) mod figures;
pub(crate) mod history;
pub(crate) mod life;
pub(crate) mod live_figures;
pub(crate) mod needs;
pub(crate) mod operator_answers;
pub(crate) mod outcome;
pub(crate) mod picture;
pub(crate) mod plan;
mod rates;
mod source;
pub(crate) mod story_answers;
pub(crate) mod word;
