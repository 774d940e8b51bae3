//! Carries out what the engine decides about scans.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::Replication;
use super::jobs::{job, long_job, note};
use crate::config::OnPark;
use crate::describe;
use crate::engine::{
    Blocked, OpenScan, ReadScan, Resolved, SCANS_UNMARKED_MAX, ScanEffect, ScanInput, ScanRead,
    Sees,
};
use crate::error::Error;
use crate::postgres::slot::scan_reach;
use crate::postgres::sql::{Scan, Scanner};
use crate::source::{Done, Job, Scanned, unless_contended};

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

/// Opens a scan when nothing waits in vain: of an aggregate that is blocked it must not find what the
/// others wait for. Returns which are.
async fn open_with_blocked(scan: &Scan) -> Result<Vec<Blocked>, Error> {
    for _ in 1..RELEASES_MAX {
        scan.release().await?;
        scan.open_scan().await?;
        if !scan.has_to_release().await? {
            return scan.blocked().await;
        }
        scan.abandon_scan().await?; // something was requeued in between
    }
    scan.open_scan().await?;
    scan.blocked().await
}

/// Waits until everything is visible that the slot does not bring. The log waits with it: what comes there
/// is newer.
async fn await_visibility(scan: &Scan, start_snapshot: &str) -> Result<(), Error> {
    let mut said: Option<Instant> = None;
    while scan.has_hidden(start_snapshot).await? {
        if said.is_none_or(|at| at.elapsed() >= SAID_EVERY) {
            said = Some(Instant::now());
            warn!("the first scan waits for commits that wait for a synchronous standby");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// A scan that meets others' locks waits for them no longer, and begins again.
fn unless_postponed<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    unless_contended(outcome, "cannot scan for unpublished rows, trying again")
}

/// A scan that gets no connection begins again: what the others have still works. Said once, until one
/// is `unconnected` no more.
fn unless_unconnected(
    connected: Result<Scan, Error>,
    unconnected: &AtomicBool,
) -> Result<Option<Scan>, Error> {
    let Err(error @ Error::Connect(_)) = connected else {
        unconnected.store(false, Ordering::Relaxed);
        return connected.map(Some);
    };
    if !unconnected.swap(true, Ordering::Relaxed) {
        warn!(
            error = describe(&error),
            hint = error.hint(),
            "cannot connect to scan for unpublished rows, trying again: the log goes on, but for a \
             session's first scan and for what parked events block it waits"
        );
    }
    Ok(None)
}

impl Replication {
    /// Keeps the scan's cursor.
    pub(in crate::source) fn scanned(&mut self, scanned: Scanned) -> Result<ScanInput, Error> {
        let Scanned { scanner, rows, blocked, seen } = scanned;
        let process = scanner.process();
        self.scanner = Some(scanner);
        let rows: Result<Vec<_>, _> = rows.iter().map(|row| self.log.rows().scanned(row)).collect();
        Ok(ScanInput::Read(ScanRead { process, rows: rows?, blocked, seen }))
    }

    pub(in crate::source) fn scan_job(&mut self, effect: ScanEffect) -> Result<Option<Job>, Error> {
        let (books, slot) = (Arc::clone(&self.books), self.config.slot.clone());
        Ok(Some(match effect {
            ScanEffect::Open(open) => self.open_scan(open),
            ScanEffect::Read(read) => self.reading(read)(self.open_scanner()?, None),
            ScanEffect::Close => {
                let scanner = self.open_scanner()?;
                job(async move { scanner.close().await.map(|()| ScanInput::Closed.into()) })
            }
            ScanEffect::Abandon { gives_way } => {
                let why = if gives_way { "others wait for the table" } else { "no room" };
                debug!(why, "interrupting the scan");
                self.scanner = None;
                return Ok(None);
            }
            ScanEffect::Watch { process } => {
                job(
                    async move { Ok(ScanInput::Watched(books.is_waited_for(process).await?).into()) },
                )
            }
            ScanEffect::Mark { batches, published } => self.mark_scanned(batches, published),
            ScanEffect::NoteGapFilled { rows } => {
                let reader = self.slot.reader;
                job(async move {
                    match books.gap_filled(&slot, reader, rows).await {
                        Err(error) if error.is_contention() => {
                            Ok(ScanInput::GapNoted(false).into())
                        }
                        noted => noted.map(|()| ScanInput::GapNoted(true).into()),
                    }
                })
            }
            ScanEffect::Note => note(async move { books.note_scan(&slot).await }),
        }))
    }

    fn open_scanner(&mut self) -> Result<Box<Scanner>, Error> {
        self.scanner.take().ok_or_else(|| Error::bug("a scan is read on that is not open"))
    }

    fn open_scan(&self, open: OpenScan) -> Job {
        let (config, start_snapshot) = (Arc::clone(&self.config), self.slot.start_snapshot.clone());
        let reader = self.slot.reader;
        let waits = if open.log_waits { HOLDING_WAITS } else { SCANNER_WAITS };
        let parking_blocks = config.on_park == OnPark::BlockKey;
        let read = self.reading(open.read);
        let unconnected = Arc::clone(&self.unconnected);
        let opened = async move {
            let scan = Scan::connect(&config, waits).await;
            let Some(scan) = unless_unconnected(scan, &unconnected)? else { return Ok(None) };
            if open.sees == (Sees::BeforeSlot { awaits_visibility: true }) {
                await_visibility(&scan, &start_snapshot).await?;
            }
            let blocked = match parking_blocks {
                true => Some(open_with_blocked(&scan).await?),
                false => {
                    scan.open_scan().await?;
                    None
                }
            };
            let snapshot = match open.sees {
                Sees::BeforeSlot { .. } => start_snapshot,
                Sees::BeforeAwaitedSlot => match scan.before_slot_of(reader).await? {
                    Some(snapshot) => snapshot,
                    None => return Ok(None),
                },
            };
            let scanner = Box::new(scan.scan(&snapshot, open.range).await?);
            Ok(Some((scanner, blocked)))
        };
        long_job(async move {
            match unless_postponed(opened.await)?.flatten() {
                Some((scanner, blocked)) => read(scanner, blocked).await,
                None => Ok(ScanInput::Postponed.into()),
            }
        })
    }

    fn mark_scanned(&self, batches: usize, published: Vec<Resolved>) -> Job {
        let (store, stream) = (Arc::clone(&self.rows), self.config.stream.name.clone());
        job(async move {
            let found: Vec<Resolved> =
                published.iter().filter(|it| it.is_found()).copied().collect();
            let marked = async {
                if !found.is_empty() {
                    store.note_found(&found).await?;
                }
                store.mark(&stream, &published).await
            };
            let what = "cannot mark what was scanned, trying again";
            let marked = unless_contended(marked.await, what)?;
            Ok(ScanInput::Marked { batches, published, marked }.into())
        })
    }

    /// Reads a batch. Before the first one is published, the stream's tail is read as well, it is
    /// written down that there is something to publish, and the commits are on the disk.
    fn reading(
        &self,
        read: ReadScan,
    ) -> impl FnOnce(Box<Scanner>, Option<Vec<Blocked>>) -> Job + Send + use<> {
        let rows_max = self.config.scan.batch;
        let bytes_max = self.config.window.bytes / SCANS_UNMARKED_MAX;
        let tail = read.with_tail.then(|| self.tail.clone());
        let (reach, system_id) = (scan_reach(&self.config), self.slot.history.system_id);
        let opens = read.opens_gap.then(|| (Arc::clone(&self.books), self.config.slot.clone()));
        let flushes = read.flushes_log.then(|| Arc::clone(&self.books));
        move |mut scanner: Box<Scanner>, blocked| {
            // The first rows of millions come once all of them are sorted.
            long_job(async move {
                let read = async {
                    let rows = scanner.batch(rows_max, bytes_max).await?;
                    if let Some((books, slot)) = opens.filter(|_| !rows.is_empty()) {
                        books.gap_opened(&slot).await?;
                    }
                    if let Some(books) = flushes.filter(|_| !rows.is_empty()) {
                        books.flush_log().await?;
                    }
                    Ok(rows)
                };
                let Some(rows) = unless_postponed(read.await)? else {
                    return Ok(ScanInput::Postponed.into());
                };
                let seen = match tail {
                    Some(tail) if !rows.is_empty() => {
                        Some(tail.newest_since(1, reach, system_id).await?)
                    }
                    _ => None,
                };
                Ok(Done::Scanned(Scanned { scanner, rows, blocked, seen }))
            })
        }
    }
}
