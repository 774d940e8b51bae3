//! Behind publishing: marks, the watermark, the sweeper.
//!
//! Nothing here is on the way of an event. A mark may be late or lost; the watermark says which
//! rows are published whether or not they are marked, and the sweeper marks what it covers.

mod sweep;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use pgoutput::Lsn;
use uuid::Uuid;

use super::Session;
use super::jobs::{self, Done, Job, Marked, job};
use crate::broker::TailReader;
use crate::config::{Config, MarkBy};
use crate::core::{Origin, Settled, State, Sweeper};
use crate::database::{Store, Watermark};
use crate::reporter::Reporter;

/// Marks that may wait. Beyond, ids are dropped and their rows left to the sweeper.
const MARKS_WAITING_MAX: usize = 500_000;

/// Rows marked by one statement, at most.
const MARKS_AT_ONCE: usize = 5_000;

/// Statements handed over at a time: PostgreSQL begins the second when it ends the first, instead of
/// waiting until the relay has heard of that.
const STATEMENTS_AHEAD: usize = 2;

/// How often the watermark moves while events are published.
const WATERMARK_EVERY: Duration = Duration::from_secs(1);

/// How often it moves while nothing is published: rows may have come by another way.
const WATERMARK_IDLE_EVERY: Duration = Duration::from_secs(60);

/// Rows marked since the session began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MarkCounts {
    pub(crate) marked: u64,
    pub(crate) swept: u64,
    /// Of rows that the log should have brought, and did not.
    pub(crate) unlogged: u64,
}

/// What was known when the session began.
pub(super) struct Known {
    pub(super) start_snapshot: String,
    /// The latest watermark below which every row is marked.
    pub(super) swept: Option<Watermark>,
    pub(super) system_id: u64,
    /// Rows can be found by their transactions: nobody needs to read the whole table for the few
    /// that are not marked.
    pub(super) is_indexed: bool,
}

pub(super) struct Settling {
    config: Arc<Config>,
    store: Arc<Store>,
    tail: TailReader,
    known: Known,
    /// Events the stream has, whose rows are not marked.
    waiting: VecDeque<Mark>,
    waiting_since: Instant,
    /// Statements that have not ended.
    marking: usize,
    /// Marks ever queued, and ever executed: the difference is what a watermark waits for.
    queued: u64,
    executed: u64,
    /// What was queued when the last watermark was begun, and when the last one that is stored was.
    observing: u64,
    covered: Option<u64>,
    /// With [`MarkBy::Watermark`], what is to be covered before `--once` ends.
    owed: Option<u64>,
    /// When the whole table was looked at, or the session began.
    whole_at: Instant,
    counts: MarkCounts,
    watermark: Step,
    observed_at: Option<Instant>,
    /// What was resolved when the last watermark was taken.
    observed_resolved: Option<u64>,
    missed: Missed,
    sweeper: Sweeper,
    /// Marks were dropped, or their statement failed, since the last watermark was taken, and
    /// before.
    marks_lost: bool,
    marks_lost_before: bool,
}

/// A mark that hits no row is ambiguous: the row is marked already, or gone, or not visible yet,
/// because its commit waits for a synchronous standby. The last kind is for the sweeper, once a
/// snapshot shows it: watermarks go on being taken until one is younger than every transaction
/// that could have been meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missed {
    Nothing,
    Something,
    /// The watermark under way was begun after the mark that missed.
    Observing,
    /// Whatever was missed belongs to a transaction before this one.
    Before(u64),
}

/// What is needed of an event whose row is to be marked: there may be very many.
struct Mark {
    id: Uuid,
    /// In the stream; 0 if a route dropped the event.
    seq: u64,
    commit_lsn: Lsn,
}

impl Mark {
    fn settled(self) -> Settled {
        let Self { id, seq, commit_lsn } = self;
        let seq = (seq > 0).then_some(seq);
        Settled { id, seq, origin: Origin::Log, commit_lsn, commit_time_micros: 0, acked: true }
    }
}

/// A watermark's way: taken, reached by the confirmed position, its marks executed, stored.
enum Step {
    Resting,
    Observing,
    Waiting(Watermark),
    Flushing { watermark: Watermark, marks: u64 },
    Sweeping(Watermark),
}

impl Settling {
    pub(super) fn new(
        config: Arc<Config>,
        store: Arc<Store>,
        tail: TailReader,
        known: Known,
    ) -> Self {
        Self {
            config,
            store,
            tail,
            known,
            waiting: VecDeque::new(),
            waiting_since: Instant::now(),
            marking: 0,
            queued: 0,
            executed: 0,
            observing: 0,
            covered: None,
            owed: None,
            whole_at: Instant::now(),
            counts: MarkCounts::default(),
            watermark: Step::Resting,
            observed_at: None,
            observed_resolved: None,
            missed: Missed::Something, // by an earlier session
            sweeper: Sweeper::new(),
            marks_lost: false,
            marks_lost_before: false,
        }
    }

    pub(super) fn counts(&self) -> MarkCounts {
        self.counts
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.marking == 0
    }

    /// Whether there are rows to mark, also for the sweeper because their marks failed or were too
    /// many to wait.
    ///
    /// With [`MarkBy::Watermark`]: whether this session's watermark does not cover all that was
    /// published when this was asked for the first time, by this session or an earlier one.
    pub(super) fn owes_marks(&mut self) -> bool {
        if self.config.mark.by == MarkBy::Watermark {
            self.owed.get_or_insert(self.queued);
            return self.is_waited_for();
        }
        !self.is_idle() || self.marks_lost || self.marks_lost_before
    }

