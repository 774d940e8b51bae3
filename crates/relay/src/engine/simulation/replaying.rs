//! Replays: what is asked for, what is written down of them, and what the stream must have of them.

use std::collections::HashSet;

use outbox::wire::replayed_id;
use rand::RngExt;
use uuid::Uuid;

use super::World;
use crate::engine::{
    ReplayEffect, ReplayInput, ReplayNote, ReplayPage, ReplayRow, ReplayStart, ReplayUnread,
    ReplayWish,
};

/// Rows of a replay at a time.
const READ_AT_ONCE: usize = 3;

/// A replay as PostgreSQL has it.
#[derive(Debug, Clone)]
pub(super) struct Replay {
    id: Uuid,
    events: Vec<u128>,
    /// Rows that are gone.
    gone: HashSet<u128>,
    place: i64,
    published: u64,
    seq: u64,
    problems: HashSet<u128>,
    has_begun: bool,
    pub(super) is_paused: bool,
    pub(super) is_done: bool,
}

impl Replay {
    fn copy(&self, event: u128) -> u128 {
        replayed_id(Uuid::from_u128(event), self.id).as_u128()
    }
}

impl World {
    /// Somebody asks for what the stream has by now, or pauses or resumes what was asked for.
    pub(super) fn replay_now_and_then(&mut self) {
        if let Some(open) = self.replays.iter_mut().find(|it| !it.is_done) {
            open.is_paused = self.rng.random_bool(0.3);
            return;
        }
        let number = self.replays.len() as u128 + 1;
        let events: Vec<u128> =
            self.ids_in_stream().filter(|id| self.keys.contains_key(id)).collect();
        let replay = Replay {
            id: Uuid::from_u128(number << 64),
            gone: events.iter().copied().filter(|_| self.rng.random_bool(0.05)).collect(),
            events,
            place: 0,
            published: 0,
            seq: 0,
            problems: HashSet::new(),
            has_begun: false,
            is_paused: false,
            is_done: false,
        };
        for event in &replay.events {
            if self.faults.poison && self.rng.random_bool(0.1) {
                self.poisoned.insert(replay.copy(*event));
            }
        }
        self.replays.push(replay);
    }

    pub(super) fn has_open_replay(&self) -> bool {
        self.replays.iter().any(|it| !it.is_done)
    }

    pub(super) fn resume_replays(&mut self) {
        self.replays.iter_mut().for_each(|it| it.is_paused = false);
    }

    /// Whether a message is one of a replay's.
    pub(super) fn is_copy(&self, id: u128) -> bool {
        id >> 64 > 0
    }

    pub(super) fn execute_replay(&mut self, effect: ReplayEffect) -> Option<ReplayInput> {
        let stream = &self.stream;
        let open = self.replays.iter_mut().find(|it| !it.is_done && !it.is_paused);
        Some(match (effect, open) {
            (ReplayEffect::LookFor, open) => ReplayInput::Found(open.map(|it| it.id)),
            (ReplayEffect::Begin(_), Some(open)) => {
                if !std::mem::replace(&mut open.has_begun, true) {
                    open.seq = stream.len() as u64;
                }
                let from = usize::try_from(open.seq).expect("small");
                let is_its = |id: &u128| id >> 64 == open.id.as_u128() >> 64;
                let stored = stream.iter().skip(from).filter_map(|it| it.id);
                let stored: Vec<u128> = stored.filter(is_its).collect();
                let start = ReplayStart {
                    id: open.id,
                    place: open.place,
                    published: open.published,
                    seq: open.seq,
                    stored: stored.into_iter().map(Uuid::from_u128).collect(),
                    per_second: None,
                };
                self.written.uncount();
                ReplayInput::Begun(Some(start))
            }
            (ReplayEffect::Begin(_), None) => ReplayInput::Begun(None),
            (ReplayEffect::Read { id, after }, _) => {
                let gone = || ReplayUnread::Waits("it is gone".to_owned());
                let page = self.replay_page(id, after).ok_or_else(gone);
                ReplayInput::Read { of: (id, after), page }
            }
            (ReplayEffect::Note(note), _) => self.note(&note),
            (ReplayEffect::End, _) => return None,
        })
    }

    fn replay_page(&self, id: Uuid, after: i64) -> Option<ReplayPage> {
        let replay = self.replays.iter().find(|it| it.id == id)?;
        let behind = replay.events.iter().zip(1..).skip(usize::try_from(after).expect("small"));
        let rows: Vec<ReplayRow> = behind
            .take(READ_AT_ONCE)
            .map(|(event, place)| ReplayRow {
                place,
                event: Uuid::from_u128(*event),
                outgoing: match replay.gone.contains(event) {
                    true => Err("its row is gone".into()),
                    false => Ok(self.outgoing(*event).replayed(id, None)),
                },
            })
            .collect();
        let read_to = rows.last().map_or(after, |it| it.place);
        let is_end = read_to >= i64::try_from(replay.events.len()).expect("small");
        Some(ReplayPage { rows, read_to, is_end, is_gone: None })
    }

    fn note(&mut self, note: &ReplayNote) -> ReplayInput {
        let problems = note.problems.len();
        let replay = self.replays.iter_mut().find(|it| it.id == note.id).expect("was asked for");
        assert!(note.place >= replay.place, "a replay goes back");
        (replay.place, replay.published) = (note.place, note.published);
        replay.seq = replay.seq.max(note.seq);
        replay.problems.extend(note.problems.iter().map(|it| it.event.as_u128()));
        replay.is_done |= note.is_done && !replay.is_paused;
        let rests = replay.is_paused;
        let wish = if rests { ReplayWish::Rest } else { ReplayWish::GoOn };
        ReplayInput::Noted { problems, wish: Some(wish) }
    }

    /// Each event that is meant has one copy, in the order in which they were meant.
    pub(super) fn check_replays(&self) {
        for replay in &self.replays {
            assert!(replay.is_done, "a replay does not end");
            let refused = |event: &u128| self.poisoned.contains(&replay.copy(*event));
            let (failed, meant): (Vec<u128>, Vec<u128>) =
                replay.events.iter().partition(|it| replay.gone.contains(it) || refused(it));
            assert_eq!(replay.problems, failed.into_iter().collect(), "other problems");
            let is_its = |id: &u128| id >> 64 == replay.id.as_u128() >> 64;
            let copies: Vec<u128> =
                self.stream.iter().filter_map(|it| it.id).filter(is_its).collect();
            let events = |copies: &[u128]| -> Vec<u128> {
                copies.iter().map(|it| it ^ replay.id.as_u128()).collect()
            };
            assert_eq!(replay.published, copies.len() as u64, "a wrong number");
            let (copied, mut once) = (events(&copies), events(&copies));
            once.sort_unstable();
            let mut all = meant.clone();
            all.sort_unstable();
            assert_eq!(once, all, "not exactly once");
            assert_eq!(self.by_key(&copied), self.by_key(&meant), "an aggregate is out of order");
        }
    }
}
