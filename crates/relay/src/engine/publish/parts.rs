//! What a publishing session consists of.

use std::collections::VecDeque;

use crate::engine::messages::{Counts, Resolved};
use crate::engine::request::Request;
use crate::latency::Latency;

/// What is to be done outside.
#[derive(Debug, Default, Clone)]
pub(super) struct Output {
    pub(super) requests: VecDeque<Request>,
    /// What became resolved and was not taken.
    pub(super) resolved: Vec<Resolved>,
}

/// What is told of a session.
#[derive(Debug, Default, Clone)]
pub(super) struct Figures {
    pub(super) counts: Counts,
    /// From sending a message to the answer that it is stored.
    pub(super) answer_times: Latency,
}
