//! Behind publishing: marks, the watermark, the sweeper.
//!
//! Nothing here is on the way of an event. A mark may be late or lost; the watermark says which
//! rows are published whether or not they are marked, and the sweeper marks what it covers.

mod markers;
mod sweep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use pgoutput::Lsn;

use self::markers::Markers;
pub(super) use self::markers::Statement;
use super::Session;
use super::jobs::{Done, Job, Marked, job};
use crate::broker::TailReader;
use crate::config::{Config, MarkBy};
use crate::core::{Origin, Settled, State, Sweeper};
use crate::database::{Store, Watermark};
use crate::error::Error;
use crate::reporter::Reporter;

/// How often the watermark moves while events are published.
const WATERMARK_EVERY: Duration = Duration::from_secs(1);

/// How often it moves while nothing is published: rows may have come by another way.
const WATERMARK_IDLE_EVERY: Duration = Duration::from_secs(60);

/// So many bytes of PostgreSQL's log may wait before the session is called behind.
const LOG_BEHIND: u64 = 16 << 20;

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
    /// How long ago the whole table was last looked at.
    pub(super) whole_swept: Option<Duration>,
    pub(super) system_id: u64,
    /// Rows can be found by their transactions: nobody needs to read the whole table for the few
    /// that are not marked.
    pub(super) is_indexed: bool,
}

pub(super) struct Settling {
    config: Arc<Config>,
    tail: TailReader,
    known: Known,
    markers: Markers,
    /// What was queued when the last watermark was begun, and when the last one that is stored was.
    observing: u64,
    covered: Option<u64>,
    /// With [`MarkBy::Watermark`], what is to be covered before `--once` ends.
    owed: Option<u64>,
    /// When the whole table was looked at, by whatever session; `None` if nobody knows.
    whole_at: Option<Instant>,
    counts: MarkCounts,
    watermark: Step,
    observed_at: Option<Instant>,
    /// What was resolved when the last watermark was taken.
    observed_resolved: Option<u64>,
    missed: Missed,
    /// The same for events that were parked before their rows were visible.
    parked_unseen: Missed,
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

impl Missed {
    /// A watermark is taken.
    fn observed(self) -> Self {
        if self == Self::Something { Self::Observing } else { self }
    }

    /// A sweep is complete; its watermark was stored by `transaction`, and every transaction before
    /// `oldest_running` had ended when it was taken.
    fn swept(self, transaction: u64, oldest_running: u64) -> Self {
        match self {
            Self::Observing => Self::Before(transaction),
            Self::Before(transaction) if oldest_running >= transaction => Self::Nothing,
            missed => missed,
        }
    }

    /// The sweep of the watermark under way failed.
    fn unswept(self) -> Self {
        if self == Self::Observing { Self::Something } else { self }
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
            markers: Markers::new(Arc::clone(&config), store),
            config,
            tail,
            observing: 0,
            covered: None,
            owed: None,
            whole_at: known.whole_swept.and_then(|ago| Instant::now().checked_sub(ago)),
            known,
            counts: MarkCounts::default(),
            watermark: Step::Resting,
            observed_at: None,
            observed_resolved: None,
            // By an earlier session.
            missed: Missed::Something,
            parked_unseen: Missed::Something,
            sweeper: Sweeper::new(),
            marks_lost: false,
            marks_lost_before: false,
        }
    }

    pub(super) fn counts(&self) -> MarkCounts {
        self.counts
    }

    pub(super) fn is_idle(&self) -> bool {
        self.markers.is_idle()
    }

    /// Whether there are rows to mark, also for the sweeper because their marks failed or were too
    /// many to wait.
    ///
    /// With [`MarkBy::Watermark`]: whether this session's watermark does not cover all that was
    /// published when this was asked for the first time, by this session or an earlier one.
    pub(super) fn owes_marks(&mut self) -> bool {
        if self.config.mark.by == MarkBy::Watermark {
            self.owed.get_or_insert(self.markers.marks.queued());
            return self.is_waited_for();
        }
        !self.is_idle() || self.marks_lost || self.marks_lost_before
    }

