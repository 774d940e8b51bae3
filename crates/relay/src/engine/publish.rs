//! One publishing session: `Input → apply → what to send, settle, confirm`.

mod batch;
mod blocking;
mod brought;
mod doubt;
mod resync;
mod retry;
mod sending;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

use self::batch::Batch;
use self::blocking::Blocks;
use self::doubt::Doubt;
use super::breaker::Breaker;
use super::messages::{Counts, Input, Mode, Refusal, Request, Settled, Start};
use super::progress::Progress;
use super::tail_messages::Seen;
use super::window::{Entry, LastPosition, Limits, Origin, Stage, Tried, Window};
use crate::status::BreakerState;

/// While rows of a scan are published but not marked, the log may bring at most this many events,
/// so that after a crash a bounded read of the tail finds those rows.
pub(crate) const LOGGED_WHILE_SCAN_UNMARKED_MAX: usize = 8_192;

/// Scan batches that are published, or on their way, and not marked. For the same reason.
pub(crate) const SCANS_UNMARKED_MAX: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Up,
    /// The breaker is open: the tail, from this sequence on, is to be read later.
    Waiting {
        from: u64,
    },
    /// Waiting for the tail: nothing is sent, and answers to what was sent no longer count.
    Resyncing {
        from: u64,
    },
}

#[derive(Debug)]
struct ScanBatch {
    number: u32,
    /// Rows that are not resolved.
    outstanding: usize,
    /// Events that the log had brought before it.
    logged_before: u64,
}

