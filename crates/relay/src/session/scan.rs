//! The scanner: publishes rows that the log does not bring.
//!
//! Rows go through the same window as the log's events, in batches: while one is being read others
//! are on their way, and those that the broker has are being marked, durably. Only so many may be
//! unmarked that a bounded read of the stream's tail finds all of them after a crash. As long as there
//! are rows older than the slot, the log waits at the start of a session until the scanner has found
//! all of them, so that an aggregate's old rows are published before its new ones.

mod extents;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

pub(super) use self::extents::Extents;
use super::Session;
use super::jobs::{Done, Job, Read, job, long_job, note_look};
use crate::config::OnPark;
use crate::core::{Blocked, Input, SCANS_UNMARKED_MAX, Settled};
use crate::database::Store;
use crate::database::slot::scan_reach;
use crate::database::store::{Looker, Marks, Scanner};
use crate::describe;
use crate::error::Error;

/// So much longer than usual a scan waits while the session is behind.
const BEHIND_FACTOR: u32 = 10;

/// How long a scan waits for room with its transaction open, which keeps others from changing the table,
/// and vacuum from cleaning up. A broker that is there makes room in less.
const OPEN_WITHOUT_ROOM_MAX: Duration = Duration::from_secs(2);

/// How often it is looked whether others wait for a scan's end.
const WATCHED_EVERY: Duration = Duration::from_secs(1);

/// How long nothing is scanned, or marked, after somebody had it locked.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How often a scan releases what waits in vain before it begins. What is left then is locked by
/// somebody, and waits for the next scan.
const RELEASES_MAX: u32 = 10;

/// How often it is looked whether commits have become visible, and how often it is said that they have
/// not.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const SAID_EVERY: Duration = Duration::from_secs(60);

/// How long a scan waits for others' locks, and how long while the log waits for it.
const SCANNER_WAITS: &str = "2s";
const HOLDING_WAITS: &str = "100ms";

enum Reading {
    Resting {
        until: Instant,
    },
    Busy,
    /// Until there is room for another batch.
    Paused {
        scanner: Box<Scanner>,
        since: Instant,
    },
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
    /// What could not be marked, and when it is tried again.
    unmarked: Option<(usize, Vec<Settled>, Instant)>,
    /// The server's process that reads for the scan, and when it was last looked whether it is in
    /// somebody's way.
    reader: Option<i32>,
    watched_at: Instant,
    /// Somebody waits for the table: the scan is to begin anew, behind them.
    gives_way: bool,
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
            unmarked: None,
            reader: None,
            watched_at: Instant::now(),
            gives_way: false,
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
        !self.batches.is_empty() || self.is_marking || self.unmarked.is_some()
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

    pub(super) fn gap_filled(&mut self, is_noted: bool) {
        self.is_noting = false;
        if is_noted {
            (self.is_gap_open, self.gap_is_read, self.noted) = (false, false, self.scanned);
        }
    }

    pub(super) fn watched(&mut self, is_in_the_way: bool) {
        self.gives_way |= is_in_the_way && !matches!(self.reading, Reading::Resting { .. });
    }

    /// It begins again: what it has brought by then is marked.
    pub(super) fn postponed(&mut self) {
        self.interrupted(AGAIN_AFTER);
    }

    fn interrupted(&mut self, pause: Duration) {
        (self.holding, self.gives_way, self.reader) = (false, false, None);
        self.reading = Reading::Resting { until: Instant::now() + pause };
    }

    /// How much longer than usual the next scan has to wait.
    fn patience(&mut self, is_behind: bool, interval: Duration) -> Duration {
        if is_behind {
            self.behind_at = Some(Instant::now());
        }
        let was_behind = self.behind_at.is_some_and(|at| at.elapsed() < interval);
        if was_behind { interval * BEHIND_FACTOR } else { Duration::ZERO }
    }

    /// The scan is over; the next one is due after `interval`. Says whether it is to be written down that
    /// it looked at the whole table.
    fn closed(&mut self, interval: Duration) -> bool {
        if std::mem::take(&mut self.initial) && self.batches_begun > 0 {
            info!("the scanner is done; following the log");
        }
        (self.holding, self.gives_way, self.reader) = (false, false, None);
        self.reading = Reading::Resting { until: Instant::now() + interval };
        self.extents.done()
    }
}

