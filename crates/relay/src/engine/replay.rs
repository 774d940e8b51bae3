//! Publishes again what was published before, one replay after the other.
//!
//! Copies are handed to the window one by one, as there is room, and noted in their order: a session
//! that ends leaves a replay where its last note says, and the next one goes on behind the copies
//! that the stream has from there on.

mod rate;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use uuid::Uuid;

use self::rate::Rate;
use super::backoff;
use super::effect::{Effect, Effects, ReplayEffect};
use super::messages::Resolved;
use super::replay_messages::{
    ReplayNote, ReplayPage, ReplayRow, ReplayStart, ReplayUnread, ReplayWish, Unreplayed,
};
use super::window::Outgoing;

/// How often it is looked for a replay.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long after a replay could not be begun.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How often it is noted how far a replay is, and looked whether it was paused. What is noted leaves
/// the list, and the log has that in front of new events: little at a time.
const NOTE_EVERY: Duration = Duration::from_millis(50);

/// Rows that are read ahead.
const READ_AHEAD: usize = 128;

/// So many attempts at reading on, one after the other, pause a replay: that takes the better part of a
/// minute.
const TRIES_MAX: u32 = 10;

/// So many copies that the stream does not take, one after the other, pause a replay.
const REFUSED_MAX: usize = 100;

/// Events handed over since the last note. A session that goes on has to find as many in the stream.
const UNNOTED_MAX: usize = 10_000;

#[derive(Debug, Clone)]
enum State {
    /// Somebody may ask for one.
    Resting {
        until: Duration,
    },
    Looking,
    /// There is one.
    Found(Uuid),
    Beginning,
    Running(Box<Run>),
}

/// What became of a copy that was handed over.
#[derive(Debug, Clone)]
struct UnderWay {
    place: i64,
    event: Uuid,
    /// Its own id.
    copy: Uuid,
    /// The stream's last sequence as known when it was handed over: it can only be stored above.
    after: u64,
    done: Option<Result<(), String>>,
}

/// Copies of an earlier session.
#[derive(Debug, Clone)]
struct Earlier {
    /// Those whose turn has not come.
    stored: HashSet<Uuid>,
    /// In how many of the next rows they can come.
    look_for: usize,
    /// The place of the last one whose turn has come.
    taken_to: i64,
}

/// What is read ahead.
#[derive(Debug, Clone)]
struct ReadAhead {
    rows: VecDeque<ReplayRow>,
    /// Nothing is left out up to here.
    to: i64,
    state: ReadState,
    /// The latest readings failed, and how many of them count.
    failures: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadState {
    /// There may be more; not before.
    Due(Duration),
    UnderWay,
    AtEnd,
}

/// Copies that are done, and whose place is not written yet.
#[derive(Debug, Clone)]
struct Noting {
    /// Those that no note names.
    unnoted: usize,
    state: NoteState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoteState {
    Due(Duration),
    /// A note is being written, about so many copies.
    UnderWay(usize),
}

#[derive(Debug, Clone)]
pub(super) struct Run {
    id: Uuid,
    earlier: Earlier,
    rate: Rate,
    reading: ReadAhead,
    under_way: VecDeque<UnderWay>,
    note: ReplayNote,
    noting: Noting,
    wish: ReplayWish,
    /// Copies that the stream did not take, one after the other.
    refused: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Replaying {
    state: State,
}

impl Replaying {
    /// With `--once` nothing is replayed.
    pub(crate) fn new(is_asked_for: bool) -> Self {
        let until = if is_asked_for { Duration::ZERO } else { Duration::MAX };
        Self { state: State::Resting { until } }
    }

    /// Whether nothing of a replay comes into the stream.
    pub(crate) fn is_clear(&self) -> bool {
        matches!(self.state, State::Resting { .. } | State::Looking | State::Found(_))
    }

    /// Whether what was handed over is noted.
    pub(crate) fn is_noted(&self) -> bool {
        if let State::Running(run) = &self.state { run.is_noted() } else { true }
    }

    pub(super) fn look_if_due(&mut self, now: Duration, effects: &mut Effects) {
        if matches!(self.state, State::Resting { until } if until <= now) {
            self.state = State::Looking;
            effects.push_back(Effect::Replay(ReplayEffect::LookFor));
        }
    }

    /// `None` if there is none, or nobody knows.
    pub(super) fn found(&mut self, now: Duration, replay: Option<Uuid>) {
        self.state = match replay {
            Some(id) => State::Found(id),
            None => State::Resting { until: now + LOOK_EVERY },
        };
    }

