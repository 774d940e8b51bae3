//! The scanner: publishes rows that the log does not bring.
//!
//! Rows go through the same window as the log's events, in batches: while one is being read others
//! are on their way, and those that the broker has are being marked, durably. Only so many may be
//! unmarked that a bounded read of the stream's tail finds all of them after a crash. As long as there
//! are rows older than the slot, the log waits at the start of a session until the scanner has found
//! all of them, so that an aggregate's old rows are published before its new ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::jobs::{Done, Job, Read, job, long_job};
use super::{Session, WHOLE_EVERY};
use crate::config::OnPark;
use crate::core::{Blocked, Input, SCANS_UNMARKED_MAX, Settled};
use crate::database::Store;
use crate::database::slot::scan_reach;
use crate::database::store::{Extent, Scanner};
use crate::error::Error;

/// So much longer than usual a scan waits while the session is behind.
const BEHIND_FACTOR: u32 = 10;

enum Reading {
    Resting {
        until: Instant,
    },
    Busy,
    /// Until there is room for another batch.
    Paused(Box<Scanner>),
}

/// Which scan looks at how much.
pub(super) struct Extents {
    /// An index leads to what came back.
    is_indexed: bool,
    /// When the whole table was looked at, or need not be; `None` if it has to be now.
    whole_at: Option<Instant>,
    /// Of the scan that is under way.
    now: Extent,
}

impl Extents {
    pub(super) fn new(is_indexed: bool, whole_first: bool) -> Self {
        let whole_at = (!whole_first).then(Instant::now);
        Self { is_indexed, whole_at, now: Extent::Whole }
    }

    /// While the log waits for it, only a gap is worth a look at the whole table.
    fn next(&mut self, holding: bool) -> Extent {
        let is_due = self.whole_at.is_none_or(|at| !holding && at.elapsed() >= WHOLE_EVERY);
        self.now = if self.is_indexed && !is_due { Extent::CameBack } else { Extent::Whole };
        self.now
    }

    fn done(&mut self) {
        if self.now == Extent::Whole {
            self.whole_at = Some(Instant::now());
        }
    }
}

/// A batch that is not marked.
struct Batch {
    number: u32,
    settled: Vec<Settled>,
}

pub(super) struct Scan {
    reading: Reading,
    extents: Extents,
    /// The first scan of the session is not finished.
    initial: bool,
    /// When many rows were last seen to wait for the log, or for their marks.
    behind_at: Option<Instant>,
    /// The log waits, because aggregates are blocked: see `core/state/blocking.rs`.
    holding: bool,
    /// The oldest first.
    batches: VecDeque<Batch>,
    batches_begun: u32,
    is_marking: bool,
    /// The stream's tail was searched for rows that an earlier session published and did not mark.
    tail_read: bool,
    /// It is written down that rows may be published and not marked, or not published: whatever
    /// becomes of this session, the log waits for the first scan of the next one.
    is_gap_open: bool,
    /// A scan has found everything, and that is not written down yet.
    gap_is_read: bool,
    is_noting: bool,
    scanned: u64,
    /// How many of them are written down.
    noted: u64,
}

impl Scan {
    /// With `initial`, the log waits for the first scan; else that is due after `interval`.
    pub(super) fn new(
        initial: bool,
        extents: Extents,
        is_gap_open: bool,
        interval: Duration,
    ) -> Self {
        Self {
            extents,
            reading: Reading::Resting { until: Instant::now() + interval },
            initial,
            behind_at: None,
            holding: false,
            batches: VecDeque::new(),
            batches_begun: 0,
            is_marking: false,
            tail_read: false,
            is_gap_open,
            gap_is_read: false,
            is_noting: false,
            scanned: 0,
            noted: 0,
        }
    }

    pub(super) fn holds_the_log_back(&self) -> bool {
        self.initial || self.holding
    }

    pub(super) fn is_resting(&self) -> bool {
        let rests = matches!(self.reading, Reading::Resting { .. }) && !self.is_busy();
        rests && !self.initial && !self.gap_is_read
    }

    /// Whether nothing of a scan is in the stream since its last batch was noted as marked.
    pub(super) fn is_clear(&self) -> bool {
        !self.is_gap_open && !self.is_noting
    }

    /// Whether rows are published and not marked.
    pub(super) fn is_busy(&self) -> bool {
        !self.batches.is_empty() || self.is_marking
    }

    /// Rows marked by this session's scans.
    pub(super) fn scanned(&self) -> u64 {
        self.scanned
    }