    fn is_waited_for(&self) -> bool {
        self.owed.is_some_and(|owed| self.covered.is_none_or(|covered| covered < owed))
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.markers.is_disconnected()
    }

    /// Whether there are many rows that the log is known to have yet to bring, or that are published
    /// and not marked.
    pub(super) fn is_behind(&self, state: &State) -> bool {
        self.log_waits(state) || self.markers.are_late()
    }

    fn log_waits(&self, state: &State) -> bool {
        let log_waits = match &self.watermark {
            Step::Waiting(watermark) if state.confirmed() > Lsn::ZERO => {
                watermark.lsn.checked_bytes_since(state.confirmed())
            }
            _ => None,
        };
        log_waits.is_some_and(|bytes| bytes > LOG_BEHIND)
    }

    /// A statement ended; if it failed, the rows are left to the sweeper.
    pub(super) fn marked(&mut self, statement: Statement, marked: Option<Marked>) {
        self.markers.ended(statement);
        let Some(Marked { rows, without_row }) = marked else {
            (self.missed, self.marks_lost) = (Missed::Something, true);
            return;
        };
        self.counts.marked += rows;
        if rows < statement.marks as u64 {
            self.missed = Missed::Something;
        }
        for settled in &without_row {
            self.marks_lost |= !self.sweeper.remember(settled);
        }
    }

    pub(super) fn helped(&mut self, store: Option<Arc<Store>>) {
        self.markers.helped(store);
    }

    pub(super) fn observed(&mut self, watermark: Watermark) {
        self.watermark = Step::Waiting(watermark);
    }

    /// A parked event's row was not there, perhaps because it is not visible yet.
    pub(super) fn parked(&mut self) {
        (self.missed, self.parked_unseen) = (Missed::Something, Missed::Something);
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
            self.missed = self.missed.observed();
            self.parked_unseen = self.parked_unseen.observed();
            // What is dropped from now on may be covered by this watermark or by the next one.
            self.marks_lost_before = std::mem::take(&mut self.marks_lost);
            self.observed_at = Some(Instant::now());
            self.observed_resolved = Some(resolved);
            self.observing = self.markers.marks.queued();
            self.watermark = Step::Observing;
            let (store, config) = (Arc::clone(self.markers.store()), Arc::clone(&self.config));
            jobs.push(job(async move {
                let observed = async {
                    let watermark = store.observe().await?;
                    // It must not cover a row that the log was not to bring.
                    store.check_publication(&config.publication, &config.slot).await?;
                    Ok(Done::Observed(watermark))
                };
                let observed: Result<Done, Error> = observed.await;
                match observed {
                    // The next one may be luckier.
                    Err(error) if error.is_contention() => Ok(Done::Unmarked(None)),
                    observed => observed,
                }
            }));
        }
    }

    fn queue(&mut self, settled: &Settled) {
        if self.config.mark.by == MarkBy::Watermark {
            self.markers.marks.skip();
            // Its row may not be visible yet, and no mark tells: so until it must be.
            self.missed = Missed::Something;
        } else if !self.markers.push(settled) {
            (self.missed, self.marks_lost) = (Missed::Something, true);
        }
    }

    fn advance(&mut self, jobs: &mut FuturesUnordered<Job>, state: &State) {
        self.watermark = match std::mem::replace(&mut self.watermark, Step::Resting) {
            Step::Waiting(watermark) if state.confirmed() >= watermark.lsn => {
                Step::Flushing { watermark, marks: self.markers.marks.queued() }
            }
            Step::Flushing { watermark, marks } if self.markers.marks.has_ended(marks) => {
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
                Origin::Log => self.settling.queue(&settled),
                Origin::Scan(batch) => self.scan.published(batch, settled),
            }
        }
        let hurry = self.draining_since.is_some();
        let log_waits = self.settling.log_waits(&self.state);
        self.settling.markers.flush(&mut self.jobs, log_waits, hurry);
        self.settling.advance(&mut self.jobs, &self.state);
        self.continue_scan();
    }
}
