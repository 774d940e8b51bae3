//! One publishing session: `Input → apply → what to send, settle, confirm`.

mod batch;
mod resync;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

use self::batch::Batch;
use super::messages::{Counts, Input, Mode, Refusal, Request, Send, Settled, Start};
use super::progress::Progress;
use super::window::{Entry, LastPosition, Limits, Origin, Outgoing, Stage, Unpublished, Window};

/// While rows of a scan are published but not marked, the log may bring at most this many events,
/// so that after a crash a bounded read of the tail finds those rows.
pub(crate) const LOGGED_WHILE_SCAN_UNMARKED_MAX: usize = 8_192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Up,
    /// Waiting for the tail: nothing is sent, and answers to what was sent no longer count.
    Resyncing,
}

#[derive(Debug)]
struct ScanBatch {
    outstanding: usize,
    logged_since: usize,
}

/// One publishing session. See the module.
#[derive(Debug)]
pub(crate) struct State {
    mode: Mode,
    limits: Limits,
    ack_timeout: Duration,
    system_id: u64,
    resolved_before: Lsn,
    window: Window,
    progress: Progress,
    /// Commit LSN, commit time and next ordinal of the transaction being received.
    transaction: (Lsn, i64, u32),
    last_position: Option<LastPosition>,
    link: Link,
    /// Numbers the periods between resyncs, so that late answers can be told from current ones.
    epoch: u32,
    /// Fenced mode: the next entry to send. Keyed mode: unused.
    next: u64,
    /// Keyed mode: entries that no entry of their aggregate precedes.
    ready: VecDeque<u64>,
    /// The sequence that the stream will have given out last when the next message arrives.
    expected: u64,
    /// The highest sequence known to be in the stream.
    known_seq: u64,
    in_flight: usize,
    /// The stream has taken a message on the present prediction, and since then there was always
    /// something on its way or waiting to be sent.
    proven: bool,
    /// Whether the broker takes batches.
    batches: bool,
    /// The present batch, or the last one.
    batch: Option<Batch>,
    batches_begun: u32,
    /// The stream has taken a message since its tail was read: until then none goes in a batch.
    settled_in: bool,
    /// Ids that the stream had when the session began.
    seen: HashMap<Uuid, u64>,
    /// No event logged after this position can be in `seen`.
    seen_before: Lsn,
    scan: Option<ScanBatch>,
    now: Duration,
    last_answer: Duration,
    /// When the latest of the messages that were answered had been sent.
    answered_until: Duration,
    /// Resyncs since the broker last stored something.
    fruitless_resyncs: u32,
    foreign_resyncs: u32,
    last_foreign: Duration,
    requests: VecDeque<Request>,
    settled: Vec<Settled>,
    counts: Counts,
}

impl State {
    pub(crate) fn new(start: Start) -> Self {
        let mut state = Self {
            mode: start.mode,
            limits: start.limits,
            ack_timeout: start.ack_timeout,
            system_id: start.system_id,
            resolved_before: start.resolved_before,
            window: Window::new(),
            progress: Progress::default(),
            transaction: (Lsn::ZERO, 0, 0),
            last_position: None,
            link: Link::Up,
            epoch: 0,
            next: 0,
            ready: VecDeque::new(),
            expected: start.tail.last_seq,
            known_seq: start.tail.last_seq,
            in_flight: 0,
            proven: false,
            batches: start.batches && start.mode == Mode::Fenced,
            batch: None,
            batches_begun: 0,
            settled_in: false,
            seen: HashMap::new(),
            seen_before: Lsn::ZERO,
            scan: None,
            now: Duration::ZERO,
            last_answer: Duration::ZERO,
            answered_until: Duration::ZERO,
            fruitless_resyncs: 0,
            foreign_resyncs: 0,
            last_foreign: Duration::ZERO,
            requests: VecDeque::new(),
            settled: Vec::new(),
            counts: Counts::default(),
        };
        if state.mode == Mode::Keyed {
            state.window.chain_by_key();
        }
        state.remember(start.tail.messages);
        state
    }