    pub(super) fn published(&mut self, batch: u32, settled: Settled) {
        if let Some(batch) = self.batches.iter_mut().find(|it| it.number == batch) {
            batch.settled.push(settled);
        }
    }

    pub(super) fn gap_filled(&mut self) {
        (self.is_gap_open, self.gap_is_read, self.is_noting) = (false, false, false);
    }

    /// How much longer than usual the next scan has to wait.
    fn patience(&mut self, is_behind: bool, interval: Duration) -> Duration {
        if is_behind {
            self.behind_at = Some(Instant::now());
        }
        let was_behind = self.behind_at.is_some_and(|at| at.elapsed() < interval);
        if was_behind { interval * BEHIND_FACTOR } else { Duration::ZERO }
    }

    /// The scan is over; the next one is due after `interval`.
    pub(super) fn closed(&mut self, interval: Duration) {
        if std::mem::take(&mut self.initial) && self.batches_begun > 0 {
            info!("the scanner is done; following the log");
        }
        self.holding = false;
        self.extents.done();
        self.reading = Reading::Resting { until: Instant::now() + interval };
    }
}

/// Opens a scan when nothing waits in vain: of an aggregate that is blocked it must not find what the
/// others wait for. Returns which are.
async fn open_with_blocked(store: &Store) -> Result<Vec<Blocked>, Error> {
    loop {
        store.release().await?;
        store.open_scan().await?;
        if !store.has_to_release().await? {
            return store.blocked().await;
        }
        store.abandon_scan().await?; // something was requeued in between
    }
}

impl Session {
    pub(super) fn start_scan(&mut self) {
        self.scan.reading = Reading::Busy;
        let config = Arc::clone(&self.config);
        let (start_snapshot, extent) =
            (self.start_snapshot.clone(), self.scan.extents.next(self.scan.holding));
        let parking_blocks = config.on_park == OnPark::BlockKey;
        let read = self.read_with_tail();
        self.jobs.push(long_job(async move {
            let store = Store::connect(&config, "tailpost scanner").await?;
            store.check_publication(&config.publication, &config.slot).await?;
            let blocked = match parking_blocks {
                true => Some(open_with_blocked(&store).await?),
                false => {
                    store.open_scan().await?;
                    None
                }
            };
            read(Box::new(store.scan(&start_snapshot, extent).await?), blocked).await
        }));
    }

    /// Looks again from time to time: a row may have been unmarked by hand. Seldom while the session
    /// is or just was behind: a look at the whole table would cost the more, and find the less.
    pub(super) fn rescan(&mut self) {
        let is_behind = self.settling.is_behind(&self.state);
        let mut patience = self.scan.patience(is_behind, self.config.scan.interval);
        if self.scan.holding {
            patience = Duration::ZERO; // the log waits for this one, and would stay behind
        }
        if let Reading::Resting { until } = self.scan.reading
            && until + patience <= Instant::now()
            && !self.scan.is_busy()
            && self.draining_since.is_none()
            && self.state.unresolved() * 2 < self.config.window.events
        {
            self.scan.holding = self.state.is_blocking();
            if !self.scan.holding || self.state.is_idle() {
                self.start_scan();
            }
        }
    }

    pub(super) fn scanned(&mut self, read: Read) -> Result<(), Error> {
        let Read { scanner, rows, blocked, seen } = read;
        if let Some(blocked) = blocked {
            self.apply(Input::Blocked(blocked));
        }
        if rows.is_empty() || self.draining_since.is_some() {
            self.scan.gap_is_read = rows.is_empty() && self.scan.is_gap_open;
            self.jobs.push(job(async move { scanner.close().await.map(|()| Done::ScanClosed) }));
            return Ok(());
        }
        self.scan.is_gap_open = true;
        if let Some(seen) = seen {
            self.scan.tail_read = true;
            self.apply(Input::Seen(seen));
        }
        if self.scan.batches_begun == 0 {
            info!("the scanner found rows that the log does not bring: publishing them");
        }
        let rows: Result<Vec<_>, _> =
            rows.iter().map(|row| self.source.rows().scanned(row)).collect();
        self.scan.batches_begun += 1;
        let batch = self.scan.batches_begun;
        self.scan.batches.push_back(Batch { number: batch, settled: Vec::new() });
        self.apply(Input::Scanned { batch, rows: rows? });
        self.scan.reading = Reading::Paused(scanner);
        Ok(())
    }