    fn is_waited_for(&self) -> bool {
        self.owed.is_some_and(|owed| self.covered.is_none_or(|covered| covered < owed))
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.store.client().is_closed()
    }

    /// A statement ended; if it failed, the rows are left to the sweeper.
    pub(super) fn marked(&mut self, batch: usize, marked: Option<Marked>) {
        self.marking -= 1;
        self.executed += batch as u64;
        let Some(Marked { rows, without_row }) = marked else {
            (self.missed, self.marks_lost) = (Missed::Something, true);
            return;
        };
        self.counts.marked += rows;
        if rows < batch as u64 {
            self.missed = Missed::Something;
        }
        for settled in &without_row {
            self.marks_lost |= !self.sweeper.remember(settled);
        }
    }

    pub(super) fn observed(&mut self, watermark: Watermark) {
        self.watermark = Step::Waiting(watermark);
    }

    /// A parked event's row was not there, perhaps because it is not visible yet.
    pub(super) fn parked(&mut self) {
        self.missed = Missed::Something;
    }

    /// Takes a watermark when something was resolved since the last one, or when marks missed rows
    /// that may have become visible; so also at the start, for what an earlier session left
    /// unmarked.
    pub(super) fn observe_if_due(&mut self, jobs: &mut FuturesUnordered<Job>, state: &State) {
        let resolved = state.counts().resolved();
        let since = |pause| self.observed_at.is_none_or(|at| at.elapsed() >= pause);
        let news = self.observed_resolved != Some(resolved) || self.missed != Missed::Nothing;
        let pause = if news { WATERMARK_EVERY } else { WATERMARK_IDLE_EVERY };
        let due = self.is_waited_for() || since(pause);
        if matches!(self.watermark, Step::Resting) && due {
            if self.missed == Missed::Something {
                self.missed = Missed::Observing;
            }
            // What is dropped from now on may be covered by this watermark or by the next one.
            self.marks_lost_before = std::mem::take(&mut self.marks_lost);
            self.observed_at = Some(Instant::now());
            self.observed_resolved = Some(resolved);
            self.observing = self.queued;
            self.watermark = Step::Observing;
            let (store, config) = (Arc::clone(&self.store), Arc::clone(&self.config));
            jobs.push(job(async move {
                let watermark = store.observe().await?;
                // It must not cover a row that the log was not to bring.
                store.check_publication(&config.publication, &config.slot).await?;
                Ok(Done::Observed(watermark))
            }));
        }
    }

    fn queue(&mut self, settled: Settled) {
        if self.config.mark.by == MarkBy::Watermark {
            (self.queued, self.executed) = (self.queued + 1, self.executed + 1);
            // Its row may not be visible yet, and no mark tells: so until it must be.
            self.missed = Missed::Something;
            return;
        }
        if self.waiting.len() >= MARKS_WAITING_MAX {
            (self.missed, self.marks_lost) = (Missed::Something, true);
            return;
        }
        if self.waiting.is_empty() {
            self.waiting_since = Instant::now();
        }
        let Settled { id, seq, commit_lsn, .. } = settled;
        self.waiting.push_back(Mark { id, seq: seq.unwrap_or(0), commit_lsn });
        self.queued += 1;
    }

    /// Hands the next statement over, if one is due.
    fn flush(&mut self, jobs: &mut FuturesUnordered<Job>, hurry: bool) {
        let config = &self.config.mark;
        let due = self.waiting.len() >= config.batch
            || self.waiting_since.elapsed() >= config.interval
            || hurry;
        // A statement costs the less per row the more rows it has: only a full one goes ahead.
        let is_ahead = self.marking > 0 && self.waiting.len() < MARKS_AT_ONCE;
        if self.marking >= STATEMENTS_AHEAD || is_ahead || self.waiting.is_empty() || !due {
            return;
        }
        let batch = self.waiting.drain(..self.waiting.len().min(MARKS_AT_ONCE));
        let batch = batch.map(Mark::settled).collect();
        self.waiting_since = Instant::now();
        self.marking += 1;
        let stream = self.config.stream.name.clone();
        jobs.push(jobs::mark(Arc::clone(&self.store), stream, batch));
    }

    fn advance(&mut self, jobs: &mut FuturesUnordered<Job>, state: &State) {
        self.watermark = match std::mem::replace(&mut self.watermark, Step::Resting) {
            Step::Waiting(watermark) if state.confirmed() >= watermark.lsn => {
                Step::Flushing { watermark, marks: self.queued }
            }
            Step::Flushing { watermark, marks } if self.executed >= marks => {
                jobs.push(self.store_and_look(watermark.clone(), self.swath()));
                Step::Sweeping(watermark)
            }
            other => other,
        };
    }
}

impl Session {
    /// Routes what became settled to whoever owes its mark.
    pub(super) fn settle(&mut self, reporter: &mut Reporter) {
        let settled = self.state.take_settled();
        reporter.settled(&settled);
        for settled in settled {
            match settled.origin {
                Origin::Log => self.settling.queue(settled),
                Origin::Scan(batch) => self.scan.published(batch, settled),
            }
        }
        let hurry = self.draining_since.is_some();
        self.settling.flush(&mut self.jobs, hurry);
        self.settling.advance(&mut self.jobs, &self.state);
        self.continue_scan();
    }
}
