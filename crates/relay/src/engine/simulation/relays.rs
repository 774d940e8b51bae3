//! A relay process, and what it has under way.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use pgoutput::Lsn;

use crate::engine::{Effect, Engine, Input, LastEvent};

/// What was asked for, and when.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) effect: Effect,
    pub(super) since: Duration,
}

/// Where nothing depends on it, it does not matter when that was.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.effect.fmt(f)
    }
}

/// A relay process: its engine and how far its replication connection has got.
#[derive(Debug, Clone)]
pub(super) struct Relay {
    pub(super) generation: u64,
    /// In a box: nodes change places whenever it is another one's turn.
    pub(super) engine: Box<Engine>,
    /// Its clock counts from here.
    pub(super) began: Duration,
    /// The connection that its messages go over.
    pub(super) connection: usize,
    /// Nothing of it runs before.
    pub(super) stalled_until: Duration,
    /// It has a slot made, and reads none.
    pub(super) awaits_slot: bool,
    /// Next to deliver: transaction, and within it 0 = begin, 1.. = events, then commit.
    pub(super) at: (usize, usize),
    /// What was asked for and is not executed, and what came of what is.
    pub(super) jobs: Vec<Job>,
    pub(super) outcomes: Vec<Input>,
    /// What the scan that is open has yet to bring.
    pub(super) cursor: Option<VecDeque<u128>>,
    /// Since when that keeps its transaction open and nothing is read.
    pub(super) idle_since: Option<Duration>,
    /// What PostgreSQL is to be told.
    pub(super) confirming: Lsn,
    /// The last event that it knows to be stored.
    pub(super) last_event: Option<LastEvent>,
}

impl Relay {
    pub(super) fn new(generation: u64, engine: Engine, began: Duration, connection: usize) -> Self {
        Self {
            generation,
            engine: Box::new(engine),
            began,
            connection,
            stalled_until: Duration::ZERO,
            awaits_slot: false,
            at: (0, 0),
            jobs: Vec::new(),
            outcomes: Vec::new(),
            cursor: None,
            idle_since: None,
            confirming: Lsn::ZERO,
            last_event: None,
        }
    }
}