    /// Takes in one thing that happened at `now`, measured from the session's start.
    pub(crate) fn apply(&mut self, now: Duration, input: Input) {
        self.now = now;
        match input {
            Input::Begin { commit_lsn, commit_time_micros } => {
                self.progress.begin();
                self.transaction = (commit_lsn, commit_time_micros, 0);
                if !self.seen.is_empty() && self.scan.is_none() && commit_lsn > self.seen_before {
                    self.seen = HashMap::new();
                }
            }
            Input::Logged(outgoing) => self.logged(outgoing),
            Input::Commit { end_lsn } => {
                self.progress.commit(end_lsn, self.window.end());
                self.progress.resolved_below(self.window.first());
            }
            Input::Keepalive { wal_end } => {
                self.progress.keepalive(wal_end, self.window.unresolved() == 0);
            }
            Input::Scanned(rows) => self.scanned(rows),
            Input::ScanMarked => self.scan = None,
            Input::Seen(tail) => {
                // Whoever had the slot before may have stored something since the session began.
                // Predictions that are too low would let a later message in after an earlier one
                // was refused: what was sent since the tail was read counts as well.
                if self.in_flight == 0 && !self.is_batch_open() {
                    self.expected = self.expected.max(tail.last_seq);
                }
                self.known_seq = self.known_seq.max(tail.last_seq);
                self.remember(tail.messages);
            }
            Input::Acked { epoch, index, seq } if epoch == self.epoch && self.link == Link::Up => {
                self.acked(index, seq);
            }
            Input::Refused { epoch, index, refusal }
                if epoch == self.epoch && self.link == Link::Up =>
            {
                self.refused(index, refusal);
            }
            Input::Acked { .. } | Input::Refused { .. } => {} // of a period that is over
            Input::Stored { batch, count } => self.stored(batch, count),
            Input::Ended { batch, count, seq } => self.ended(batch, count, seq),
            Input::Broken { batch, number, refusal } => self.broken(batch, number, refusal),
            Input::Unsendable { index, reason } => {
                self.in_flight -= 1;
                self.expected -= 1;
                self.take_out_of_batch();
                self.park(index, reason);
                self.keep_proof();
            }
            Input::LinkLost => self.resync(Duration::ZERO, "the connection was replaced".into()),
            Input::Tail(tail) => self.tail(tail),
            Input::Parked { index } => {
                self.counts.parked += 1;
                self.scan_resolved(index);
                self.resolve(index);
            }
            Input::Tick => self.tick(),
        }
    }

    /// Whether the log may bring more. While it is false its connection is not read.
    pub(crate) fn has_room(&self) -> bool {
        let scan_bounded = self
            .scan
            .as_ref()
            .is_none_or(|scan| scan.logged_since < LOGGED_WHILE_SCAN_UNMARKED_MAX);
        scan_bounded && self.window.has_room(self.limits)
    }

    /// Whether [`next_send`](Self::next_send) or [`next_end`](Self::next_end) would give something.
    pub(crate) fn has_send(&mut self) -> bool {
        self.link == Link::Up && (self.sendable().is_some() || self.is_batch_open())
    }

