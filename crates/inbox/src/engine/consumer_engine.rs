//! The decisions of an active consumer: what is taken in, started, acknowledged and given back, what
//! is left in the stream, and when it ends.
//!
//! ```text
//!   source, redrive ──▶ delivered() ──▶ ┌────────┐
//!   jobs            ──▶ reported()  ──▶ │ Engine │ ──▶ next_effect()
//!   claims          ──▶ claimed()   ──▶ │        │
//!   role, servers   ──▶ look()      ──▶ │        │ ──▶ status()
//!   time            ──▶ turn()      ──▶ └────────┘ ──▶ next_due()
//! ```
//!
//! A stop goes through these phases. The role lost to another worker is a stop, also if it is back:
//! what is held may be out of date. So is a partition that is to be given to another worker: its jobs
//! are waited for, however long they take.
//!
//! ```text
//!             stop            25 s              jobs ended
//!   Running ───────▶ Finishing ───▶ Abandoning ────────────▶ Draining ──▶ Ended
//!                        │               │ 3 s                 feed ended   ▲
//!                        │               └──────────────────────────────────┤
//!                        └─ jobs ended ──▶ Draining                         │
//! ```

mod consumer_holds;
mod consumer_places;
mod consumer_status;
mod groups;
mod leaving;
mod stopping;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::Subject;
use jiff::Timestamp;
use uuid::Uuid;

use self::groups::Groups;
use self::leaving::Leaving;
use super::backoff::Backoff;
use super::breaker::{AtFault, Breaker, Trouble};
use super::capacity::Capacity;
use super::consumer_effect::{Effect, Notice, Pause};
use super::hold_limits::HoldLimits;
use super::lanes::{Delivered, Ending, Lanes, Loaded, Offered, Path};
use super::rate::{Bucket, Rate};
use super::report::{Outcome, Report};
use super::role_lease::{Role, Term};
use crate::Summary;
use crate::message::{MessageId, Whence};

/// How long a stop waits for handlers.
const STOP_DEADLINE: Duration = Duration::from_secs(25);

/// How long it waits for their claims to be given back, when it has ended them.
const ABANDON_DEADLINE: Duration = Duration::from_secs(3);

/// The shortest time between two words to the broker that an event is in progress.
const PROGRESS_MIN: Duration = Duration::from_millis(50);

/// Jobs whose events share a place begin with few events each, so that they run side by side; when
/// there are more than that for everybody, they get more.
const SHARE_MIN: usize = 8;

/// What a session of a consumer starts with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerStart {
    /// The term of the role that it begins under.
    pub(crate) term: Term,
    /// Whether the events of a job share a transaction, and so a place among the lanes.
    pub(crate) shares: bool,
    /// Jobs at a time, or events where they do not share.
    pub(crate) lanes: usize,
    /// Events in a job, at most.
    pub(crate) batch: usize,
    /// What it may hold.
    pub(crate) limits: HoldLimits,
    /// How many events the broker lets be without an acknowledgement, if that is limited.
    pub(crate) unacked_max: Option<usize>,
    /// After how long the broker delivers a message again.
    pub(crate) ack_wait: Duration,
    pub(crate) backoff: Backoff,
    /// How many events are begun in a time, if that is limited.
    pub(crate) rate: Option<Rate>,
    /// Of the sessions before.
    pub(crate) counts: Summary,
}

/// What the consumer depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub(crate) role: Role,
    /// Why the database cannot be reached, while it cannot.
    pub(crate) database: Option<String>,
    /// Why nothing can be taken from the stream, while that is so.
    pub(crate) broker: Option<String>,
    /// Who wants that no event is begun, if somebody does.
    pub(crate) operator: Option<String>,
    /// How many of its lanes the session may have at work, where others share them.
    pub(crate) places: Option<usize>,
}

/// How far the session is. See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Handlers are waited for.
    Finishing {
        until: Instant,
    },
    /// They were ended. Their claims are being given back.
    Abandoning {
        until: Instant,
    },
    /// All jobs have ended, and the source has not.
    Draining,
    Ended,
}

