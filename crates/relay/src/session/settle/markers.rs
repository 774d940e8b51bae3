//! The connections that marks are written over: one, and a second while it cannot keep up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use tracing::{debug, info};

use crate::config::Config;
use crate::core::{MARKS_AT_ONCE, Marks, Settled};
use crate::database::Store;
use crate::error::Error;
use crate::session::jobs::{self, Done, Job, job};

/// Marks that wait when they are called late: PostgreSQL writes marks on one core more slowly than it
/// sends its log from another.
const MARKS_LATE: usize = 10_000;

/// So many make a second connection help whatever it costs: there is room for twice as many.
const MARKS_TOO_LATE: usize = 100_000;

/// After so long without an answer the first connection is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// How long a second connection may take to open, and how long none is tried after one failed.
const HELP_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Statements handed over at a time to the first connection: PostgreSQL begins the second when it ends
/// the first, instead of waiting until the relay has heard of that.
const STATEMENTS_AHEAD: usize = 2;

/// Writes marks.
pub(super) struct Markers {
    config: Arc<Config>,
    pub(super) marks: Marks,
    waiting_since: Instant,
    first: Arc<Store>,
    running_on_first: usize,
    /// When a statement last ended on the first connection, or began there alone.
    first_moved_at: Instant,
    second: Second,
}

enum Second {
    Closed { not_before: Option<Instant> },
    Opening,
    Open { store: Arc<Store>, is_running: bool },
}

/// A statement with marks.
#[derive(Debug, Clone, Copy)]
pub(in crate::session) struct Statement {
    pub(in crate::session) marks: usize,
    number: u64,
    on_second: bool,
}

impl Markers {
    pub(super) fn new(config: Arc<Config>, store: Arc<Store>) -> Self {
        Self {
            config,
            marks: Marks::default(),
            waiting_since: Instant::now(),
            first: store,
            running_on_first: 0,
            first_moved_at: Instant::now(),
            second: Second::Closed { not_before: None },
        }
    }

    /// The connection that is always there. What is executed on it after marks have ended is behind
    /// them in PostgreSQL's log, whichever connection they were written over: it survives no crash
    /// that they do not survive.
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.first
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.first.client().is_closed()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.marks.waiting() == 0 && !self.marks.is_running()
    }

    /// False if too many wait: then the row is the sweeper's.
    #[must_use]
    pub(super) fn push(&mut self, settled: &Settled) -> bool {
        if self.marks.waiting() == 0 {
            self.waiting_since = Instant::now();
        }
        self.marks.push(settled)
    }

    /// Hands over the statements that are due; opens and closes the second connection. `log_waits`
    /// says that events are late anyway, `hurry` that the marks are waited for.
    pub(super) fn flush(&mut self, jobs: &mut FuturesUnordered<Job>, log_waits: bool, hurry: bool) {
        while self.is_due(hurry)
            && let Some((store, on_second)) = self.take_connection()
        {
            let Some((number, batch)) = self.marks.take() else { break };
            self.waiting_since = Instant::now();
            let statement = Statement { marks: batch.len(), number, on_second };
            jobs.push(jobs::mark(store, self.config.stream.name.clone(), batch, statement));
        }
        self.change_help(jobs, log_waits || hurry);
    }

    fn is_due(&self, hurry: bool) -> bool {
        let (config, waiting) = (&self.config.mark, self.marks.waiting());
        // A statement costs the less per row the more rows it has: only a full one goes ahead.
        let is_early = self.marks.is_running() && waiting < MARKS_AT_ONCE;
        let is_time =
            waiting >= config.batch || self.waiting_since.elapsed() >= config.interval || hurry;
        waiting > 0 && is_time && !is_early
    }

    /// The connection for the next statement, and whether it is the second one.
    fn take_connection(&mut self) -> Option<(Arc<Store>, bool)> {
        match &mut self.second {
            // The second has one at a time: they take memory.
            Second::Open { store, is_running: is_running @ false }
                if self.running_on_first > 0 && !store.client().is_closed() =>
            {
                *is_running = true;
                Some((Arc::clone(store), true))
            }
            _ if self.running_on_first < STATEMENTS_AHEAD => {
                if self.running_on_first == 0 {
                    self.first_moved_at = Instant::now();
                }
                self.running_on_first += 1;
                Some((Arc::clone(&self.first), false))
            }
            _ => None,
        }
    }

    /// Whether more marks wait than one connection should have before it.
    pub(super) fn are_late(&self) -> bool {
        self.marks.waiting() >= MARKS_LATE.max(2 * self.config.mark.batch)
    }

    /// Two backends that write marks take the processors from the stream. So a second one is there for
    /// a backlog, and for a first one that is stuck; live events do not wait for marks.
    fn change_help(&mut self, jobs: &mut FuturesUnordered<Job>, is_backlog: bool) {
        let waiting = self.marks.waiting();
        let is_stuck = self.running_on_first > 0 && self.first_moved_at.elapsed() >= STUCK_AFTER;
        let is_wanted = is_backlog || is_stuck;
        match &self.second {
            Second::Closed { not_before }
                if (waiting >= MARKS_TOO_LATE || is_wanted && self.are_late())
                    && not_before.is_none_or(|it| Instant::now() >= it) =>
            {
                self.second = Second::Opening;
                let config = Arc::clone(&self.config);
                jobs.push(job(async move {
                    let opened = async {
                        let store = Store::connect(&config, "tailpost marks 2").await?;
                        store.yield_to_others().await?;
                        Ok(Arc::new(store))
                    };
                    let late = Error::Stalled("a second connection for marks took too long");
                    let opened = tokio::time::timeout(HELP_AGAIN_AFTER, opened).await;
                    Ok(Done::MarksHelp(jobs::tolerate(opened.unwrap_or(Err(late)))))
                }));
            }
            Second::Open { store, is_running: false } if store.client().is_closed() => {
                self.helped(None);
            }
            Second::Open { is_running: false, .. }
                if waiting == 0 || !is_wanted && waiting < MARKS_TOO_LATE / 2 =>
            {
                debug!("marks keep up again");
                self.second = Second::Closed { not_before: None };
            }
            _ => {}
        }
    }

    /// The second connection is there; `None` if it cannot be had.
    pub(super) fn helped(&mut self, store: Option<Arc<Store>>) {
        self.second = match store {
            Some(store) => {
                info!(
                    waiting = self.marks.waiting(),
                    "marks are late: writing them over a second connection too"
                );
                Second::Open { store, is_running: false }
            }
            None => Second::Closed { not_before: Some(Instant::now() + HELP_AGAIN_AFTER) },
        };
    }

    pub(super) fn ended(&mut self, statement: Statement) {
        self.marks.ended(statement.number);
        match &mut self.second {
            Second::Open { is_running, .. } if statement.on_second => *is_running = false,
            _ => {
                self.running_on_first -= 1;
                self.first_moved_at = Instant::now();
            }
        }
    }
}
