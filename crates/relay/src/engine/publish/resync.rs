//! After any doubt: what the stream has is read from the stream.

use std::collections::HashMap;
use std::time::Duration;

use pgoutput::Lsn;
use servers::Backoff;
use uuid::Uuid;

use super::Publishing;
use super::link::{Link, Reading};
use super::stream_end::StreamEnd;
use crate::engine::effect::End;
use crate::engine::messages::Mode;
use crate::engine::notice::Notice;
use crate::engine::request::Request;
use crate::engine::tail_messages::{Seen, Tail};
use crate::engine::window::{Entry, Stage};

/// Resyncs with foreign messages in the stream after which fenced mode is left, where messages have
/// ids.
const FOREIGN_RESYNCS_MAX: u32 = 16;

/// The longest pause before the tail is read again.
const RESYNC_DELAY_MAX: Duration = Duration::from_secs(5);

impl Publishing {
    /// Doubles with every resync that brought nothing; the first is free.
    pub(super) fn pause(&self, unit: Duration) -> Duration {
        Backoff::new(2 * unit, RESYNC_DELAY_MAX).after(self.link.fruitless_resyncs())
    }

    /// Forgets what was sent and asks what the stream has (go-back-N).
    pub(super) fn resync(&mut self, delay: Duration, why: String) {
        if !self.link.is_up() {
            return;
        }
        let unresolved = self.window.iter_unresolved().map(|(_, entry)| entry);
        let sought = unresolved.filter(|it| it.stage == Stage::Sent || it.sent.is_doubted);
        let behind = sought.map(|entry| entry.sent.behind()).min();
        let from = behind.unwrap_or(self.stream.known_seq()) + 1;
        self.batching.resync();
        self.link.resync(from, why);
        self.figures.counts.resyncs += 1;
        self.read_tail(delay);
    }

    /// Nothing is wrong with what was sent, and yet the broker does not store it.
    pub(super) fn outage(&mut self, why: String) {
        if self.link.is_up() {
            self.figures.counts.outages += 1;
            self.link.failed(self.now);
            self.resync(Duration::ZERO, why);
        }
    }

    /// The tail could not be read.
    pub(super) fn tail_failed(&mut self, why: String) {
        if let Link::Resyncing { from } = self.link.state() {
            self.figures.counts.outages += 1;
            self.link.tail_failed(from, self.now, why);
            self.read_tail(Duration::ZERO);
        }
    }

    /// The connection was replaced. If it is what was waited for, there is nothing to wait for.
    pub(super) fn link_lost(&mut self) {
        self.copies.pacing.reconnected();
        match self.link.state() {
            Link::Up => self.resync(Duration::ZERO, "the connection was lost".into()),
            Link::Waiting { .. } => {
                self.link.attempt();
                self.read_tail(Duration::ZERO);
            }
            Link::Resyncing { .. } => self.link.reads_too_early(),
        }
    }

    /// Asks for the tail, unless the breaker says not yet. Then a tick does.
    pub(super) fn read_tail(&mut self, delay: Duration) {
        let Some((from, why)) = self.link.ask_for_tail(self.now) else { return };
        self.retries.limits_asked(self.now);
        self.output.requests.push_back(Request::ReadTail { from, delay, why });
    }

    pub(super) fn tail(&mut self, tail: Tail) {
        if tail.is_other {
            return self.output.requests.push_back(Request::End(End::StreamIsShorter));
        }
        let known = self.stream.known_seq().max(tail.known_seq);
        match self.link.judge(tail.last_seq, known) {
            Reading::Counts => {}
            Reading::TooEarly => return self.read_tail(Duration::ZERO),
            Reading::Shorter => {
                return self.output.requests.push_back(Request::End(End::StreamIsShorter));
            }
        }
        let stored: HashMap<Uuid, u64> = tail.stored.iter().map(|it| (it.id, it.seq)).collect();
        self.void_unless_as_sent(&tail, &stored);
        let from = match self.link.state() {
            Link::Resyncing { from } => from,
            Link::Up | Link::Waiting { .. } => u64::MAX,
        };
        self.window.go_back(from, tail.last_seq);
        self.batching.tail_read();
        self.link.up();
        self.stream = StreamEnd::new(tail.last_seq);
        self.sending.begin_at(self.window.first());
        let (foreign, refuses_batches) = (tail.foreign, tail.refuses_batches);
        let found = self.found(|it| it.stage != Stage::Parking, |id| stored.get(id).copied());
        if !found.is_empty() {
            self.link.works();
        }
        for (index, seq) in found {
            self.note_stored(index, Some(seq), true);
        }
        if self.settings.resolved_before == Lsn(u64::MAX) {
            // Without a log nothing else ends what is remembered, and each reading is far enough.
            self.seen = Seen::default();
        }
        // The rest may still come: a predecessor's last messages, stored behind the first reading.
        self.remember(tail);
        self.count_foreign(foreign);
        if self.mode == Mode::Keyed {
            self.sending.begin_with(self.window.chain_by_key());
        }
        if self.window.unresolved() == 0 {
            self.link.trusted(); // there is nothing to try it with
        }
        self.judge_refusals(refuses_batches);
    }

