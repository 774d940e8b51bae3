//! Copies that go to another stream than the relay's own.
//!
//! They do not go through the window: one is on its way at a time, and what becomes of it holds up the
//! replay and nothing else. Each names the last sequence of its subject that it expects, so that of
//! several attempts at one copy one is stored, however late they arrive, and whoever makes them. The
//! copy before it is stored, so the stream has it behind that one, or not at all.

use std::time::Duration;

use uuid::Uuid;

use super::{Decides, Engine, ReplayRow, Run, UnderWay};
use crate::engine::backoff::Backoff;
use crate::engine::effect::{Effect, Effects, ReplayEffect};
use crate::engine::replay_messages::{CopyAnswer, ReplayWish};
use crate::engine::window::{Outgoing, Unpublished};

/// So many attempts at one copy, or at reading on, one after the other, pause a replay: that takes the
/// better part of a minute.
pub(super) const TRIES_MAX: u32 = 10;

#[derive(Debug, Clone)]
enum Turn {
    Free,
    /// Nobody knows yet what became of it.
    Sent(Box<Outgoing>),
    /// And nobody will, before the stream is asked then.
    Waiting(Box<Outgoing>, Duration),
}

#[derive(Debug, Clone)]
pub(super) struct Elsewhere {
    /// The highest sequence known to be in that stream. What is not known to be stored is not in it up
    /// to there.
    last_seq: u64,
    turn: Turn,
    /// At this copy, in vain.
    tries: u32,
}

impl Elsewhere {
    pub(super) fn new(last_seq: u64) -> Self {
        Self { last_seq, turn: Turn::Free, tries: 0 }
    }

    pub(super) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    fn send(&mut self, replay: Uuid, copy: Box<Outgoing>) -> Effect {
        self.turn = Turn::Sent(copy.clone());
        Effect::Replay(ReplayEffect::SendCopy { replay, copy, after: self.last_seq })
    }
}

impl Run {
    /// Sends what may go.
    pub(super) fn send_elsewhere(&mut self, now: Duration, may: bool, effects: &mut Effects) {
        let Some(mut elsewhere) = self.elsewhere.take() else { return };
        match std::mem::replace(&mut elsewhere.turn, Turn::Free) {
            Turn::Waiting(copy, _) if !may || self.wish == ReplayWish::Rest => self.put_back(copy),
            Turn::Waiting(copy, at) if at <= now => {
                effects.push_back(elsewhere.send(self.id, copy));
            }
            Turn::Free if may => {
                if let Some(copy) = self.next_with_subject(now, elsewhere.last_seq) {
                    effects.push_back(elsewhere.send(self.id, Box::new(copy)));
                }
            }
            turn @ (Turn::Free | Turn::Sent(_) | Turn::Waiting(..)) => elsewhere.turn = turn,
        }
        self.elsewhere = Some(elsewhere);
    }

    fn next_with_subject(&mut self, now: Duration, last_seq: u64) -> Option<Outgoing> {
        loop {
            let copy = self.next(now, last_seq)?;
            match &copy.subject {
                Ok(_) => return Some(copy),
                Err(Unpublished::Dropped) => {
                    self.done(copy.event.id, Err("a route drops it".into()));
                }
                Err(Unpublished::Unfit(why) | Unpublished::NoEvent(why)) => {
                    self.done(copy.event.id, Err(why.clone()));
                }
            }
        }
    }

    /// Whoever goes on begins with it: this run, if it may soon, or one that reads from the stream
    /// whether it is there.
    fn put_back(&mut self, copy: Box<Outgoing>) {
        if let Some(UnderWay { place, event, .. }) = self.under_way.pop_back() {
            self.reading.rows.push_front(ReplayRow { place, event, outgoing: Ok(*copy) });
        }
    }

    pub(super) fn answered(&mut self, now: Duration, copy: Uuid, answer: CopyAnswer, may: bool) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let sent = match std::mem::replace(&mut elsewhere.turn, Turn::Free) {
            Turn::Sent(sent) if sent.event.id == copy => sent,
            turn @ (Turn::Free | Turn::Sent(_) | Turn::Waiting(..)) => {
                elsewhere.turn = turn;
                return;
            }
        };
        let is_away = matches!(answer, CopyAnswer::Disconnected(_));
        let how = match answer {
            CopyAnswer::Stored(seq) => {
                elsewhere.last_seq = elsewhere.last_seq.max(seq);
                Ok(())
            }
            CopyAnswer::Refused(why) => Err(why),
            CopyAnswer::Unknown(why) | CopyAnswer::Disconnected(why) => {
                elsewhere.tries += u32::from(!is_away);
                let pause = Backoff::COPY.after(elsewhere.tries.max(1));
                let gives_up = elsewhere.tries >= TRIES_MAX;
                self.note.waits_for = Some(why.clone());
                if gives_up {
                    (self.note.gives_up, self.wish) = (Some(why), ReplayWish::Rest);
                }
                if self.wish == ReplayWish::Rest || !may {
                    return self.put_back(sent);
                }
                elsewhere.turn = Turn::Waiting(sent, now + pause);
                return;
            }
        };
        elsewhere.tries = 0;
        self.note.waits_for = None;
        self.done(copy, how);
    }
}

impl Engine {
    /// Whether the replay goes to another stream; then what may go is sent.
    pub(super) fn replay_elsewhere(&mut self, now: Duration) -> bool {
        let may = !self.is_draining();
        let Some(run) = self.replaying.run().filter(|it| it.elsewhere.is_some()) else {
            return false;
        };
        run.send_elsewhere(now, may, &mut self.effects);
        true
    }

    pub(in crate::engine) fn copy_answered(
        &mut self,
        now: Duration,
        (replay, copy): (Uuid, Uuid),
        answer: CopyAnswer,
    ) {
        let may = !self.is_draining();
        if let Some(run) = self.replaying.run().filter(|it| it.id == replay) {
            run.answered(now, copy, answer, may);
        }
    }
}
