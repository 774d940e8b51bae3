//! The decisions of poll mode: rows are claimed in the table, published, marked and given back.
//!
//! A claim is a batch of rows that this node alone may publish, for as long as it renews the claim.
//! Its events go through the same [`Publishing`] as the log's, in keyed mode. Whatever breaks ends
//! the session, and with it the claims: there is nothing to be mended in between.

mod claim_messages;
#[cfg(test)]
mod claim_simulation;
mod claims_hold;
mod readings;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

pub(crate) use self::claim_messages::{ClaimEffect, ClaimOutcome, ClaimStart};
use self::readings::Readings;
use super::decides::{Decides, Figures};
use super::effect::End;
use super::marking::MarkCounts;
use super::messages::{Input, Mode, Part, Request, Resolved, Send, Start};
use super::notice::Notice;
use super::publish::Publishing;
use super::window::{Origin, Outgoing};

/// After so long without a word from us the server ends a claim.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// How often we say a word.
const RENEWED_EVERY: Duration = Duration::from_secs(5);

/// A claim this old may be somebody else's soon: nothing of it is sent any more.
const RELIED_ON: Duration = Duration::from_secs(20);

/// Published events of a claim that is not worked through are marked after so long. Whoever gets
/// the claim's rows next may go by the broker's memory of ids, which is a minute long at least.
const MARKED_WITHIN: Duration = Duration::from_secs(5);

/// Nothing was done for so long: the machine, or a signal, held the process up. Meanwhile others may
/// have published rows, and the broker may have forgotten their ids.
const HELD_UP: Duration = Duration::from_secs(10);

/// Rows that are claimed go by a reading of the stream that is not older.
const TAIL_TRUSTED: Duration = Duration::from_secs(20);

/// Nor is a row sent by an older one: whatever others stored since is within the broker's memory of
/// ids, which is a minute long at least.
const TAIL_RELIED_ON: Duration = Duration::from_secs(40);

/// How often it is looked whether rows are free that were locked when they were to be marked.
const OWED_EVERY: Duration = Duration::from_secs(1);

/// How long a stop may take.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Rows in hand.
#[derive(Debug)]
struct Claim {
    number: u32,
    ids: Vec<Uuid>,
    /// Events without a mark, and when the first of them was resolved.
    published: Vec<Resolved>,
    unmarked_since: Duration,
    /// Some are being marked.
    is_marking: bool,
    /// When the last statement was begun that the server has answered.
    heard: Duration,
    /// When the statement was begun that it has not answered.
    renewing: Option<Duration>,
}

#[derive(Debug, Clone)]
enum Looking {
    /// Nothing is asked for before `until`.
    Resting { until: Duration },
    /// Rows were asked for.
    Claiming { since: Duration },
    /// Rows are claimed, and not published before the stream was read. Then nothing is asked for
    /// before `until`.
    Checking { rows: Vec<Outgoing>, until: Duration },
}

/// How rows are claimed.
#[derive(Debug)]
struct Settings {
    workers: usize,
    batch: usize,
    interval: Duration,
    reach: u64,
    once: bool,
}

/// All that is decided in one session of poll mode. See the module.
#[derive(Debug)]
pub(crate) struct ClaimEngine {
    settings: Settings,
    publishing: Publishing,
    /// The oldest first.
    claims: VecDeque<Claim>,
    begun: u32,
    looking: Looking,
    /// Claims that are being marked and given back.
    giving_back: usize,
    /// When the last one was given back: a look from before may have met its locks.
    gave_back: Duration,
    owed_at: Duration,
    marks: MarkCounts,
    draining_since: Option<Duration>,
    /// When something was last decided.
    awake_at: Duration,
    readings: Readings,
    effects: VecDeque<ClaimEffect>,
}

impl Decides for ClaimEngine {
    type Effect = ClaimEffect;

    fn apply(&mut self, now: Duration, input: Input) {
        self.publishing.apply(now, input);
    }