    /// Of what was sent the stream has a prefix. If it has given out other sequences, somebody else
    /// wrote to it, or a predecessor's messages came late, or it has lost some of that.
    fn void_unless_as_sent(&mut self, tail: &Tail, stored: &HashMap<Uuid, u64>) {
        let is_as_sent = |entry: &Entry| {
            let seq = stored.get(&entry.outgoing.event.id);
            entry.stage == Stage::Sent && seq.is_some_and(|it| *it == entry.sent.expected + 1)
        };
        let as_sent = self.window.iter_unresolved().filter(|(_, it)| is_as_sent(it)).count() as u64;
        let given_out = tail.last_seq.saturating_sub(self.stream.known_seq());
        if tail.foreign > 0 || as_sent < given_out {
            self.void_place(tail.last_seq + 1);
        }
    }

    /// Takes in the stream's end as it is while the session goes on, read back far enough to hold what
    /// the scanner may bring again: before its first batch.
    pub(crate) fn looked(&mut self, now: Duration, tail: Tail) {
        self.now = now;
        if tail.last_foreign > self.stream.known_seq() {
            self.link.saw_foreign(now);
        }
        // A relay that had the slot before may have stored messages since the session began.
        // What was sent since the tail was read counts as well.
        if self.stream.in_flight() == 0 && !self.is_batch_open() {
            self.stream.raise_expected(tail.last_seq);
        }
        self.stream.reached(tail.last_seq);
        self.remember(tail);
        // With the expected sequence raised nothing but this keeps from storing them again. What was sent
        // is for the broker to answer.
        let found = self.found(|it| it.stage == Stage::Waiting, |id| self.seen.get(id));
        for (index, seq) in found {
            self.note_stored(index, Some(seq), true);
        }
    }

    /// Entries that the stream has, with their sequences there.
    fn found(
        &self,
        may_be: fn(&Entry) -> bool,
        find: impl Fn(&Uuid) -> Option<u64>,
    ) -> Vec<(u64, u64)> {
        let entries = self.window.iter_unresolved().filter(|(_, it)| may_be(it));
        entries.filter_map(|(at, it)| Some((at, find(&it.outgoing.event.id)?))).collect()
    }

    /// No message of the stream before `seq` is looked for any more.
    pub(crate) fn forget_before(&mut self, seq: u64) {
        self.seen.forget_before(seq);
    }

    fn count_foreign(&mut self, foreign: usize) {
        if foreign == 0 || self.mode == Mode::Keyed {
            return;
        }
        self.figures.counts.foreign += foreign as u64;
        let resyncs = self.link.was_disturbed(self.now);
        if !self.settings.stays_fenced && resyncs > FOREIGN_RESYNCS_MAX {
            let why = "others keep writing to the stream: give the relay one of its own".into();
            self.output.requests.push_back(Request::End(End::LeaveFence(why)));
        } else if resyncs == FOREIGN_RESYNCS_MAX + 1 {
            self.output.requests.push_back(Request::Tell(Notice::StaysFenced));
        }
    }

    pub(super) fn remember(&mut self, tail: Tail) {
        if let Some(position) = tail.position {
            self.log.stored(position, self.settings.log_end);
        }
        // What a scan published says nothing of its commit; the log may bring it once more.
        let (read, end) = (tail.position.map(|it| it.commit_lsn), self.settings.log_end);
        self.seen.add(tail.stored, read.map_or(end, |it| it.max(end)));
    }
}