/// All that is decided in one session of a consumer. See the module.
#[derive(Debug)]
pub(crate) struct ConsumerEngine {
    start: ConsumerStart,
    surroundings: Surroundings,
    phase: Phase,
    is_told_to_stop: bool,
    lanes: Lanes,
    capacity: Capacity,
    leaving: Leaving,
    breaker: Breaker,
    /// What is left of the rate.
    bucket: Bucket,
    /// When the next probe is due, for people.
    next_probe_at: Option<Timestamp>,
    /// The most events in a job, as of now.
    batch: usize,
    /// Jobs that have not ended.
    jobs: usize,
    /// What is claimed, where events do not share.
    groups: Groups,
    /// Deliveries that are asked for.
    requested: usize,
    /// More deliveries may come.
    is_fed: bool,
    in_progress_at: Instant,
    /// The last message of the stream that was delivered.
    newest: u64,
    counts: Summary,
    effects: VecDeque<Effect>,
}

impl ConsumerEngine {
    pub(crate) fn new(start: ConsumerStart, now: Instant) -> Self {
        Self {
            start,
            surroundings: Surroundings::default(),
            phase: Phase::Running,
            is_told_to_stop: false,
            lanes: Lanes::default(),
            capacity: Capacity::new(start.limits, start.unacked_max),
            leaving: Leaving::default(),
            breaker: Breaker::new(start.backoff),
            bucket: Bucket::new(start.rate, now),
            next_probe_at: None,
            batch: start.batch,
            jobs: 0,
            groups: Groups::new(start.lanes),
            requested: 0,
            is_fed: true,
            in_progress_at: now,
            newest: 0,
            counts: start.counts,
            effects: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Takes in how things are, before a turn.
    pub(crate) fn look(&mut self, surroundings: Surroundings) {
        match (&self.surroundings.operator, &surroundings.operator) {
            (None, Some(_)) => self.tell(Notice::Held),
            (Some(_), None) => self.tell(Notice::Released),
            _ => {}
        }
        self.surroundings = surroundings;
        self.groups.set_places(self.places());
    }

    /// Somebody says that the handler works again.
    pub(crate) fn close_breaker(&mut self) {
        if self.breaker.pause().is_some() {
            self.tell(Notice::BreakerReset);
        }
        self.breaker.reset();
    }

    /// What the handler needs has changed: it may work now.
    pub(crate) fn probe(&mut self, now: Instant) {
        self.breaker.probe(now);
        self.next_probe_at = None;
    }

    /// Decides what follows from everything that was taken in, and from the time.
    pub(crate) fn turn(&mut self, now: Instant) {
        if self.phase == Phase::Running && self.surroundings.role.is_lost(self.start.term) {
            if self.surroundings.role != Role::Leaving {
                self.tell(Notice::TookOver);
            }
            self.wind_up(now);
        }
        match self.phase {
            Phase::Running => {
                self.start(now);
                self.hand_over(now);
                self.leave(now);
                let is_open = self.paused_by(now).is_none();
                self.request(if is_open { self.capacity.room(&self.lanes) } else { 0 });
            }
            Phase::Finishing { until } if until <= now => {
                self.tell(Notice::EndingHandlers { busy: self.lanes.busy() });
                self.effects.push_back(Effect::AbandonAll);
                self.phase = Phase::Abandoning { until: now + ABANDON_DEADLINE };
                self.give_back(now);
            }
            Phase::Abandoning { until } if until <= now && !self.is_patient() => {
                self.tell(Notice::LeftHandlers { busy: self.lanes.busy() });
                self.end(now);
            }
            Phase::Finishing { .. } | Phase::Abandoning { .. } | Phase::Draining => {
                self.give_back(now);
            }
            Phase::Ended => {}
        }
        if self.in_progress_at <= now && self.phase != Phase::Ended {
            self.in_progress_at = now + (self.start.ack_wait / 3).max(PROGRESS_MIN);
            let replies: Vec<Subject> = self.lanes.replies().cloned().collect();
            self.push(replies, Effect::InProgress);
        }
        self.assert_holds();
    }

    /// When there is something to decide without anything taken in.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let (lanes_at, phase_at) = match self.phase {
            Phase::Running => {
                let is_ready = |_: &_| self.lanes.ready().next().is_some();
                let next_token = self.bucket.next_token(now).filter(is_ready);
                let others = [self.breaker.next_probe(now), self.next_trim(now), next_token];
                (self.lanes.next_due(), others.into_iter().flatten().min())
            }
            Phase::Abandoning { .. } if self.is_patient() => (None, None),
            Phase::Finishing { until } | Phase::Abandoning { until } => (None, Some(until)),
            Phase::Draining => (None, None),
            Phase::Ended => return None,
        };
        [lanes_at, phase_at, Some(self.in_progress_at)].into_iter().flatten().min()
    }