    fn turn(&mut self, now: Duration) {
        self.was_held_up(now);
        while let Some(request) = self.publishing.next_request() {
            self.requested(now, request);
        }
        let resolved = self.publishing.take_resolved();
        for event in &resolved {
            let of = |it: &&mut Claim| event.origin == Origin::Scan(it.number);
            if let Some(claim) = self.claims.iter_mut().find(of) {
                if claim.published.is_empty() {
                    claim.unmarked_since = now;
                }
                claim.published.push(*event);
            }
        }
        if !resolved.is_empty() {
            self.effects.push_back(ClaimEffect::Measure(resolved));
        }
        while self.publishing.scans_resolved() > self.giving_back
            && self.claims.front().is_some_and(|it| !it.is_marking)
            && let Some(Claim { number: claim, published, .. }) = self.claims.pop_front()
        {
            self.giving_back += 1;
            self.effects.push_back(ClaimEffect::GiveBack { claim, published });
        }
        if self.claims_at().is_some_and(|at| at <= now) {
            self.begun = self.begun.wrapping_add(1);
            self.looking = Looking::Claiming { since: now };
            self.effects.push_back(ClaimEffect::Claim { claim: self.begun });
        }
        self.assert_holds();
    }

    fn next_effect(&mut self) -> Option<ClaimEffect> {
        self.effects.pop_front()
    }

    /// There is none.
    fn wants_log(&self) -> bool {
        false
    }

    /// Rows are claimed then.
    fn wakes_at(&self, _: Duration) -> Option<Duration> {
        self.claims_at()
    }

    fn before_sending(&mut self, now: Duration) {
        self.was_held_up(now);
    }

    fn has_send(&mut self) -> bool {
        !self.readings.is_awaited() && self.publishing.has_send()
    }

    /// Nothing is sent in batches.
    fn next_end(&mut self) -> Option<Part> {
        None
    }

    fn stop(&mut self, now: Duration, why: &'static str) {
        self.draining_since = Some(now);
        let unresolved = self.publishing.unresolved();
        self.tell(Notice::Stopping { why, unresolved });
    }

    fn is_draining(&self) -> bool {
        self.draining_since.is_some()
    }

    fn is_drained(&self, now: Duration) -> bool {
        let is_looking = !matches!(self.looking, Looking::Resting { .. });
        let is_empty = self.claims.len() + self.giving_back == 0 && !is_looking;
        self.draining_since.is_some_and(|since| is_empty || now.saturating_sub(since) > DRAIN_MAX)
    }

    fn figures(&self) -> Figures<'_> {
        let (publishing, marks) = (&self.publishing, self.marks);
        Figures { publishing, marks, confirmed: Lsn::ZERO, scanned: 0, has_gap: false }
    }
}

impl ClaimEngine {
    pub(crate) fn new(start: ClaimStart) -> Self {
        let readings = Readings::new(start.tail.last_seq);
        let publishing = Publishing::new(Start {
            written: crate::engine::WrittenDown::nothing(),
            mode: Mode::Keyed,
            limits: start.limits,
            ack_timeout: start.ack_timeout,
            resolved_before: Lsn(u64::MAX),
            log_end: Lsn::ZERO,
            tail: start.tail,
            stays_fenced: false,
            // What is parked has left the table, and nothing else brings it.
            dead: HashSet::new(),
            // What is claimed brings it along.
            tried: HashMap::new(),
            parking_blocks: false,
            max_attempts: start.max_attempts,
            seed: start.seed,
        });
        Self {
            settings: Settings {
                workers: start.workers,
                batch: start.batch,
                interval: start.interval,
                reach: start.reach,
                once: start.once,
            },
            publishing,
            claims: VecDeque::new(),
            begun: 0,
            looking: Looking::Resting { until: Duration::ZERO },
            giving_back: 0,
            gave_back: Duration::ZERO,
            owed_at: Duration::ZERO,
            marks: MarkCounts::default(),
            draining_since: None,
            awake_at: Duration::ZERO,
            readings,
            effects: VecDeque::new(),
        }
    }

