//! The scanner: publishes rows that the log does not bring.
//!
//! A batch is read from a cursor, goes through the same window as the log's events, and is marked,
//! durably, before the next one is read. At the start of a session the log waits until the scanner
//! has found nothing more, so that an aggregate's old rows are published before its new ones.

use std::sync::Arc;
use std::time::Instant;

use tokio_postgres::Row;
use tracing::info;

use super::Session;
use super::jobs::{Done, Job, Read, job, long_job};
use crate::broker::WayBack;
use crate::config::OnPark;
use crate::core::{Blocked, Input, Settled};
use crate::database::Store;
use crate::database::slot::scan_reach;
use crate::error::Error;

/// Rows fetched at a time; a batch is filled until it holds enough rows or bytes.
const FETCH: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Resting { since: Instant },
    Reading,
    Publishing,
    Marking,
}

pub(super) struct Scan {
    phase: Phase,
    /// The first scan of the session is not finished.
    initial: bool,
    /// The log waits, because aggregates are blocked: see `core/state/blocking.rs`.
    holding: bool,
    /// The cursor's connection, while one is open.
    scanner: Option<Arc<Store>>,
    published: Vec<Settled>,
    /// The stream's tail was searched for rows that an earlier session published and did not mark.
    tail_read: bool,
    scanned: u64,
}

impl Scan {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Resting { since: Instant::now() },
            initial: true,
            holding: false,
            scanner: None,
            published: Vec::new(),
            tail_read: false,
            scanned: 0,
        }
    }

    pub(super) fn holds_the_log_back(&self) -> bool {
        self.initial || self.holding
    }

    pub(super) fn is_resting(&self) -> bool {
        matches!(self.phase, Phase::Resting { .. }) && !self.initial
    }

    /// Whether rows are published and not marked.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.phase, Phase::Publishing | Phase::Marking)
    }

    /// Rows marked by this session's scans.
    pub(super) fn scanned(&self) -> u64 {
        self.scanned
    }

    pub(super) fn published(&mut self, settled: Settled) {
        self.published.push(settled);
    }

    pub(super) fn closed(&mut self) {
        if std::mem::take(&mut self.initial) && self.scanned > 0 {
            info!(rows = self.scanned, "the scanner is done; following the log");
        }
        self.scanner = None;
        self.holding = false;
        self.phase = Phase::Resting { since: Instant::now() };
    }
}

impl Session {
    pub(super) fn start_scan(&mut self) {
        self.scan.phase = Phase::Reading;
        let config = Arc::clone(&self.config);
        let start_snapshot = self.start_snapshot.clone();
        let parking_blocks = config.on_park == OnPark::BlockKey;
        let read = self.fetch_with_tail();
        self.jobs.push(long_job(async move {
            let scanner = Store::connect(&config, "tailpost scanner").await?;
            scanner.check_publication(&config.publication, &config.slot).await?;
            if parking_blocks {
                scanner.release().await?;
            }
            scanner.open_scan(&start_snapshot).await?;
            let blocked = if parking_blocks { Some(scanner.blocked().await?) } else { None };
            read(Arc::new(scanner), blocked).await
        }));
    }

    /// Looks again from time to time, while the log is not behind: a row may have been unmarked by
    /// hand. (Behind, the many rows that the log will bring would be looked at in vain.)
    pub(super) fn rescan(&mut self) {
        if let Phase::Resting { since } = self.scan.phase
            && since.elapsed() >= self.config.scan.interval
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
            let (slot, scanned) = (self.config.slot.clone(), self.scan.scanned);
            let is_gap_filled = rows.is_empty() && self.scan.initial;
            self.jobs.push(job(async move {
                scanner.close_scan().await?;
                if is_gap_filled {
                    scanner.gap_filled(&slot, scanned).await?;
                }
                Ok(Done::ScanClosed)
            }));
            return Ok(());
        }
        self.scan.scanner = Some(scanner);
        if let Some(seen) = seen {
            self.scan.tail_read = true;
            self.apply(Input::Seen(seen));
        }
        if self.scan.scanned == 0 {
            info!("the scanner found rows that the log does not bring: publishing them");
        }
        let rows: Result<Vec<_>, _> =
            rows.iter().map(|row| self.source.rows().scanned(row)).collect();
        self.scan.phase = Phase::Publishing;
        self.apply(Input::Scanned(rows?));
        Ok(())
    }

    /// Marks the batch once all of it is resolved.
    pub(super) fn continue_scan(&mut self) {
        if self.scan.phase == Phase::Publishing && self.state.scan_resolved_whole() {
            self.scan.phase = Phase::Marking;
            let published = std::mem::take(&mut self.scan.published);
            let (store, stream) = (Arc::clone(&self.store), self.config.stream.name.clone());
            let found: Vec<Settled> =
                published.iter().filter(|it| it.is_found()).copied().collect();
            self.jobs.push(job(async move {
                if !found.is_empty() {
                    store.note_found(&found).await?;
                }
                store.mark(&stream, &published).await.map(Done::ScanMarked)
            }));
        }
    }

    pub(super) fn scan_marked(&mut self, marked: u64) {
        self.scan.scanned += marked;
        self.apply(Input::ScanMarked);
        self.scan.phase = Phase::Reading;
        if let Some(scanner) = self.scan.scanner.take() {
            let read = self.fetch_with_tail();
            self.jobs.push(read(scanner, None));
        }
    }

    /// Fetches a batch; before the first one is published, the stream's tail is read as well.
    fn fetch_with_tail(
        &self,
    ) -> impl FnOnce(Arc<Store>, Option<Vec<Blocked>>) -> Job + Send + use<> {
        let (rows_max, bytes_max) = (self.config.scan.batch, self.config.window.bytes);
        let tail = (!self.scan.tail_read).then(|| self.tail.clone());
        let way = WayBack {
            resolved_before: pgoutput::Lsn(u64::MAX),
            system_id: self.system_id,
            overtaken_max: 0,
            at_least: scan_reach(&self.config),
        };
        move |scanner, blocked| {
            // The first rows of millions come once all of them are sorted.
            long_job(async move {
                let rows = fetch(&scanner, rows_max, bytes_max).await?;
                let seen = match tail {
                    Some(tail) if !rows.is_empty() => Some(tail.back_to(way).await?),
                    _ => None,
                };
                Ok(Done::Scanned(Read { scanner, rows, blocked, seen }))
            })
        }
    }
}

async fn fetch(scanner: &Store, rows_max: usize, bytes_max: usize) -> Result<Vec<Row>, Error> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while rows.len() < rows_max && bytes < bytes_max {
        let more = scanner.fetch_scan(FETCH).await?;
        let end = more.len() < FETCH;
        bytes += more.iter().map(Row::raw_size_bytes).sum::<usize>();
        rows.extend(more);
        if end {
            break;
        }
    }
    Ok(rows)
}
