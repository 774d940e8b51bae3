//! One publishing session: from what the log, scans and the broker say to what is to be sent, marked
//! and confirmed.

mod acks;
mod batch;
mod copies;
mod copy_rests;
mod counting;
mod intake;
mod link;
mod log;
mod parking;
mod publishing_holds;
mod refusals;
mod resync;
mod retry;
mod sending;
mod stream_end;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use outbox::wire::trace_id;
use pgoutput::Lsn;
use servers::Latency;
use uuid::Uuid;

use self::batch::Batching;
use self::copies::Copies;
use self::counting::{Counted, PlaceWritten};
use self::link::Broker;
use self::log::Log;
use self::parking::Blocks;
use self::refusals::Refusals;
use self::retry::Retries;
use self::sending::Sending;
use self::stream_end::StreamEnd;
use super::input::{BrokerInput, LogInput, Refusal};
use super::messages::{Counts, Mode, Resolved, Settings, Start};
use super::notice::About;
use super::progress::Progress;
use super::request::Request;
use super::tail_messages::Seen;
use super::window::{Entry, Origin, Stage, Tried, Window};
use crate::status::{BreakerState, DeadLetterReason};

/// While rows of a scan are published but not marked, the log may bring at most this many events,
/// so that after a crash a bounded read of the tail finds those rows.
pub(crate) const LOGGED_WHILE_SCAN_UNMARKED_MAX: usize = 8_192;

/// Scan batches that are published, or on their way, and not marked. For the same reason.
pub(crate) const SCANS_UNMARKED_MAX: usize = 8;

#[derive(Debug, Clone)]
struct ScanBatch {
    number: u32,
    /// Rows that are not resolved.
    outstanding: usize,
    /// Events that the log had brought before it.
    logged_before: u64,
}

/// What is to be done outside.
#[derive(Debug, Default, Clone)]
struct Output {
    requests: VecDeque<Request>,
    /// What became resolved and was not taken.
    resolved: Vec<Resolved>,
}

/// What is told of a session.
#[derive(Debug, Default, Clone)]
struct Figures {
    counts: Counts,
    /// From sending a message to the answer that it is stored.
    answer_times: Latency,
}

/// One publishing session. See the module.
#[derive(Debug, Clone)]
pub(crate) struct Publishing {
    mode: Mode,
    settings: Settings,
    now: Duration,
    window: Window,
    progress: Progress,
    log: Log,
    link: Broker,
    stream: StreamEnd,
    sending: Sending,
    batching: Batching,
    /// Events that are resolved although the stream does not have them.
    dead: HashSet<Uuid>,
    /// Events that earlier sessions have tried, and that the log brings again.
    tried: HashMap<Uuid, Tried>,
    /// What the stream had when the session began, and has got from others since.
    seen: Seen,
    counted: Counted,
    written: PlaceWritten,
    retries: Retries,
    refusals: Refusals,
    blocks: Blocks,
    /// Batches of scans that are not marked, the oldest first.
    scans: VecDeque<ScanBatch>,
    copies: Copies,
    output: Output,
    figures: Figures,
}

impl Publishing {
    pub(crate) fn new(start: Start) -> Self {
        let (known_seq, mode) = (start.tail.last_seq, start.mode);
        let mut state = Self {
            mode,
            settings: start.settings,
            now: Duration::ZERO,
            window: Window::new(),
            progress: Progress::default(),
            log: Log::default(),
            link: Broker::new(start.seed),
            stream: StreamEnd::new(known_seq),
            sending: Sending::default(),
            batching: Batching::default(),
            dead: start.dead,
            tried: start.tried,
            seen: Seen::default(),
            counted: Counted::default(),
            written: PlaceWritten::default(),
            retries: Retries::default(),
            refusals: Refusals::default(),
            blocks: Blocks::default(),
            scans: VecDeque::new(),
            copies: Copies::default(),
            output: Output::default(),
            figures: Figures::default(),
        };
        if state.mode == Mode::Keyed {
            state.window.chain_by_key();
        }
        state.begin_counting(&start.written, &start.tail);
        state.remember(start.tail);
        state
    }

