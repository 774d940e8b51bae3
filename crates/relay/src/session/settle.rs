//! Behind publishing: marks, the watermark, the sweeper.
//!
//! Nothing here is on the way of an event. A mark may be late or lost; the watermark says which
//! rows are published whether or not they are marked, and the sweeper marks what it covers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;

use super::Session;
use super::jobs::{self, Done, Job, Sweep, job};
use crate::config::Config;
use crate::core::{Origin, Settled, State};
use crate::database::store::SWEPT_AT_ONCE;
use crate::database::{Store, Watermark};
use crate::reporter::Reporter;

/// Marks that may wait. Beyond, ids are dropped and their rows left to the sweeper.
const MARKS_WAITING_MAX: usize = 200_000;

/// Rows marked by one statement, at most.
const MARKS_AT_ONCE: usize = 5_000;

/// Statements handed over at a time: PostgreSQL begins the second when it ends the first, instead of
/// waiting until the relay has heard of that.
const STATEMENTS_AHEAD: usize = 2;

/// How often the watermark moves while events are published.
const WATERMARK_EVERY: Duration = Duration::from_secs(1);

/// Rows marked since the session began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MarkCounts {
    pub(crate) marked: u64,
    pub(crate) swept: u64,
}

pub(super) struct Settling {
    config: Arc<Config>,
    store: Arc<Store>,
    start_snapshot: String,
    /// Events the stream has, whose rows are not marked.
    waiting: VecDeque<Settled>,
    waiting_since: Instant,
    /// Statements that have not ended.
    marking: usize,
    /// Marks ever queued, and ever executed: the difference is what a watermark waits for.
    queued: u64,
    executed: u64,
    counts: MarkCounts,
    watermark: Step,
    observed_at: Option<Instant>,
    /// What was resolved when the last watermark was taken.
    observed_resolved: Option<u64>,
    missed: Missed,
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

/// A watermark's way: taken, reached by the confirmed position, its marks executed, stored.
enum Step {
    Resting,
    Observing,
    Waiting(Watermark),
    Flushing { watermark: Watermark, marks: u64 },
    Storing(Watermark),
}

impl Settling {
    pub(super) fn new(config: Arc<Config>, store: Arc<Store>, start_snapshot: String) -> Self {
        Self {
            config,
            store,
            start_snapshot,
            waiting: VecDeque::new(),
            waiting_since: Instant::now(),
            marking: 0,
            queued: 0,
            executed: 0,
            counts: MarkCounts::default(),
            watermark: Step::Resting,
            observed_at: None,
            observed_resolved: None,
            missed: Missed::Something, // by an earlier session
        }
    }

    pub(super) fn counts(&self) -> MarkCounts {
        self.counts
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.marking == 0
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.store.client().is_closed()
    }

    /// A statement ended; if it failed, the rows are left to the sweeper.
    pub(super) fn marked(&mut self, batch: usize, marked: Option<u64>) {
        self.marking -= 1;
        self.executed += batch as u64;
        self.counts.marked += marked.unwrap_or(0);
        if marked.is_none_or(|marked| marked < batch as u64) {
            self.missed = Missed::Something;
        }
    }

    pub(super) fn observed(&mut self, watermark: Watermark) {
        self.watermark = Step::Waiting(watermark);
    }

    /// A parked event's row was not there, perhaps because it is not visible yet.
    pub(super) fn parked(&mut self) {
        self.missed = Missed::Something;
    }

    /// A sweep ended: the next one follows at once while it finds as much as it may take.
    pub(super) fn swept(&mut self, sweep: Option<Sweep>, jobs: &mut FuturesUnordered<Job>) {
        let step = std::mem::replace(&mut self.watermark, Step::Resting);
        let Some(sweep) = sweep else {
            self.missed = Missed::Something;
            return;
        };
        self.counts.swept += sweep.swept;
        if let (SWEPT_AT_ONCE, Step::Storing(watermark)) = (sweep.swept, step) {
            jobs.push(self.store_and_sweep(watermark.clone()));
            self.watermark = Step::Storing(watermark);
            return;
        }
        self.missed = match self.missed {
            Missed::Observing => Missed::Before(sweep.transaction),
            Missed::Before(transaction) if sweep.oldest_running >= transaction => Missed::Nothing,
            missed => missed,
        };
    }

    /// Takes a watermark when something was resolved since the last one, or when marks missed rows
    /// that may have become visible; so also at the start, for what an earlier session left
    /// unmarked.
    pub(super) fn observe_if_due(&mut self, jobs: &mut FuturesUnordered<Job>, state: &State) {
        let counts = state.counts();
        let resolved = counts.acked + counts.found + counts.parked + counts.dropped;
        let due = self.observed_at.is_none_or(|at| at.elapsed() >= WATERMARK_EVERY);
        let news = self.observed_resolved != Some(resolved) || self.missed != Missed::Nothing;
        if matches!(self.watermark, Step::Resting) && due && news {
            if self.missed == Missed::Something {
                self.missed = Missed::Observing;
            }
            self.observed_at = Some(Instant::now());
            self.observed_resolved = Some(resolved);
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
        if self.waiting.len() >= MARKS_WAITING_MAX {
            return;
        }
        if self.waiting.is_empty() {
            self.waiting_since = Instant::now();
        }
        self.waiting.push_back(settled);
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
        let batch = self.waiting.drain(..self.waiting.len().min(MARKS_AT_ONCE)).collect();
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
                jobs.push(self.store_and_sweep(watermark.clone()));
                Step::Storing(watermark)
            }
            other => other,
        };
    }

    /// On the marks' own connection: their commits and the watermark's survive a crash in order.
    fn store_and_sweep(&self, watermark: Watermark) -> Job {
        let (store, config) = (Arc::clone(&self.store), Arc::clone(&self.config));
        let start_snapshot = self.start_snapshot.clone();
        job(async move {
            let stored = store.store_watermark(&config.slot, &watermark).await;
            let Some(transaction) = jobs::tolerate(stored) else { return Ok(Done::Swept(None)) };
            let stream = &config.stream.name;
            let swept = store.sweep(stream, &start_snapshot, &watermark.snapshot).await;
            let Some(swept) = jobs::tolerate(swept) else { return Ok(Done::Swept(None)) };
            let oldest_running = watermark.oldest_running()?;
            Ok(Done::Swept(Some(Sweep { swept, transaction, oldest_running })))
        })
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
                Origin::Scan => self.scan.published(settled),
            }
        }
        let hurry = self.draining_since.is_some();
        self.settling.flush(&mut self.jobs, hurry);
        self.settling.advance(&mut self.jobs, &self.state);
        self.continue_scan();
    }
}