/// Opens a scan when nothing waits in vain: of an aggregate that is blocked it must not find what the
/// others wait for. Returns which are.
async fn open_with_blocked(store: &Store) -> Result<Vec<Blocked>, Error> {
    for _ in 1..RELEASES_MAX {
        store.release().await?;
        store.open_scan().await?;
        if !store.has_to_release().await? {
            return store.blocked().await;
        }
        store.abandon_scan().await?; // something was requeued in between
    }
    store.open_scan().await?;
    store.blocked().await
}

/// Waits until everything is visible that the slot does not bring. The log waits with it: what comes there
/// is newer.
async fn await_visibility(store: &Store, start_snapshot: &str) -> Result<(), Error> {
    let mut said: Option<Instant> = None;
    while store.has_hidden(start_snapshot).await? {
        if said.is_none_or(|at| at.elapsed() >= SAID_EVERY) {
            said = Some(Instant::now());
            warn!("the first scan waits for commits that wait for a synchronous standby");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// What a scan needs is locked by somebody: it waits for no longer, and begins again.
fn postponed(error: Error) -> Result<Done, Error> {
    if !error.is_contention() {
        return Err(error);
    }
    warn!(error = describe(&error), "cannot scan for unpublished rows, trying again");
    Ok(Done::ScanPostponed)
}

impl Session {
    pub(super) fn scan_closed(&mut self) {
        if self.scan.closed(self.config.scan.interval) {
            let (store, slot) = (Arc::clone(&self.store), self.config.slot.clone());
            self.jobs.push(note_look(store, slot, Looker::Scanner));
        }
    }

    pub(super) fn start_scan(&mut self) {
        self.scan.reading = Reading::Busy;
        let config = Arc::clone(&self.config);
        let (start_snapshot, extent) =
            (self.start_snapshot.clone(), self.scan.extents.next(self.scan.holding));
        let waits = if self.scan.holding { HOLDING_WAITS } else { SCANNER_WAITS };
        let parking_blocks = config.on_park == OnPark::BlockKey;
        let is_gap_open = self.scan.is_gap_open;
        let read = self.read_with_tail();
        let scan = async move {
            let store = Store::connect(&config, "tailpost scanner").await?;
            store.wait_for_locks(Some(waits)).await?;
            store.check_publication(&config.publication, &config.slot).await?;
            if is_gap_open {
                await_visibility(&store, &start_snapshot).await?;
            }
            let blocked = match parking_blocks {
                true => Some(open_with_blocked(&store).await?),
                false => {
                    store.open_scan().await?;
                    None
                }
            };
            Ok((Box::new(store.scan(&start_snapshot, extent).await?), blocked))
        };
        self.jobs.push(long_job(async move {
            match scan.await {
                Ok((scanner, blocked)) => read(scanner, blocked).await,
                Err(error) => postponed(error),
            }
        }));
    }

    /// Looks again from time to time: a row may have been unmarked by hand. Seldom while the session
    /// is or just was behind: a look at the whole table would cost the more, and find the less.
    pub(super) fn rescan(&mut self) {
        let is_behind = self.settling.is_behind(&self.state);
        let mut patience = self.scan.patience(is_behind, self.config.scan.interval);
        if self.scan.holds_the_log_back() {
            patience = Duration::ZERO; // the log waits for this one, and would stay behind
        }
        if let Reading::Resting { until } = self.scan.reading
            && until + patience <= Instant::now()
            && !self.scan.is_busy()
            && self.draining_since.is_none()
            && self.state.may_scan(self.hold.confirmed())
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
        self.scan.reader = Some(scanner.process());
        self.scan.reading = Reading::Paused { scanner, since: Instant::now() };
        Ok(())
    }

    /// Ends a scan's transaction while the broker keeps it waiting, or somebody else waits for it. The
    /// next scan begins when everything that this one brought is marked, so it finds the rest.
    pub(super) fn watch_scan(&mut self) {
        if let Reading::Paused { since, .. } = &self.scan.reading
            && (self.scan.gives_way || since.elapsed() > OPEN_WITHOUT_ROOM_MAX)
        {
            let why = if self.scan.gives_way { "others wait for the table" } else { "no room" };
            debug!(why, "interrupting the scan");
            self.scan.interrupted(Duration::ZERO);
        }
        if let Some(process) = self.scan.reader
            && self.scan.watched_at.elapsed() >= WATCHED_EVERY
        {
            self.scan.watched_at = Instant::now();
            let store = Arc::clone(&self.store);
            self.jobs.push(job(async move {
                store.is_waited_for(process).await.map(Done::ScanWatched)
            }));
        }
    }

    /// Marks what is resolved, and reads on if there is room.
    pub(super) fn continue_scan(&mut self) {
        let batches = self.state.scans_resolved();
        let is_quiet = !self.scan.is_busy() && !self.scan.is_noting && !self.hold.is_writing();
        if self.scan.gap_is_read && is_quiet {
            self.scan.is_noting = true;
            let (store, slot) = (Arc::clone(&self.store), self.config.slot.clone());
            let reader = self.reader;
            let rows = self.scan.scanned - self.scan.noted;
            self.jobs.push(job(async move {
                match store.gap_filled(&slot, reader, rows).await {
                    Err(error) if error.is_contention() => Ok(Done::GapFilled(false)),
                    noted => noted.map(|()| Done::GapFilled(true)),
                }
            }));
        }
        if let Some((batches, published, _)) =
            self.scan.unmarked.take_if(|(_, _, again)| Instant::now() >= *again)
        {
            self.mark_scanned(batches, published);
        }
        if batches > 0 && !self.scan.is_marking && self.scan.unmarked.is_none() {
            let resolved = self.scan.batches.drain(..batches).flat_map(|it| it.settled);
            let published: Vec<Settled> = resolved.collect();
            self.mark_scanned(batches, published);
        }
        let is_paused = matches!(self.scan.reading, Reading::Paused { .. });
        if is_paused && !self.scan.gives_way && self.state.has_room_to_scan() {
            let read = self.read_with_tail();
            if let Reading::Paused { scanner, .. } =
                std::mem::replace(&mut self.scan.reading, Reading::Busy)
            {
                self.jobs.push(read(scanner, None));
            }
        }
    }

    fn mark_scanned(&mut self, batches: usize, published: Vec<Settled>) {
        self.scan.is_marking = true;
        let (store, stream) = (Arc::clone(&self.rows), self.config.stream.name.clone());
        self.jobs.push(job(async move {
            let found: Vec<Settled> =
                published.iter().filter(|it| it.is_found()).copied().collect();
            let marked = async {
                if !found.is_empty() {
                    store.note_found(&found).await?;
                }
                store.mark_or_owe(&stream, &published).await
            };
            let marked = match marked.await {
                Err(error) if error.is_contention() => {
                    warn!(error = describe(&error), "cannot mark what was scanned, trying again");
                    None
                }
                marked => Some(marked?),
            };
            Ok(Done::ScanMarked { batches, published, marked })
        }));
    }

    pub(super) fn scan_marked(
        &mut self,
        batches: usize,
        published: Vec<Settled>,
        marked: Option<Marks>,
    ) {
        self.scan.is_marking = false;
        let Some(marked) = marked else {
            self.scan.unmarked = Some((batches, published, Instant::now() + AGAIN_AFTER));
            return;
        };
        if marked.owed > 0 {
            self.owed.some();
        }
        self.scan.scanned += marked.rows + marked.owed;
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
                let rows = match scanner.batch(rows_max, bytes_max).await {
                    Err(error) => return postponed(error),
                    rows => rows?,
                };
                if let Some((store, slot)) = opens.filter(|_| !rows.is_empty())
                    && let Err(error) = store.gap_opened(&slot).await
                {
                    return postponed(error);
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
    fn scans_are_seldom_until_the_session_has_not_been_behind_for_a_while() {
        let interval = Duration::from_mins(1);
        let mut scan = Scan::new(false, Extents::new(false, false, None), false, interval);
        assert_eq!(scan.patience(false, interval), Duration::ZERO);
        assert_eq!(scan.patience(true, interval), Duration::from_mins(10));
        assert_eq!(scan.patience(false, interval), Duration::from_mins(10), "it just was");
        scan.behind_at = scan.behind_at.and_then(|at| at.checked_sub(interval));
        assert_eq!(scan.patience(false, interval), Duration::ZERO);
    }
}