    /// Takes in what the log brought at `now`, measured from the session's start.
    pub(crate) fn read(&mut self, now: Duration, input: LogInput) {
        self.now = now;
        match input {
            LogInput::Begin { commit_lsn, commit_time_micros } => {
                self.end_counting_if_over(commit_lsn);
                self.progress.begin();
                self.log.begin(commit_lsn, commit_time_micros);
                if self.scans.is_empty() {
                    self.seen.forget_if_passed(commit_lsn);
                }
            }
            LogInput::Logged(outgoing) => self.logged(outgoing, Origin::Log),
            LogInput::Emitted(outgoing) => self.logged(outgoing, Origin::Emitted),
            LogInput::Ignored(why) => self.ignore(why),
            LogInput::Commit { end_lsn } => {
                self.progress.commit(end_lsn, self.window.end());
                self.progress.resolved_below(self.window.first());
            }
            LogInput::Keepalive { wal_end } => {
                self.end_counting_if_over(wal_end);
                self.progress.keepalive(wal_end, self.is_quiet());
            }
        }
    }

    /// Takes in what the broker answered, or what became of the connection to it.
    pub(crate) fn heard(&mut self, now: Duration, input: BrokerInput) {
        self.now = now;
        match input {
            BrokerInput::Acked { epoch, index, seq, is_duplicate } if self.link.counts(epoch) => {
                self.acked(index, seq, is_duplicate);
            }
            BrokerInput::Refused { epoch, index, refusal } if self.link.counts(epoch) => {
                self.refused(index, refusal);
            }
            BrokerInput::LookedUp { epoch, index, seq, is_there } if self.link.counts(epoch) => {
                self.refusals.sought(index);
                self.looked_up(index, seq, is_there);
            }
            // Of a period that is over: the stream may have lost it since.
            BrokerInput::Acked { .. }
            | BrokerInput::LookedUp { .. }
            | BrokerInput::Refused { .. } => {}
            BrokerInput::Taking { batch } => self.is_taken(batch),
            BrokerInput::Ended { batch, count, seq } => self.ended(batch, count, seq),
            BrokerInput::Broken { batch, number, refusal } => self.broken(batch, number, refusal),
            BrokerInput::Unsendable { index, refusal } => {
                self.stream.unsent();
                self.take_out_of_batch();
                self.unsendable(index, refusal);
            }
            BrokerInput::Stranger(why) => self.stranger(why),
            BrokerInput::Denied { subject, reason } => self.denied(&subject, reason),
            BrokerInput::LinkLost => self.link_lost(),
            BrokerInput::Tail(tail) => self.tail(tail),
            BrokerInput::TailFailed(why) => self.tail_failed(why),
        }
    }

    /// The rows of the oldest `batches` are marked, durably.
    pub(crate) fn scan_marked(&mut self, now: Duration, batches: usize) {
        self.now = now;
        _ = self.scans.drain(..batches);
    }

    /// The event is in the dead-letter table, durably.
    pub(crate) fn parked(&mut self, now: Duration, index: u64) {
        self.now = now;
        let entry = self.window.get(index).map(|it| (it.origin, it.parked_for));
        self.scan_resolved(entry.map(|(origin, _)| origin));
        let why = entry.map_or(DeadLetterReason::Unfit, |(_, why)| why);
        self.figures.counts.parked.count(why);
        self.resolve(index);
    }

    /// Whether the log may bring more. While it is false its connection is not read.
    pub(crate) fn has_room(&self) -> bool {
        let logged_since =
            self.scans.front().map_or(0, |batch| self.log.logged() - batch.logged_before);
        logged_since < LOGGED_WHILE_SCAN_UNMARKED_MAX as u64
            && self.window.has_room(self.settings.limits)
    }