    /// The next message. `now` is read for each of them: after a long pause of the whole process,
    /// which looks like no time at all, the claims may be somebody else's.
    pub(crate) fn next_send(&mut self, now: Duration) -> Option<Send<'_>> {
        if self.was_held_up(now) {
            return None;
        }
        let is_ours = |it: &Claim| now.saturating_sub(it.heard) < RELIED_ON;
        if !self.claims.iter().all(is_ours) {
            self.effects.push_back(ClaimEffect::End(End::ClaimLost));
            return None;
        }
        if self.readings.is_older(now, TAIL_RELIED_ON) {
            self.look(now, true);
            return None;
        }
        self.publishing.next_send()
    }

    /// When rows are to be claimed next; `None` while there is no room, or at the end.
    fn claims_at(&self) -> Option<Duration> {
        let Looking::Resting { until } = self.looking else { return None };
        let has_hands = self.claims.len() + self.giving_back < self.settings.workers;
        (has_hands && self.publishing.has_room() && !self.is_draining()).then_some(until)
    }

    /// Takes in that time has passed, and whether a connection has no claim.
    pub(crate) fn tick(&mut self, now: Duration, has_free: bool) {
        self.publishing.apply(now, Input::Tick);
        if has_free && now.saturating_sub(self.owed_at) >= OWED_EVERY {
            self.owed_at = now;
            self.effects.push_back(ClaimEffect::MakeUpForMarks);
        }
        for claim in &mut self.claims {
            let has_unmarked = !claim.published.is_empty() && !claim.is_marking;
            if has_unmarked && now.saturating_sub(claim.unmarked_since) >= MARKED_WITHIN {
                claim.is_marking = true;
                let (claim, published) = (claim.number, std::mem::take(&mut claim.published));
                self.effects.push_back(ClaimEffect::Mark { claim, published });
            }
            if claim.renewing.is_none() && now.saturating_sub(claim.heard) >= RENEWED_EVERY {
                claim.renewing = Some(now);
                self.effects.push_back(ClaimEffect::Renew { claim: claim.number });
            }
        }
    }

    /// Takes in what came of an effect.
    pub(crate) fn outcome(&mut self, now: Duration, outcome: ClaimOutcome) {
        match outcome {
            ClaimOutcome::Claimed(rows) => self.claimed(now, rows),
            ClaimOutcome::Renewed { claim } => {
                let claim = self.claims.iter_mut().find(|it| it.number == claim);
                if let Some(Claim { heard, renewing, .. }) = claim
                    && let Some(asked) = renewing.take()
                {
                    *heard = asked;
                }
            }
            ClaimOutcome::NotClaimed => {
                self.looking = Looking::Resting { until: now + self.settings.interval };
            }
            ClaimOutcome::NotMarked { claim, published } => {
                if let Some(claim) = self.claims.iter_mut().find(|it| it.number == claim) {
                    claim.published.extend(published);
                    (claim.unmarked_since, claim.is_marking) = (now, false);
                }
            }
            ClaimOutcome::Marked { claim, marked } => {
                self.marks.marked += marked;
                if let Some(claim) = self.claims.iter_mut().find(|it| it.number == claim) {
                    claim.is_marking = false;
                }
            }
            ClaimOutcome::GaveBack { marked } => {
                self.marks.marked += marked;
                self.giving_back -= 1;
                self.gave_back = now;
                self.publishing.apply(now, Input::ScanMarked { batches: 1 });
            }
            ClaimOutcome::Parked { index } => self.publishing.apply(now, Input::Parked { index }),
            ClaimOutcome::Tail(tail) => {
                let is_believed = self.readings.came(tail.last_seq);
                self.publishing.apply(now, Input::Tail(tail));
                if !is_believed {
                    self.publishing.apply(now, Input::LinkLost);
                }
            }
            ClaimOutcome::TailFailed(why) => {
                self.readings.failed();
                self.publishing.apply(now, Input::TailFailed(why));
            }
            ClaimOutcome::Looked(tail) => {
                let last_seq = tail.last_seq;
                self.readings.looked(Some(last_seq));
                self.publishing.apply(now, Input::Seen(tail));
                self.publishing.forget_before((last_seq + 1).saturating_sub(self.settings.reach));
                self.checked(now);
            }
            ClaimOutcome::LookFailed(_) => {
                self.readings.looked(None);
                self.distrust(now);
                self.checked(now);
            }
        }
    }

    /// Reads what the stream got since it was last read. Nothing is sent meanwhile if that
    /// `is_awaited`.
    fn look(&mut self, now: Duration, is_awaited: bool) {
        if let Some(from) = self.readings.begin_look(now, is_awaited) {
            self.effects.push_back(ClaimEffect::LookAtTail { from });
        }
    }

    /// Publishes the rows that waited for a look at the stream.
    fn checked(&mut self, now: Duration) {
        let Looking::Checking { rows, until } = &mut self.looking else { return };
        let (rows, until) = (std::mem::take(rows), *until);
        self.looking = Looking::Resting { until };
        self.publishing.apply(now, Input::Scanned { batch: self.begun, rows });
    }

    /// Nothing is sent before the stream was read.
    fn distrust(&mut self, now: Duration) {
        self.readings.distrust();
        self.publishing.apply(now, Input::LinkLost);
    }

    /// After a long pause nothing is sent before the stream was read.
    fn was_held_up(&mut self, now: Duration) -> bool {
        let is_late = now.saturating_sub(std::mem::replace(&mut self.awake_at, now)) > HELD_UP;
        if is_late {
            self.distrust(now);
        }
        is_late
    }

    fn claimed(&mut self, now: Duration, rows: Vec<Outgoing>) {
        let Looking::Claiming { since: asked } = self.looking else { return };
        let is_full = rows.len() >= self.settings.batch;
        let until = if is_full { now } else { now + self.settings.interval };
        self.looking = Looking::Resting { until };
        if rows.is_empty() {
            let has_nothing = self.claims.len() + self.giving_back == 0;
            if self.settings.once && has_nothing && asked > self.gave_back && !self.is_draining() {
                self.stop(now, "there is nothing to claim");
            }
            return;
        }
        let ids = rows.iter().map(|it| it.event.id).collect();
        let batch = self.begun;
        self.claims.push_back(Claim {
            number: batch,
            ids,
            published: Vec::new(),
            unmarked_since: now,
            is_marking: false,
            heard: asked,
            renewing: None,
        });
        self.looking = Looking::Checking { rows, until };
        if self.readings.is_older(now, TAIL_TRUSTED) {
            self.look(now, false);
        } else {
            self.checked(now);
        }
    }

    fn requested(&mut self, now: Duration, request: Request) {
        match request {
            Request::ReadTail { from, delay, why } => {
                let unresolved = self.publishing.unresolved();
                self.tell(Notice::ReadingTail { why, unresolved });
                self.readings.begin_whole(now);
                self.effects.push_back(ClaimEffect::ReadTail { from, delay });
            }
            Request::Park { index, dead } => {
                let (event, reason) = (dead.event.id, dead.reason.clone());
                let about = self.publishing.about(index, event);
                self.tell(Notice::Parking { about, reason });
                let effect = self.holder(event, |claim| ClaimEffect::Park { claim, index, dead });
                self.effects.push_back(effect);
            }
            Request::NoteFailure { index, id, attempts, reason, pause, .. } => {
                let (about, said) = (self.publishing.about(index, id), reason.clone());
                self.tell(Notice::TryingAgain { about, attempts, reason: said, pause });
                let note = |claim| ClaimEffect::NoteFailure { claim, id, reason, pause };
                let effect = self.holder(id, note);
                self.effects.push_back(effect);
            }
            // There is no log to bring anything again.
            Request::TellUncounted | Request::TellCount { .. } | Request::TellIgnored(_) => {}
            Request::TellStranger(why) => self.tell(Notice::Stranger { why }),
            // It is in keyed mode.
            Request::LeaveFence(_) | Request::TellStaysFenced => {}
            Request::StreamIsShorter => {
                self.effects.push_back(ClaimEffect::End(End::StreamIsShorter));
            }
            Request::Stop(why) => self.effects.push_back(ClaimEffect::End(End::Refused(why))),
        }
    }

    /// What is to be done over the connection of the claim that has an event.
    fn holder(&self, id: Uuid, effect: impl FnOnce(u32) -> ClaimEffect) -> ClaimEffect {
        let claim = self.claims.iter().find(|it| it.ids.contains(&id));
        claim.map_or(ClaimEffect::End(End::ClaimLost), |it| effect(it.number))
    }

    fn tell(&mut self, notice: Notice) {
        self.effects.push_back(ClaimEffect::Tell(notice));
    }
}
