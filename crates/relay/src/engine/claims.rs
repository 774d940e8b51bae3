//! Rows that are claimed in the table, published, marked and given back: poll mode.
//!
//! A claim is a batch of rows that this node alone may publish, for as long as it renews the claim.
//! Its events go through the same [`Publishing`](super::Publishing) as the log's, in keyed mode.
//! Whatever breaks ends the session, and with it the claims: there is nothing to be mended in between.

mod claims_hold;
mod readings;

use std::collections::VecDeque;
use std::time::Duration;

use uuid::Uuid;

use self::readings::Readings;
use super::core::Core;
use super::effect::{ClaimsEffect, Effect, End, RowsEffect};
use super::input::{BrokerInput, ClaimsInput, RowsInput};
use super::marking::MarkCounts;
use super::messages::{Dead, Resolved};
use super::window::{Origin, Outgoing};

/// After so long without a word from us the server ends a claim.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// How often we say a word.
const RENEWED_EVERY: Duration = Duration::from_secs(5);

/// Another node may get the rows of a claim this old soon: nothing of it is sent any more.
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

/// How rows are claimed.
#[derive(Debug, Clone)]
pub(crate) struct ClaimsSettings {
    /// Claims at a time, 1 at least.
    pub(crate) workers: usize,
    /// Rows of a claim, at most.
    pub(crate) batch: usize,
    /// How long nothing is claimed after a claim that was not full.
    pub(crate) interval: Duration,
    /// So many of the newest messages are remembered, of those that looks bring as well.
    pub(crate) reach: u64,
    /// Ends when there is nothing to claim.
    pub(crate) once: bool,
}

/// Rows in hand.
#[derive(Debug, Clone)]
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

/// The claims of one node. See the module.
#[derive(Debug, Clone)]
pub(super) struct Claims {
    settings: ClaimsSettings,
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
    /// When something was last decided.
    awake_at: Duration,
    readings: Readings,
}

impl Claims {
    /// The stream was read up to `last_seq`.
    pub(super) fn new(settings: ClaimsSettings, last_seq: u64) -> Self {
        Self {
            settings,
            claims: VecDeque::new(),
            begun: 0,
            looking: Looking::Resting { until: Duration::ZERO },
            giving_back: 0,
            gave_back: Duration::ZERO,
            owed_at: Duration::ZERO,
            marks: MarkCounts::default(),
            awake_at: Duration::ZERO,
            readings: Readings::new(last_seq),
        }
    }