/// One publishing session. See the module.
#[derive(Debug)]
pub(crate) struct Publishing {
    mode: Mode,
    limits: Limits,
    ack_timeout: Duration,
    resolved_before: Lsn,
    window: Window,
    progress: Progress,
    /// Commit LSN, commit time and next ordinal of the transaction being received.
    transaction: (Lsn, i64, u32),
    last_position: Option<LastPosition>,
    /// The highest one that the stream was seen to have.
    stored_position: Option<LastPosition>,
    link: Link,
    /// What the link waits for, or last waited for.
    why: String,
    breaker: Breaker,
    max_attempts: u32,
    /// Events that are resolved although the stream does not have them.
    dead: HashSet<Uuid>,
    /// Events that earlier sessions have tried, and that the log brings again.
    tried: HashMap<Uuid, Tried>,
    /// Whether later events of a parked event's aggregate wait.
    parking_blocks: bool,
    blocks: Blocks,
    /// Subjects of which an event ran out of attempts, and none was stored since.
    given_up: HashSet<String>,
    /// When the first deferred event is due.
    next_retry: Option<Duration>,
    /// When the stream's limits were asked for last.
    limits_at: Option<Duration>,
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
    seen: Seen,
    /// No event logged after this position can be in `seen`.
    seen_before: Lsn,
    /// What is not told yet from what was never published.
    doubt: Option<Doubt>,
    /// What was not told at the session's start committed before this.
    doubted_before: Lsn,
    /// Batches that are not marked, the oldest first.
    scan: VecDeque<ScanBatch>,
    /// Events that the log has brought.
    logged: u64,
    /// Those that it brought again, and that were not looked at any more.
    skipped: u64,
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

impl Publishing {
    pub(crate) fn new(start: Start) -> Self {
        let mut state = Self {
            mode: start.mode,
            limits: start.limits,
            ack_timeout: start.ack_timeout,
            resolved_before: start.resolved_before,
            window: Window::new(),
            progress: Progress::default(),
            transaction: (Lsn::ZERO, 0, 0),
            last_position: None,
            stored_position: None,
            link: Link::Up,
            why: String::new(),
            breaker: Breaker::new(start.seed),
            max_attempts: start.max_attempts,
            dead: start.dead,
            tried: start.tried,
            parking_blocks: start.parking_blocks,
            blocks: Blocks::default(),
            given_up: HashSet::new(),
            next_retry: None,
            limits_at: None,
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
            seen: Seen::default(),
            seen_before: Lsn::ZERO,
            doubted_before: start.doubted.map_or(Lsn::ZERO, |it| it.before),
            doubt: start.doubted.map(|it| Doubt::new(it, start.tail.last_seq, start.mode)),
            scan: VecDeque::new(),
            logged: 0,
            skipped: 0,
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
        state.remember(start.tail);
        state
    }

    /// Takes in one thing that happened at `now`, measured from the session's start.
    pub(crate) fn apply(&mut self, now: Duration, input: Input) {
        self.now = now;
        match input {
            Input::Begin { commit_lsn, commit_time_micros } => {
                self.doubt_until(commit_lsn);
                self.progress.begin();
                self.transaction = (commit_lsn, commit_time_micros, 0);
                if !self.seen.is_empty() && self.scan.is_empty() && commit_lsn > self.seen_before {
                    self.seen = Seen::default();
                }
            }
            Input::Logged(outgoing) => self.logged(outgoing),
            Input::Commit { end_lsn } => {
                self.progress.commit(end_lsn, self.window.end());
                self.progress.resolved_below(self.window.first());
            }
            Input::Keepalive { wal_end } => {
                self.doubt_until(wal_end);
                self.progress.keepalive(wal_end, self.window.unresolved() == 0);
            }
            Input::Scanned { batch, rows } => self.scanned(batch, rows),
            Input::ScanMarked { batches } => _ = self.scan.drain(..batches),
            Input::Blocked(blocked) => self.block_these(blocked),
            Input::Seen(tail) => self.looked(tail),
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
            Input::Unsendable { index, refusal } => {
                self.in_flight -= 1;
                self.expected -= 1;
                self.take_out_of_batch();
                self.unsendable(index, refusal);
                self.keep_proof();
            }
            Input::Denied { subject, reason } => self.denied(&subject, reason),
            Input::LinkLost => self.link_lost(),
            Input::Tail(tail) => self.tail(tail),
            Input::TailFailed(why) => self.tail_failed(why),
            Input::Marks(marks) => self.marks_known(&marks),
            Input::Parked { index } => {
                self.counts.parked += 1;
                self.scan_resolved(self.window.get(index).map(|entry| entry.origin));
                self.resolve(index);
            }
            Input::Tick => self.tick(),
        }
    }

    /// Whether the log may bring more. While it is false its connection is not read.
    pub(crate) fn has_room(&self) -> bool {
        let logged_since = self.scan.front().map_or(0, |batch| self.logged - batch.logged_before);
        logged_since < LOGGED_WHILE_SCAN_UNMARKED_MAX as u64
            && self.window.has_room(self.limits)
            && self.has_room_to_doubt()
    }

    /// Whether the scanner may bring another batch.
    pub(crate) fn has_room_to_scan(&self) -> bool {
        self.scan.len() < SCANS_UNMARKED_MAX && self.window.has_room(self.limits)
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

    /// How many scan batches, the oldest and those behind it, are resolved whole and not marked.
    pub(crate) fn scans_resolved(&self) -> usize {
        self.scan.iter().take_while(|batch| batch.outstanding == 0).count()
    }

    /// Whether at least half of the window is free.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.unresolved() * 2 < self.limits.events
    }

    pub(crate) fn unresolved(&self) -> usize {
        self.window.unresolved()
    }

    pub(crate) fn window_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// Whether the broker is tried, and if not, how long the next attempt is away.
    pub(crate) fn breaker(&self) -> (BreakerState, Option<Duration>) {
        let wait = self.breaker.until().map(|until| until.saturating_sub(self.now));
        (self.breaker.state(), wait)
    }

    /// How often the breaker opened.
    pub(crate) fn breaker_opened(&self) -> u64 {
        self.breaker.opened()
    }

    /// How many events were resolved so far, with those that the log brought again for nothing.
    pub(crate) fn settled_of_the_log(&self) -> u64 {
        self.counts.resolved() + self.skipped
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { batches: self.batches_begun.into(), ..self.counts }
    }

    fn acked(&mut self, index: u64, seq: u64) {
        let Some(entry) = self.window.get(index).filter(|it| it.stage == Stage::Sent) else {
            return;
        };
        self.in_flight -= 1;
        self.last_answer = self.now;
        self.answered_until = self.answered_until.max(entry.sent_at);
        self.fruitless_resyncs = 0;
        self.breaker.succeeded();
        self.known_seq = self.known_seq.max(seq);
        // The broker knew the id: the message was stored before this one was sent.
        let found = seq <= entry.sent_after;
        self.counts.duplicates += u64::from(found);
        self.settle(index, Some(seq), found);
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
            Refusal::ExpectedLastSequence => {
                self.resync(self.pause(Duration::from_millis(2)), "the stream moved".into());
            }
            Refusal::Outage(why) => self.outage(why),
            Refusal::Configuration(reason) => self.requests.push_back(Request::Stop(reason)),
            Refusal::NoBatches(why) => {
                self.batches = false;
                self.resync(Duration::ZERO, why);
            }
            Refusal::Message(reason) | Refusal::OverLimit(reason) | Refusal::Unwelcome(reason) => {
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

    fn settle(&mut self, index: u64, seq: Option<u64>, found: bool) {
        let Some(entry) = self.window.get(index) else { return };
        let origin = entry.origin;
        if !self.given_up.is_empty()
            && let Ok(subject) = &entry.outgoing.subject
        {
            self.given_up.remove(subject);
        }
        if entry.outgoing.requeued {
            // The log may bring the event's first row again, from before it was parked.
            self.dead.insert(entry.outgoing.event.id);
        }
        self.settled.push(Settled {
            id: entry.outgoing.event.id,
            seq,
            origin,
            commit_lsn: entry.commit_lsn,
            commit_time_micros: entry.commit_time_micros,
            acked: !found,
        });
        if found {
            self.counts.found += 1;
        } else {
            self.counts.acked += 1;
        }
        self.scan_resolved(Some(origin));
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

    fn scan_resolved(&mut self, origin: Option<Origin>) {
        if let Some(Origin::Scan(number)) = origin
            && let Some(batch) = self.scan.iter_mut().find(|batch| batch.number == number)
        {
            batch.outstanding -= 1;
        }
    }

    fn tick(&mut self) {
        self.read_tail(Duration::ZERO);
        self.retry();
        if !self.has_room() {
            self.ask_for_marks();
        }
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
            self.outage("no answer in time".into());
        }
    }
}

#[cfg(test)]
mod tests;