    /// The next message to send; it counts as sent.
    pub(crate) fn next_send(&mut self) -> Option<Send<'_>> {
        if self.link != Link::Up {
            return None;
        }
        let index = self.sendable()?;
        match self.mode {
            Mode::Fenced => self.next = index + 1,
            Mode::Keyed => _ = self.ready.pop_front(),
        }
        if self.in_flight == 0 {
            self.last_answer = self.now;
        }
        self.in_flight += 1;
        let part = self.next_part();
        let expected = (self.mode == Mode::Fenced).then_some(self.expected);
        self.expected += 1;
        let (known_seq, epoch, last_position) = (self.known_seq, self.epoch, self.last_position);
        let now = self.now;
        let entry = self.window.get_mut(index)?;
        entry.stage = Stage::Sent;
        (entry.sent_after, entry.sent_at) = (known_seq, now);
        entry.expected = expected.unwrap_or_default();
        let position = match entry.origin {
            Origin::Log => Some(LastPosition {
                commit_lsn: entry.commit_lsn,
                ordinal: entry.ordinal,
                event: entry.outgoing.event.id,
            }),
            Origin::Scan => last_position,
        };
        let Outgoing { event, subject } = &entry.outgoing;
        let subject = subject.as_ref().map_or("", String::as_str);
        Some(Send { epoch, index, expected, event, subject, position, part })
    }

    /// The next thing to do that is not a send.
    pub(crate) fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// What became settled since the last call.
    pub(crate) fn take_settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.settled)
    }

    /// What PostgreSQL may forget.
    pub(crate) fn confirmed(&self) -> Lsn {
        self.progress.confirmed()
    }

    /// How far the log has been received.
    pub(crate) fn received(&self) -> Lsn {
        self.progress.received()
    }

    /// Whether every event received is resolved (a transaction may still be open).
    pub(crate) fn is_idle(&self) -> bool {
        self.window.unresolved() == 0
    }

    /// Whether the last scan batch is resolved whole (or there was none).
    pub(crate) fn scan_resolved_whole(&self) -> bool {
        self.scan.as_ref().is_none_or(|scan| scan.outstanding == 0)
    }

    pub(crate) fn unresolved(&self) -> usize {
        self.window.unresolved()
    }

    pub(crate) fn window_bytes(&self) -> usize {
        self.window.bytes()
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { batches: self.batches_begun.into(), ..self.counts }
    }

    fn logged(&mut self, outgoing: Outgoing) {
        let (commit_lsn, commit_time_micros, ordinal) = self.transaction;
        self.transaction.2 += 1;
        if commit_lsn < self.resolved_before {
            return; // resolved in an earlier session, and marked by it or by the sweeper
        }
        let event = outgoing.event.id;
        self.last_position = Some(LastPosition { commit_lsn, ordinal, event });
        if let Some(scan) = &mut self.scan {
            scan.logged_since += 1;
        }
        self.push(outgoing, Origin::Log, (commit_lsn, ordinal, commit_time_micros));
    }

    fn scanned(&mut self, rows: Vec<Outgoing>) {
        self.scan = Some(ScanBatch { outstanding: rows.len(), logged_since: 0 });
        for outgoing in rows {
            self.push(outgoing, Origin::Scan, (Lsn::ZERO, 0, 0));
        }
    }

    fn push(&mut self, outgoing: Outgoing, origin: Origin, at: (Lsn, u32, i64)) {
        let stored_at = self.seen.remove(&outgoing.event.id);
        let unpublished = outgoing.subject.as_ref().err().cloned();
        if let (None, Some(Unpublished::Dropped)) = (stored_at, &unpublished) {
            return self.dropped(outgoing.event.id, origin, at);
        }
        let (index, first_of_key) = self.window.push(outgoing, origin, at);
        if first_of_key && self.mode == Mode::Keyed {
            self.ready.push_back(index);
        }
        match (stored_at, unpublished) {
            // Also if a route drops it now that did not when it was published.
            (Some(seq), _) => self.settle(index, seq, true),
            (None, Some(Unpublished::Unfit(reason))) => self.park(index, reason),
            (None, Some(Unpublished::Dropped) | None) => {}
        }
    }

    /// Resolves an event that is not to be published. It does not enter the window: nothing is sent,
    /// so nothing can be waited for.
    fn dropped(&mut self, id: Uuid, origin: Origin, at: (Lsn, u32, i64)) {
        let (commit_lsn, _, commit_time_micros) = at;
        let (seq, acked) = (None, false);
        self.settled.push(Settled { id, seq, origin, commit_lsn, commit_time_micros, acked });
        self.counts.dropped += 1;
        if let (Origin::Scan, Some(scan)) = (origin, &mut self.scan) {
            scan.outstanding -= 1;
        }
    }

    /// The first entry that may be sent.
    fn sendable(&mut self) -> Option<u64> {
        // While there was nothing to send somebody else may have written to the stream. Then the
        // prediction is too low: the first message is refused, but one behind it would fit. In a
        // batch it would not.
        let alone = if self.batches { !self.is_batch_open() } else { !self.proven };
        if self.mode == Mode::Fenced && self.in_flight > 0 && alone {
            return None;
        }
        self.waiting()
    }

    /// The first entry that waits. Forgets those on the way that need no sending any more.
    fn waiting(&mut self) -> Option<u64> {
        let waiting = |entry: Option<&Entry>| entry.is_some_and(|it| it.stage == Stage::Waiting);
        match self.mode {
            Mode::Fenced => {
                self.next = self.next.max(self.window.first());
                while self.next < self.window.end() && !waiting(self.window.get(self.next)) {
                    self.next += 1;
                }
                (self.next < self.window.end()).then_some(self.next)
            }
            Mode::Keyed => {
                while let Some(&index) = self.ready.front()
                    && !waiting(self.window.get(index))
                {
                    self.ready.pop_front();
                }
                self.ready.front().copied()
            }
        }
    }

    fn acked(&mut self, index: u64, seq: u64) {
        let Some(entry) = self.window.get(index).filter(|it| it.stage == Stage::Sent) else {
            return;
        };
        self.in_flight -= 1;
        self.last_answer = self.now;
        self.answered_until = self.answered_until.max(entry.sent_at);
        self.fruitless_resyncs = 0;
        self.known_seq = self.known_seq.max(seq);
        self.settle(index, seq, false);
        self.settled_in = true;
        if self.mode == Mode::Fenced && self.in_flight == 0 {
            // Lower than predicted if the broker had the event already.
            self.expected = self.known_seq;
        }
        self.proven = true;
        self.keep_proof();
    }

    /// A proof is worth nothing any more once the relay had nothing to send.
    fn keep_proof(&mut self) {
        self.proven &= self.in_flight > 0 || self.sendable().is_some();
    }

    fn refused(&mut self, index: u64, refusal: Refusal) {
        match refusal {
            Refusal::Guard => {
                self.resync(self.pause(Duration::from_millis(2)), "the stream moved".into());
            }
            Refusal::Outage(why) => self.resync(self.pause(Duration::from_millis(100)), why),
            Refusal::Configuration(reason) => self.requests.push_back(Request::Stop(reason)),
            Refusal::NoBatches(why) => {
                self.batches = false;
                self.resync(Duration::ZERO, why);
            }
            Refusal::Message(reason) => {
                if self.window.get(index).is_some_and(|entry| entry.stage == Stage::Sent) {
                    self.in_flight -= 1;
                    self.park(index, reason);
                    if self.mode == Mode::Fenced {
                        // Everything behind it predicted one too many.
                        self.resync(Duration::ZERO, "an event was refused for good".into());
                    }
                }
            }
        }
    }

    fn settle(&mut self, index: u64, seq: u64, found: bool) {
        let Some(entry) = self.window.get(index) else { return };
        self.settled.push(Settled {
            id: entry.outgoing.event.id,
            seq: Some(seq),
            origin: entry.origin,
            commit_lsn: entry.commit_lsn,
            commit_time_micros: entry.commit_time_micros,
            acked: !found,
        });
        if found {
            self.counts.found += 1;
        } else {
            self.counts.acked += 1;
        }
        self.scan_resolved(index);
        self.resolve(index);
    }

    fn resolve(&mut self, index: u64) {
        if let Some(next) = self.window.resolve(index)
            && self.mode == Mode::Keyed
        {
            self.ready.push_back(next);
        }
        self.progress.resolved_below(self.window.first());
    }

    fn scan_resolved(&mut self, index: u64) {
        let is_scan = self.window.get(index).is_some_and(|entry| entry.origin == Origin::Scan);
        if let (true, Some(scan)) = (is_scan, &mut self.scan) {
            scan.outstanding -= 1;
        }
    }

    fn park(&mut self, index: u64, reason: String) {
        if let Some(entry) = self.window.get_mut(index) {
            entry.stage = Stage::Parking;
            let event = Box::new(entry.outgoing.event.clone());
            self.requests.push_back(Request::Park { index, event, reason });
        }
    }

    fn tick(&mut self) {
        if self.link != Link::Up || self.in_flight == 0 {
            return;
        }
        // One answer may be lost among many. Then the message behind it was answered.
        let oldest =
            self.window.iter_unresolved().map(|(_, it)| it).find(|it| it.stage == Stage::Sent);
        let sent_at = oldest.map(|it| it.sent_at);
        let overtaken = sent_at.filter(|sent_at| *sent_at < self.answered_until);
        let silent_since = overtaken.unwrap_or(self.last_answer);
        if self.now.saturating_sub(silent_since) >= self.ack_timeout {
            self.resync(self.pause(Duration::from_millis(100)), "no answer in time".into());
        }
    }
}

#[cfg(test)]
mod tests;