    pub(super) fn turn(&mut self, core: &mut Core, now: Duration) {
        let resolved = core.publishing.take_resolved();
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
            core.effects.push_back(Effect::Measure(resolved));
        }
        while core.publishing.scans_resolved() > self.giving_back
            && self.claims.front().is_some_and(|it| !it.is_marking)
            && let Some(Claim { number: claim, published, .. }) = self.claims.pop_front()
        {
            self.giving_back += 1;
            ask(core, ClaimsEffect::GiveBack { claim, published });
        }
        if self.claims_at(core).is_some_and(|at| at <= now) {
            self.begun = self.begun.wrapping_add(1);
            self.looking = Looking::Claiming { since: now };
            ask(core, ClaimsEffect::Claim { claim: self.begun });
        }
    }

    pub(super) fn has_send(&self, core: &mut Core) -> bool {
        !self.readings.is_awaited() && core.publishing.has_send()
    }

    /// Whether the next message may be sent. `now` is read for each of them: after a long pause of
    /// the whole process, which looks like no time at all, the claims may be somebody else's.
    pub(super) fn may_send(&mut self, core: &mut Core, now: Duration) -> bool {
        if self.was_held_up(core, now) {
            return false;
        }
        let is_ours = |it: &Claim| now.saturating_sub(it.heard) < RELIED_ON;
        if !self.claims.iter().all(is_ours) {
            core.end(End::ClaimLost);
            return false;
        }
        if self.readings.is_older(now, TAIL_RELIED_ON) {
            self.look(core, now, true);
            return false;
        }
        true
    }

    /// Whether a stop has nothing left to do.
    pub(super) fn is_done(&self) -> bool {
        let is_looking = !matches!(self.looking, Looking::Resting { .. });
        self.claims.len() + self.giving_back == 0 && !is_looking
    }

    pub(super) fn marks(&self) -> MarkCounts {
        self.marks
    }

    /// When rows are to be claimed next; `None` while there is no room, or at the end.
    pub(super) fn claims_at(&self, core: &Core) -> Option<Duration> {
        let Looking::Resting { until } = self.looking else { return None };
        let has_hands = self.claims.len() + self.giving_back < self.settings.workers;
        (has_hands && core.publishing.has_room() && !core.is_draining()).then_some(until)
    }

    /// Takes in that time has passed, and whether a connection has no claim.
    pub(super) fn tick(&mut self, core: &mut Core, now: Duration, has_free: bool) {
        if has_free && now.saturating_sub(self.owed_at) >= OWED_EVERY {
            self.owed_at = now;
            core.effects.push_back(Effect::Rows(RowsEffect::MakeUpForMarks));
        }
        for claim in &mut self.claims {
            let has_unmarked = !claim.published.is_empty() && !claim.is_marking;
            if has_unmarked && now.saturating_sub(claim.unmarked_since) >= MARKED_WITHIN {
                claim.is_marking = true;
                let (claim, published) = (claim.number, std::mem::take(&mut claim.published));
                ask(core, ClaimsEffect::Mark { claim, published });
            }
            if claim.renewing.is_none() && now.saturating_sub(claim.heard) >= RENEWED_EVERY {
                claim.renewing = Some(now);
                ask(core, ClaimsEffect::Renew { claim: claim.number });
            }
        }
    }

    /// Takes in what came of an effect of this part.
    pub(super) fn take_in(&mut self, core: &mut Core, now: Duration, input: ClaimsInput) {
        match input {
            ClaimsInput::Claimed(rows) => self.claimed(core, now, rows),
            ClaimsInput::Renewed { claim } => {
                if let Some(Claim { heard, renewing, .. }) = self.find(claim)
                    && let Some(asked) = renewing.take()
                {
                    *heard = asked;
                }
            }
            ClaimsInput::NotClaimed => {
                self.looking = Looking::Resting { until: now + self.settings.interval };
            }
            ClaimsInput::NotMarked { claim, published } => {
                if let Some(claim) = self.find(claim) {
                    claim.published.extend(published);
                    (claim.unmarked_since, claim.is_marking) = (now, false);
                }
            }
            ClaimsInput::Marked { claim, marked } => {
                self.marks.marked += marked;
                if let Some(claim) = self.find(claim) {
                    claim.is_marking = false;
                }
            }
            ClaimsInput::GaveBack { marked } => {
                self.marks.marked += marked;
                self.giving_back -= 1;
                self.gave_back = now;
                core.publishing.scan_marked(now, 1);
            }
            ClaimsInput::Looked(tail) => {
                let last_seq = tail.last_seq;
                self.readings.looked(Some(last_seq));
                core.publishing.looked(now, tail);
                core.publishing.forget_before((last_seq + 1).saturating_sub(self.settings.reach));
                self.checked(core, now);
            }
            ClaimsInput::LookFailed(_) => {
                self.readings.looked(None);
                self.distrust(core, now);
                self.checked(core, now);
            }
        }
    }

    pub(super) fn rows(core: &mut Core, now: Duration, input: RowsInput) {
        match input {
            RowsInput::Parked(parked) => {
                parked.iter().for_each(|it| core.publishing.parked(now, it.index));
            }
            RowsInput::NotParked { .. } => core.end(End::Bug("a claimed row is not parked later")),
            RowsInput::Owed(_) => {} // it is tried again anyway
        }
    }

    /// What the broker said. A whole reading of the stream's end takes the place of all before.
    pub(super) fn heard(&mut self, core: &mut Core, now: Duration, input: BrokerInput) {
        let mut is_believed = true;
        if let BrokerInput::Tail(tail) = &input {
            is_believed = self.readings.came(tail.last_seq);
        } else if let BrokerInput::TailFailed(_) = &input {
            self.readings.failed();
        }
        core.publishing.heard(now, input);
        if !is_believed {
            core.publishing.heard(now, BrokerInput::LinkLost);
        }
    }

    /// A whole reading begins.
    pub(super) fn reads_tail(&mut self, now: Duration) {
        self.readings.begin_whole(now);
    }

    /// Puts an event into the dead-letter table.
    pub(super) fn park(&self, core: &mut Core, index: u64, dead: Dead) {
        let effect = self.holder(dead.event.id).map(|claim| {
            let batch = vec![(index, dead)];
            Effect::Rows(RowsEffect::Park { claim: Some(claim), batch })
        });
        core.effects.push_back(effect.unwrap_or(Effect::End(End::ClaimLost)));
    }

    /// The claim that has an event: what is done with its row is done over that one's connection.
    pub(super) fn holder(&self, id: Uuid) -> Option<u32> {
        self.claims.iter().find(|it| it.ids.contains(&id)).map(|it| it.number)
    }

    fn find(&mut self, claim: u32) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|it| it.number == claim)
    }

    /// Reads what the stream got since it was last read. Nothing is sent meanwhile if that
    /// `is_awaited`.
    fn look(&mut self, core: &mut Core, now: Duration, is_awaited: bool) {
        if let Some(from) = self.readings.begin_look(now, is_awaited) {
            ask(core, ClaimsEffect::LookAtTail { from });
        }
    }

    /// Publishes the rows that waited for a look at the stream.
    fn checked(&mut self, core: &mut Core, now: Duration) {
        let Looking::Checking { rows, until } = &mut self.looking else { return };
        let (rows, until) = (std::mem::take(rows), *until);
        self.looking = Looking::Resting { until };
        core.publishing.scanned(now, self.begun, rows);
    }

    /// Nothing is sent before the stream was read.
    fn distrust(&mut self, core: &mut Core, now: Duration) {
        self.readings.distrust();
        core.publishing.heard(now, BrokerInput::LinkLost);
    }

    /// After a long pause nothing is sent before the stream was read.
    pub(super) fn was_held_up(&mut self, core: &mut Core, now: Duration) -> bool {
        let is_late = now.saturating_sub(std::mem::replace(&mut self.awake_at, now)) > HELD_UP;
        if is_late {
            self.distrust(core, now);
        }
        is_late
    }

    fn claimed(&mut self, core: &mut Core, now: Duration, rows: Vec<Outgoing>) {
        let Looking::Claiming { since: asked } = self.looking else { return };
        let is_full = rows.len() >= self.settings.batch;
        let until = if is_full { now } else { now + self.settings.interval };
        self.looking = Looking::Resting { until };
        if rows.is_empty() {
            let has_nothing = self.claims.len() + self.giving_back == 0;
            if self.settings.once && has_nothing && asked > self.gave_back && !core.is_draining() {
                core.stop(now, "there is nothing to claim");
            }
            return;
        }
        self.claims.push_back(Claim {
            number: self.begun,
            ids: rows.iter().map(|it| it.event.id).collect(),
            published: Vec::new(),
            unmarked_since: now,
            is_marking: false,
            heard: asked,
            renewing: None,
        });
        self.looking = Looking::Checking { rows, until };
        if self.readings.is_older(now, TAIL_TRUSTED) {
            self.look(core, now, false);
        } else {
            self.checked(core, now);
        }
    }
}

fn ask(core: &mut Core, effect: ClaimsEffect) {
    core.effects.push_back(Effect::Claims(effect));
}