    /// Whether the scanner may bring another batch.
    pub(crate) fn has_room_to_scan(&self) -> bool {
        self.scans.len() < SCANS_UNMARKED_MAX && self.window.has_room(self.settings.limits)
    }

    /// The next thing to do that is not a send.
    pub(crate) fn next_request(&mut self) -> Option<Request> {
        self.output.requests.pop_front()
    }

    /// What became resolved since the last call.
    pub(crate) fn take_resolved(&mut self) -> Vec<Resolved> {
        std::mem::take(&mut self.output.resolved)
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
        self.scans.iter().take_while(|batch| batch.outstanding == 0).count()
    }

    /// Whether at least half of the window is free.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.unresolved() * 2 < self.settings.limits.events
    }

    pub(crate) fn unresolved(&self) -> usize {
        self.window.unresolved()
    }

    pub(crate) fn window_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// Whether the broker is tried, and if not, how long the next attempt is away.
    pub(crate) fn breaker(&self) -> (BreakerState, Option<Duration>) {
        let wait = self.link.breaker().until().map(|until| until.saturating_sub(self.now));
        (self.link.breaker().state(), wait)
    }

    /// How often the breaker opened.
    pub(crate) fn breaker_opened(&self) -> u64 {
        self.link.breaker().opened()
    }

    /// How many events were resolved so far, with those that the log brought again for nothing.
    pub(crate) fn resolved_of_the_log(&self) -> u64 {
        self.figures.counts.resolved() + self.log.skipped()
    }

    pub(crate) fn counts(&self) -> Counts {
        let strangers = self.refusals.strangers();
        Counts { batches: self.batching.begun().into(), strangers, ..self.figures.counts }
    }

    /// How long the broker took for what it stored since the session began.
    pub(crate) fn answer_times(&self) -> &Latency {
        &self.figures.answer_times
    }

    /// What a notice says of the event that it is about.
    pub(crate) fn about(&self, index: u64, event_id: Uuid) -> About {
        let entry = self.window.get(index);
        let lsn = entry.filter(|it| it.origin.is_logged()).map(|it| it.commit_lsn);
        let trace_id = entry.and_then(|it| trace_id(&it.outgoing.event));
        About { event_id, lsn, trace_id }
    }

    /// When the oldest event that came from the log and is not resolved was committed.
    pub(crate) fn oldest_commit_micros(&self) -> Option<i64> {
        let mut unresolved = self.window.iter_unresolved().map(|(_, entry)| entry);
        unresolved.find(|it| it.origin.is_logged()).map(|it| it.commit_time_micros)
    }

    fn resolve(&mut self, index: u64) {
        self.replay_resolved(index);
        if let Some(next) = self.window.resolve(index)
            && self.mode == Mode::Keyed
        {
            self.sending.ready(next);
        }
        self.progress.resolved_below(self.window.first());
    }

    fn scan_resolved(&mut self, origin: Option<Origin>) {
        if let Some(Origin::Scan(number)) = origin
            && let Some(batch) = self.scans.iter_mut().find(|batch| batch.number == number)
        {
            batch.outstanding -= 1;
        }
    }

    /// Takes in that time has passed.
    pub(crate) fn tick(&mut self, now: Duration) {
        self.now = now;
        self.read_tail(Duration::ZERO);
        self.retry();
        self.look_at_refusals();
        if !self.link.is_up() || self.stream.in_flight() == 0 {
            return;
        }
        // One answer may be lost among many. Then the message behind it was answered.
        let oldest =
            self.window.iter_unresolved().map(|(_, it)| it).find(|it| it.stage == Stage::Sent);
        let sent_at = oldest.map(|it| it.sent.at);
        if self.now.saturating_sub(self.link.silent_since(sent_at)) >= self.settings.ack_timeout {
            self.outage("no answer in time".into());
        }
    }
}

#[cfg(test)]
mod tests;