    /// Takes in a delivery.
    pub(crate) fn delivered(&mut self, now: Instant, mut delivered: Delivered) {
        // Only in a transaction can several of one aggregate be under way, in order.
        if !self.start.shares && delivered.path == Path::Fast {
            delivered.path = Path::Careful;
        }
        if delivered.message.whence == Whence::Stream {
            self.newest = self.newest.max(delivered.message.stream_seq);
        }
        let later = delivered.reply.clone();
        if self.lanes.offer(delivered, now) == Offered::Left {
            self.leaving.replies.extend(later);
        }
    }

    /// Somebody decided about an event: if it waits for another attempt, its turn has come.
    pub(crate) fn hasten(&mut self, event: Uuid, now: Instant) {
        self.lanes.hasten(event, now);
    }

    /// Whether there is room for another delivery before the next turn.
    pub(crate) fn has_room(&self) -> bool {
        self.capacity.room(&self.lanes) > 0
    }

    /// Nothing more is delivered.
    pub(crate) fn feed_ended(&mut self, now: Instant) {
        self.is_fed = false;
        match self.phase {
            Phase::Running => self.wind_up(now),
            Phase::Draining => self.end(now),
            Phase::Finishing { .. } | Phase::Abandoning { .. } | Phase::Ended => {}
        }
    }

    /// Whether more may be delivered.
    pub(crate) fn is_fed(&self) -> bool {
        self.is_fed
    }

    /// Takes in what was read of what had been left in the stream.
    pub(crate) fn loaded(&mut self, now: Instant, loaded: Loaded) {
        self.leaving.loading -= 1;
        for (seq, found) in loaded.messages {
            self.lanes.loaded(loaded.lane, seq, found, now);
        }
        self.lanes.load_ended(loaded.lane, now);
    }

    /// Takes in what became of an event. `time` is `now` for people; `chance` is in `0..1`.
    pub(crate) fn reported(&mut self, now: Instant, time: Timestamp, report: Report, chance: f64) {
        let Report { id, ending, outcome, answered } = report;
        self.count(&outcome);
        let reply = self.lanes.ended(id, ending, now);
        match outcome {
            Outcome::Trouble(trouble) => self.failed(id, trouble, (now, time), chance),
            Outcome::Expired(trouble) => {
                self.failed(id, trouble, (now, time), chance);
                self.breaker.given_up(id);
            }
            Outcome::Processed
            | Outcome::Skipped
            | Outcome::Retried
            | Outcome::Dead
            | Outcome::Undone => match answered {
                true => self.answered(id, now),
                false => self.breaker.not_asked(id, now),
            },
        }
        if ending == Ending::Resolved {
            self.breaker.forget(id);
        }
        self.effects.extend(reply.map(Effect::Acknowledge));
    }

    fn failed(
        &mut self,
        id: MessageId,
        trouble: Trouble,
        (now, time): (Instant, Timestamp),
        chance: f64,
    ) {
        let reason = trouble.reason.clone();
        let opens = self.breaker.failed(id, trouble, now, chance);
        let next_probe = self.breaker.next_probe(now);
        self.next_probe_at = next_probe.and_then(|at| time.checked_add(at - now).ok());
        if opens {
            self.tell(Notice::BreakerOpen { reason });
        }
    }