    /// Marks what is resolved, and reads on if there is room.
    pub(super) fn continue_scan(&mut self) {
        let batches = self.state.scans_resolved();
        let is_quiet = !self.scan.is_busy() && !self.scan.is_noting && !self.hold.is_writing();
        if self.scan.gap_is_read && is_quiet {
            self.scan.is_noting = true;
            let (store, slot) = (Arc::clone(&self.store), self.config.slot.clone());
            let reader = self.reader;
            let rows =
                self.scan.scanned - std::mem::replace(&mut self.scan.noted, self.scan.scanned);
            self.jobs.push(job(async move {
                store.gap_filled(&slot, reader, rows).await.map(|()| Done::GapFilled)
            }));
        }
        if batches > 0 && !self.scan.is_marking {
            self.scan.is_marking = true;
            let resolved = self.scan.batches.drain(..batches).flat_map(|it| it.settled);
            let published: Vec<Settled> = resolved.collect();
            let (store, stream) = (Arc::clone(&self.store), self.config.stream.name.clone());
            let found: Vec<Settled> =
                published.iter().filter(|it| it.is_found()).copied().collect();
            self.jobs.push(job(async move {
                if !found.is_empty() {
                    store.note_found(&found).await?;
                }
                let marked = store.mark(&stream, &published).await?;
                Ok(Done::ScanMarked { batches, marked })
            }));
        }
        if matches!(self.scan.reading, Reading::Paused(_)) && self.state.has_room_to_scan() {
            let read = self.read_with_tail();
            if let Reading::Paused(scanner) =
                std::mem::replace(&mut self.scan.reading, Reading::Busy)
            {
                self.jobs.push(read(scanner, None));
            }
        }
    }

    pub(super) fn scan_marked(&mut self, batches: usize, marked: u64) {
        self.scan.scanned += marked;
        self.scan.is_marking = false;
        self.apply(Input::ScanMarked { batches });
    }

    /// Reads a batch; before the first one is published, the stream's tail is read as well, and it
    /// is written down that there is something to publish.
    fn read_with_tail(
        &self,
    ) -> impl FnOnce(Box<Scanner>, Option<Vec<Blocked>>) -> Job + Send + use<> {
        let rows_max = self.config.scan.batch;
        let bytes_max = self.config.window.bytes / SCANS_UNMARKED_MAX;
        let tail = (!self.scan.tail_read).then(|| self.tail.clone());
        let (reach, system_id) = (scan_reach(&self.config), self.system_id);
        let opens =
            (!self.scan.is_gap_open).then(|| (Arc::clone(&self.store), self.config.slot.clone()));
        move |mut scanner: Box<Scanner>, blocked| {
            // The first rows of millions come once all of them are sorted.
            long_job(async move {
                let rows = scanner.batch(rows_max, bytes_max).await?;
                if let Some((store, slot)) = opens.filter(|_| !rows.is_empty()) {
                    store.gap_opened(&slot).await?;
                }
                let seen = match tail {
                    Some(tail) if !rows.is_empty() => Some(tail.newest(reach, system_id).await?),
                    _ => None,
                };
                Ok(Done::Scanned(Read { scanner, rows, blocked, seen }))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table_is_looked_at_for_a_gap_and_where_no_index_leads() {
        let mut extents = Extents::new(true, true);
        assert_eq!(extents.next(true), Extent::Whole, "a gap, whoever waits");
        assert_eq!(extents.next(false), Extent::Whole, "the first look was not finished");
        extents.done();
        assert_eq!(extents.next(false), Extent::CameBack);
        extents.done();
        assert_eq!(extents.next(true), Extent::CameBack);
        assert_eq!(Extents::new(true, false).next(false), Extent::CameBack, "no gap");
        let mut extents = Extents::new(false, false);
        extents.done();
        assert_eq!(extents.next(false), Extent::Whole, "nothing leads to what came back");
    }
    #[test]
    fn scans_are_seldom_until_the_session_has_not_been_behind_for_a_while() {
        let interval = Duration::from_mins(1);
        let mut scan = Scan::new(false, Extents::new(false, false), false, interval);
        assert_eq!(scan.patience(false, interval), Duration::ZERO);
        assert_eq!(scan.patience(true, interval), Duration::from_mins(10));
        assert_eq!(scan.patience(false, interval), Duration::from_mins(10), "it just was");
        scan.behind_at = scan.behind_at.and_then(|at| at.checked_sub(interval));
        assert_eq!(scan.patience(false, interval), Duration::ZERO);
    }
}