    pub(super) fn begin(&mut self, effects: &mut Effects) {
        if let State::Found(id) = self.state {
            self.state = State::Beginning;
            effects.push_back(Effect::Replay(ReplayEffect::Begin(id)));
        }
    }

    /// `None` if it cannot be begun now.
    pub(super) fn begun(&mut self, now: Duration, start: Option<ReplayStart>) {
        let Some(start) = start else {
            self.state = State::Resting { until: now + AGAIN_AFTER };
            return;
        };
        self.state = State::Running(Box::new(Run::new(now, start)));
    }

    pub(super) fn run(&mut self) -> Option<&mut Run> {
        if let State::Running(run) = &mut self.state { Some(run) } else { None }
    }

    /// What is behind a place of a replay. It may be another replay's by now, or this one's from
    /// before it was paused.
    pub(super) fn read(
        &mut self,
        now: Duration,
        id: Uuid,
        after: i64,
        page: Result<ReplayPage, ReplayUnread>,
    ) {
        let Some(run) = self.run().filter(|it| it.id == id && it.reading.to == after) else {
            return;
        };
        match page {
            Ok(page) => run.has_read(now, page),
            Err(why) => run.has_not_read(now, why),
        }
    }

    /// A copy is in the stream.
    pub(crate) fn stored(&mut self, copy: &Resolved) {
        if let Some(run) = self.run() {
            run.done(copy.id, Ok(()));
        }
    }

    pub(super) fn noted(
        &mut self,
        now: Duration,
        problems: usize,
        wish: Option<ReplayWish>,
        effects: &mut Effects,
    ) {
        let Some(run) = self.run() else { return };
        let state = std::mem::replace(&mut run.noting.state, NoteState::Due(now + NOTE_EVERY));
        let Some(wish) = wish else {
            if let NoteState::UnderWay(copies) = state {
                run.noting.unnoted += copies; // it is written again
            }
            return;
        };
        run.note.problems.drain(..problems);
        run.wish = if run.note.gives_up.is_some() { ReplayWish::Rest } else { wish };
        let wish = run.wish;
        // What is being read is of no use any more.
        let rests = wish == ReplayWish::Rest && run.is_noted();
        if run.note.is_done || rests {
            effects.push_back(Effect::Replay(ReplayEffect::End));
            self.found(now, None);
        }
    }

    pub(super) fn advance(
        &mut self,
        now: Duration,
        last_seq: u64,
        hurry: bool,
        effects: &mut Effects,
    ) {
        if let Some(run) = self.run() {
            run.read_on(now, effects);
            run.take_note(now, last_seq, hurry, effects);
        }
    }
}

impl Run {
    fn new(now: Duration, start: ReplayStart) -> Self {
        let ReplayStart { id, place, published, seq, stored, per_second } = start;
        let note = ReplayNote {
            id,
            place,
            published,
            seq,
            problems: Vec::new(),
            is_done: false,
            waits_for: None,
            gives_up: None,
        };
        let state = ReadState::Due(now);
        Self {
            id,
            earlier: Earlier { stored, look_for: UNNOTED_MAX + READ_AHEAD, taken_to: place },
            rate: Rate::new(now, per_second),
            reading: ReadAhead { rows: VecDeque::new(), to: place, state, failures: None },
            under_way: VecDeque::new(),
            note,
            noting: Noting { unnoted: 0, state: NoteState::Due(now + NOTE_EVERY) },
            wish: ReplayWish::GoOn,
            refused: 0,
        }
    }

    /// Whether what was handed over is noted.
    fn is_noted(&self) -> bool {
        let is_written = self.noting.unnoted == 0 && matches!(self.noting.state, NoteState::Due(_));
        self.under_way.is_empty() && is_written
    }

    /// The next copy that may go.
    pub(super) fn next(&mut self, now: Duration, last_seq: u64) -> Option<Outgoing> {
        if self.wish == ReplayWish::Rest || self.noting.unnoted >= UNNOTED_MAX {
            return None;
        }
        loop {
            if !self.rate.allows(now) {
                return None;
            }
            let ReplayRow { place, event, outgoing } = self.reading.rows.pop_front()?;
            self.earlier.look_for = self.earlier.look_for.saturating_sub(1);
            if self.earlier.look_for == 0 {
                self.earlier.stored = HashSet::new(); // what is left was noted, behind what was read
            }
            let outgoing = match outgoing {
                Ok(outgoing) if self.earlier.stored.remove(&outgoing.event.id) => {
                    self.earlier.taken_to = place;
                    Err(None)
                }
                Ok(outgoing) => Ok(outgoing),
                Err(reason) => Err(Some(reason)),
            };
            let copy = outgoing.as_ref().map_or(event, |it| it.event.id);
            let done = outgoing.as_ref().err().map(|why| why.clone().map_or(Ok(()), Err));
            self.under_way.push_back(UnderWay { place, event, copy, after: last_seq, done });
            if let Ok(outgoing) = outgoing {
                self.rate.took(now);
                return Some(outgoing);
            }
            self.count_resolved();
        }
    }

