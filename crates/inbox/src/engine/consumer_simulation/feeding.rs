//! What feeds a session: the source, the redrive, and what was left in the stream.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_nats::Subject;
use rand::RngExt;

use super::broker_model::{Arrival, reply_to, seq_of};
use super::{AGGREGATES, Fate, OfSession, World, id_of, message};
use crate::engine::{Delivered, Due, Load, Loaded, Path, Task};
use crate::message::Whence;

/// How long an event is due before it counts as nobody's.
const ORPHANED_AFTER: Duration = Duration::from_secs(20);

/// The acknowledgement floor is looked behind when it has not moved for so long.
const STUCK_AFTER: Duration = Duration::from_secs(20);

impl World {
    pub(super) fn source(&mut self, worker: usize) {
        let Some(session) = &mut self.workers[worker].session else { return };
        if session.is_closed && session.feed.is_empty() && self.random.random_bool(0.3) {
            return session.engine.feed_ended(self.now);
        }
        if std::mem::take(&mut session.is_behind) {
            self.read_outstanding(worker);
        }
        self.pull(worker);
        self.of_session_after(worker, 10, 200, OfSession::Source);
    }

    /// Before anything new: what was delivered, as far as it is not acknowledged.
    fn read_outstanding(&mut self, worker: usize) {
        let again = self.broker.outstanding();
        let again = again.into_iter().map(|seq| self.delivery(seq, Path::Careful));
        let again: Vec<Delivered> = again.collect();
        let Some(session) = &mut self.workers[worker].session else { return };
        session.bringing.extend(again);
        session.consumer_seq = self.broker.consumer_seq;
    }

    fn delivery(&self, seq: u64, path: Path) -> Delivered {
        let message = message(seq, Whence::Stream, self.mix.large);
        Delivered { message, reply: Some(reply_to(seq)), path }
    }

    fn pull(&mut self, worker: usize) {
        let mut pulled = 0;
        loop {
            let Some(session) = &mut self.workers[worker].session else { return };
            // The last request's answer comes after the end of the room.
            let room = session.room.max(usize::from(session.is_closed && pulled == 0));
            if session.feed.len() >= room {
                return;
            }
            if let Some(delivered) = session.bringing.pop_front() {
                session.feed.push_back(delivered);
                continue;
            }
            pulled += 1;
            let Some(arrival) = self.broker.deliver(self.now) else { break };
            if self.chance(self.mix.lost) {
                continue;
            }
            self.arrive(worker, arrival);
        }
        let (floor, now) = (self.broker.floor(), self.now);
        let Some(session) = &mut self.workers[worker].session else { return };
        if session.floor.0 != floor || self.broker.unacknowledged() == 0 {
            session.floor = (floor, now);
        }
        let misses = pulled == 1 && self.broker.consumer_seq > session.consumer_seq;
        let is_stuck = session.floor.1 + STUCK_AFTER <= now;
        if misses || is_stuck {
            (session.is_behind, session.floor.1) = (true, now);
        }
    }

    fn arrive(&mut self, worker: usize, arrival: Arrival) {
        let Arrival { seq, consumer_seq, is_again } = arrival;
        let path = if is_again { Path::Careful } else { Path::Fast };
        let delivered = self.delivery(seq, path);
        let session = self.workers[worker].session.as_ref();
        if session.is_some_and(|it| consumer_seq > it.consumer_seq + 1) {
            self.read_outstanding(worker);
        }
        let Some(session) = &mut self.workers[worker].session else { return };
        session.consumer_seq = session.consumer_seq.max(consumer_seq);
        session.bringing.push_back(delivered);
    }

    /// As `worker/redrive.rs`.
    pub(super) fn redrive(&mut self, worker: usize) {
        let (now, fate) = (self.now, self.fate(worker));
        let Some(session) = &mut self.workers[worker].session else { return };
        if session.room > 0 {
            match session.redrive.next(now) {
                Task::Wait { .. } => {}
                _ if fate != Fate::Done => session.redrive.failed(now),
                Task::Requeued { after_seq } => self.bring_letters(worker, after_seq),
                Task::Adopt { .. } => {
                    for (id, seq) in self.records.orphans(now, ORPHANED_AFTER) {
                        let delivered = self.delivery(seq, Path::Careful);
                        assert_eq!(id, id_of(seq));
                        let Some(session) = &mut self.workers[worker].session else { return };
                        session.redrive.adopted(delivered.message.key);
                        session.feed.push_back(delivered);
                    }
                }
            }
        }
        self.of_session_after(worker, 100, 600, OfSession::Redrive);
    }

    fn bring_letters(&mut self, worker: usize, after_seq: i64) {
        let due = self.records.due_letters(self.now);
        let Some(session) = &mut self.workers[worker].session else { return };
        let mut turns = HashMap::new();
        let mut due: Vec<(u32, bool, u64)> = due
            .into_iter()
            .map(|seq| {
                let turn = turns.entry(seq % AGGREGATES).or_insert(0);
                *turn += 1;
                (*turn, seq.cast_signed() <= after_seq, seq)
            })
            .collect();
        due.sort_unstable();
        due.truncate(session.room);
        let is_due =
            |it: &(u32, bool, u64)| Due { stream_seq: it.2.cast_signed(), is_first: it.0 == 1 };
        session.redrive.found(&due.iter().map(is_due).collect::<Vec<_>>(), session.room);
        for (.., seq) in due {
            let message = message(seq, Whence::Letter, self.mix.large);
            session.feed.push_back(Delivered { message, reply: None, path: Path::Careful });
        }
    }

    pub(super) fn loaded(&mut self, worker: usize, load: Load, count: usize) {
        let Load { lane, seqs } = load;
        let read = |seq| {
            let message = message(seq, Whence::Stream, self.mix.large);
            (seq, Some((message, reply_to(seq))))
        };
        let messages = seqs.into_iter().take(count).map(read).collect();
        let Some(session) = &mut self.workers[worker].session else { return };
        if !session.engine.is_stopping() {
            session.engine.loaded(self.now, Loaded { lane, messages });
        }
    }

    /// The engine names them in any order: a seed has to lose the same ones each time.
    pub(super) fn deliver_again_at(&mut self, mut replies: Vec<Subject>, at: Instant) {
        replies.sort_unstable_by_key(seq_of);
        for reply in replies {
            if !self.chance(self.mix.lost) {
                self.broker.deliver_again_at(&reply, at);
            }
        }
    }
}