    fn answered(&mut self, id: MessageId, now: Instant) {
        let was_open = self.breaker.pause().is_some();
        let at_fault = self.breaker.answered(id);
        if was_open && self.breaker.pause().is_none() {
            self.tell(Notice::BreakerClosed);
        }
        if let Some(AtFault { id, reason }) = at_fault {
            self.lanes.set_at_fault(id, &reason, now);
            self.tell(Notice::AtFault { stream_seq: id.seq, reason });
        }
    }

    /// A job has ended: its place is free.
    pub(crate) fn job_ended(&mut self) {
        self.jobs -= 1;
    }

    /// These of a group are claimed, and wait for their handlers.
    pub(crate) fn claimed(&mut self, now: Instant, ids: Vec<MessageId>) {
        self.groups.claimed(ids, self.lanes.ready().next().is_some(), now);
    }

    /// No handler has the event any more, or will: its place is free.
    pub(crate) fn left(&mut self, id: MessageId) {
        self.groups.left(id);
    }

    /// Whether reports may come.
    pub(crate) fn awaits_reports(&self) -> bool {
        !matches!(self.phase, Phase::Draining | Phase::Ended)
    }

    /// All jobs of a session that is to end have ended, and all that they had to say was reported.
    pub(crate) fn reports_ended(&mut self, now: Instant) {
        if self.is_fed {
            self.phase = Phase::Draining;
        } else {
            self.end(now);
        }
    }

    fn start(&mut self, now: Instant) {
        self.lanes.advance(now);
        self.leaving.starved = false;
        if self.paused_by(now).is_some() {
            return;
        }
        let ConsumerStart { shares, lanes, .. } = self.start;
        loop {
            let most = if !shares {
                self.groups.room(self.lanes.busy())
            } else if self.jobs < self.places() {
                self.lanes.held().div_ceil(lanes).max(SHARE_MIN).min(self.batch)
            } else {
                0
            };
            let most = most.min(self.bucket.tokens(now));
            let items = self.breaker.take(&mut self.lanes, most, now);
            if items.is_empty() {
                self.leaving.starved = most > 0;
                return;
            }
            self.bucket.take(items.len(), now);
            self.jobs += 1;
            if !shares {
                self.groups.begun();
            }
            self.effects.push_back(Effect::Start(items));
        }
    }

    /// Lets handlers have what is claimed. What may not begin is given back, and costs no attempt.
    fn hand_over(&mut self, now: Instant) {
        let may_begin = self.phase == Phase::Running && self.paused_by(now).is_none();
        // Hundreds may wait, and mostly all of them may begin.
        if !(may_begin && self.breaker.is_closed()) {
            let may_begin = |id| may_begin && self.breaker.may_begin(id);
            let withdrawn = self.groups.withdraw(may_begin);
            self.push(withdrawn, Effect::Withdraw);
        }
        let handed = self.groups.hand_over(now);
        self.push(handed, Effect::Handle);
    }

    /// Why nothing is started, if it is so.
    fn paused_by(&self, now: Instant) -> Option<Pause<'_>> {
        let Surroundings { role, database, operator, .. } = &self.surroundings;
        match (role, database) {
            (Role::Active { until, .. }, None) if now < *until => {
                operator.as_deref().map(Pause::Operator)
            }
            (_, trouble) => Some(Pause::Database(trouble.as_deref())),
        }
    }

    fn request(&mut self, room: usize) {
        if std::mem::replace(&mut self.requested, room) != room {
            self.effects.push_back(Effect::Request(room));
        }
    }

    fn give_back(&mut self, now: Instant) {
        self.hand_over(now);
        let released = self.lanes.release();
        self.counts.released += released.len() as u64;
        let mut replies = std::mem::take(&mut self.leaving.replies);
        replies.extend(released.into_iter().flatten());
        self.push(replies, Effect::GiveBack);
    }

    fn push<T>(&mut self, these: Vec<T>, effect: impl FnOnce(Vec<T>) -> Effect) {
        if !these.is_empty() {
            self.effects.push_back(effect(these));
        }
    }

    fn tell(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Tell(notice));
    }
}