    pub(super) fn done(&mut self, copy: Uuid, how: Result<(), String>) {
        // Each refusal costs the others a reading of the tail.
        self.refused = if how.is_ok() { 0 } else { self.refused + 1 };
        if self.refused >= REFUSED_MAX {
            let why = "the stream takes none of the events".to_owned();
            (self.note.gives_up, self.wish) = (Some(why), ReplayWish::Rest);
        }
        if let Some(it) = self.under_way.iter_mut().find(|it| it.copy == copy && it.done.is_none())
        {
            it.done = Some(how);
        }
        self.count_resolved();
    }

    /// Only what nothing unresolved is before counts.
    fn count_resolved(&mut self) {
        while let Some(done) = self.under_way.front_mut().and_then(|it| it.done.take()) {
            let Some(UnderWay { place, event, .. }) = self.under_way.pop_front() else { return };
            self.note.place = place;
            self.noting.unnoted += 1;
            match done {
                Ok(()) => self.note.published += 1,
                Err(reason) => self.note.problems.push(Unreplayed { place, event, reason }),
            }
        }
    }

    /// Whoever begins the log anew comes by what was read before, up to where it failed.
    fn has_read(&mut self, now: Duration, page: ReplayPage) {
        if self.reading.failures.is_some() {
            self.note.waits_for = None;
        }
        if page.read_to > self.reading.to || page.is_end {
            self.reading.failures = None;
        }
        self.reading.rows.extend(page.rows);
        self.reading.to = page.read_to;
        self.reading.state = if page.is_end { ReadState::AtEnd } else { ReadState::Due(now) };
        if page.is_gone.is_some() {
            (self.note.gives_up, self.wish) = (page.is_gone, ReplayWish::Rest);
        }
    }

    fn has_not_read(&mut self, now: Duration, why: ReplayUnread) {
        let failures = self.reading.failures.unwrap_or_default();
        let (failures, pause, why) = match why {
            ReplayUnread::Waits(why) => (failures, LOOK_EVERY, why),
            ReplayUnread::Failed(why) => (failures + 1, backoff::REPLAY.after(failures + 1), why),
            ReplayUnread::Lasting(why) => (TRIES_MAX, LOOK_EVERY, why),
        };
        self.reading.failures = Some(failures);
        self.reading.state = ReadState::Due(now + pause);
        self.note.waits_for = Some(why.clone());
        if failures >= TRIES_MAX {
            (self.note.gives_up, self.wish) = (Some(why), ReplayWish::Rest);
        }
    }

    fn read_on(&mut self, now: Duration, effects: &mut Effects) {
        let is_due = matches!(self.reading.state, ReadState::Due(at) if at <= now);
        let has_room = self.reading.rows.len() < READ_AHEAD;
        if is_due && has_room && self.wish == ReplayWish::GoOn {
            self.reading.state = ReadState::UnderWay;
            effects.push_back(Effect::Replay(ReplayEffect::Read {
                id: self.id,
                after: self.reading.to,
            }));
        }
    }

    /// No copy whose place is not noted is in the stream up to here.
    fn noted_seq(&self, last_seq: u64) -> u64 {
        // One may have its turn while what is before it waits.
        if !self.earlier.stored.is_empty() || self.note.place < self.earlier.taken_to {
            return self.note.seq;
        }
        self.under_way.front().map_or(last_seq, |it| it.after)
    }

    fn take_note(&mut self, now: Duration, last_seq: u64, hurry: bool, effects: &mut Effects) {
        let is_idle = self.under_way.is_empty();
        let is_at_end = self.reading.state == ReadState::AtEnd && self.reading.rows.is_empty();
        let is_done = is_at_end && is_idle;
        let is_over = is_done || is_idle && (hurry && self.noting.unnoted > 0);
        if !matches!(self.noting.state, NoteState::Due(at) if is_over || at <= now) {
            return;
        }
        self.note.seq = self.noted_seq(last_seq);
        self.noting.state = NoteState::UnderWay(std::mem::take(&mut self.noting.unnoted));
        self.note.is_done = is_done;
        effects.push_back(Effect::Replay(ReplayEffect::Note(self.note.clone())));
    }
}

#[cfg(test)]
mod tests;
