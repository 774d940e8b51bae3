//! Random schedules of poll mode: nodes that crash, stall, lose statements and connections.
//!
//! Their world: a table with the locks of claims, which the server ends when it hears nothing of
//! them; a broker that remembers ids for a minute; a network whose messages arrive within some
//! seconds or never.

mod claim_schedule;

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use outbox::Event;
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::engine::seeds::seeds;
use crate::engine::tail_messages::Tail;
use crate::engine::window::Limits;
use crate::engine::{Refusal, TailMessage, Tried};
use uuid::Uuid;

const NODES: usize = 2;
const WORKERS: usize = 2;
const BATCH: usize = 4;
const KEYS: u64 = 4;
const STEPS: u32 = 1_000;

/// `Nats-Msg-Id` is remembered for so long.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(60);

/// A statement that has not answered by then ends the session.
const STATEMENT_MAX: Duration = Duration::from_secs(20);

/// A message that has not arrived by then never will.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Copy)]
struct Row {
    key: u64,
    is_marked: bool,
    attempts: u32,
    due: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    sent: Duration,
    session: u32,
    epoch: u32,
    index: u64,
    id: u128,
}

/// A claim of a session, as the server knows it.
type ClaimId = (u32, u32);

struct Node {
    engine: ClaimEngine,
    session: u32,
    began: Duration,
    /// What was begun, and when.
    under_way: Vec<(ClaimEffect, Duration)>,
    stalled_until: Duration,
}

struct World {
    rng: Rng,
    now: Duration,
    is_faulty: bool,
    rows: BTreeMap<u128, Row>,
    next_row: u128,
    locks: BTreeMap<u64, ClaimId>,
    /// When the server heard last of each claim.
    heard: BTreeMap<ClaimId, Duration>,
    nodes: Vec<Node>,
    sessions: u32,
    network: VecDeque<Message>,
    answers: Vec<(u32, Input)>,
    stream: Vec<(u128, Duration)>,
    parked: HashSet<u128>,
    /// Events that were stored again, as the page on poll mode says they may be.
    doubled: u32,
}

/// The stream never takes these.
fn is_poison(id: u128) -> bool {
    id.is_multiple_of(6)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: Rng::seed_from_u64(seed),
            now: Duration::from_secs(1),
            is_faulty: true,
            rows: BTreeMap::new(),
            next_row: 1,
            locks: BTreeMap::new(),
            heard: BTreeMap::new(),
            nodes: Vec::new(),
            sessions: 0,
            network: VecDeque::new(),
            answers: Vec::new(),
            stream: Vec::new(),
            parked: HashSet::new(),
            doubled: 0,
        };
        for _ in 0..NODES {
            let node = world.node();
            world.nodes.push(node);
        }
        world
    }

    fn node(&mut self) -> Node {
        self.sessions += 1;
        let engine = ClaimEngine::new(ClaimStart {
            tail: self.newest_since(0),
            limits: Limits { events: 6, bytes: 1 << 20 },
            ack_timeout: Duration::from_secs(5),
            max_attempts: 9,
            workers: WORKERS,
            batch: BATCH,
            interval: Duration::from_secs(1),
            reach: reach() as u64,
            once: false,
            seed: self.sessions.into(),
        });
        let (session, stalled_until) = (self.sessions, Duration::ZERO);
        Node { engine, session, began: self.now, under_way: Vec::new(), stalled_until }
    }

    /// Of the newest messages those that are behind the first `from` of the stream.
    fn newest_since(&self, from: u64) -> Tail {
        let newest = self.stream.len().saturating_sub(reach());
        self.tail_since(newest.max(usize::try_from(from).expect("small")))
    }

    fn tail_since(&self, from: usize) -> Tail {
        let mut tail = Tail::ending_at(self.stream.len() as u64);
        let message = |(at, (id, _)): (usize, &(u128, _))| TailMessage {
            seq: at as u64 + 1,
            id: Some(Uuid::from_u128(*id)),
            position: None,
            position_event: None,
            replay: None,
            is_marker: false,
        };
        tail.add(0, self.stream.iter().enumerate().skip(from).map(message));
        tail
    }

    fn step(&mut self) {
        let node = self.rng.random_range(0..NODES);
        match self.rng.random_range(0..20) {
            0 | 1 if self.is_faulty => self.insert(),
            2..6 if self.is_awake(node) => self.complete(node),
            6..10 => self.take(),
            10..14 => self.answer(),
            14 if self.is_faulty && self.is_awake(node) && self.rng.random_bool(0.15) => {
                self.end_session(node);
            }
            15 if self.is_faulty && self.rng.random_bool(0.1) => {
                let stall = Duration::from_secs(self.rng.random_range(1..120));
                self.nodes[node].stalled_until = self.now + stall;
            }
            16 if self.is_faulty && self.rng.random_bool(0.2) => {
                let session = self.nodes[node].session;
                self.network.retain(|it| it.session != session);
                let now = self.time_of(node);
                self.nodes[node].engine.apply(now, Input::LinkLost);
            }
            _ => self.pass_time(),
        }
        for node in 0..NODES {
            self.turn(node);
        }
    }

    fn is_awake(&self, node: usize) -> bool {
        self.nodes[node].stalled_until <= self.now
    }

    fn insert(&mut self) {
        for _ in 0..self.rng.random_range(1..4) {
            let key = self.rng.random_range(0..KEYS);
            let row = Row { key, is_marked: false, attempts: 0, due: Duration::ZERO };
            self.rows.insert(self.next_row, row);
            self.next_row += 1;
        }
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(self.rng.random_range(0..600));
        while let Some(message) = self.network.front()
            && self.now > message.sent + ON_ITS_WAY_MAX
        {
            match self.rng.random_bool(0.5) {
                true => self.take(),
                false => _ = self.network.pop_front(),
            }
        }
        // The server ends what it hears nothing of, and, sooner or later, whose client is gone.
        let live: HashSet<u32> = self.nodes.iter().map(|it| it.session).collect();
        let claims: Vec<ClaimId> = self.heard.keys().copied().collect();
        for claim in claims {
            let is_silent = self.now > self.heard[&claim] + LEASE;
            let is_gone = !live.contains(&claim.0) && self.rng.random_bool(0.1);
            if is_silent || is_gone {
                self.release(claim);
            }
        }
        for node in 0..NODES {
            if !self.is_awake(node) {
                continue;
            }
            let is_late = |it: &(_, Duration)| self.now > it.1 + STATEMENT_MAX;
            if self.nodes[node].under_way.iter().any(is_late) {
                self.end_session(node);
            }
            let now = self.time_of(node);
            let mut begun = self.nodes[node].under_way.iter();
            let is_free = !begun.any(|it| matches!(it.0, ClaimEffect::MakeUpForMarks));
            self.nodes[node].engine.tick(now, is_free);
        }
    }

    fn release(&mut self, claim: ClaimId) {
        self.heard.remove(&claim);
        self.locks.retain(|_, holder| *holder != claim);
    }

    fn time_of(&self, node: usize) -> Duration {
        self.now - self.nodes[node].began
    }

    /// What was sent may arrive all the same; the claims end when the server notices.
    fn end_session(&mut self, node: usize) {
        self.nodes[node] = self.node();
    }

    fn turn(&mut self, at: usize) {
        if self.nodes[at].stalled_until > self.now {
            return;
        }
        let now = self.time_of(at);
        let node = &mut self.nodes[at];
        node.engine.before_sending(now);
        while node.engine.has_send()
            && let Some(send) = node.engine.next_send(now)
        {
            let (epoch, index, id) = (send.epoch, send.index, send.event.id.as_u128());
            let (sent, session) = (self.now, node.session);
            self.network.push_back(Message { sent, session, epoch, index, id });
        }
        node.engine.turn(now);
        while let Some(effect) = node.engine.next_effect() {
            match effect {
                ClaimEffect::End(End::ClaimLost) => return self.end_session(at),
                ClaimEffect::End(end) => panic!("{end:?}"),
                ClaimEffect::Measure(_) | ClaimEffect::Tell(_) => {}
                effect @ (ClaimEffect::Claim { .. }
                | ClaimEffect::Renew { .. }
                | ClaimEffect::Mark { .. }
                | ClaimEffect::GiveBack { .. }
                | ClaimEffect::Park { .. }
                | ClaimEffect::NoteFailure { .. }
                | ClaimEffect::ReadTail { .. }
                | ClaimEffect::LookAtTail { .. }
                | ClaimEffect::MakeUpForMarks) => {
                    let is_marking = |claim: u32| {
                        let mut begun = node.under_way.iter().map(|it| &it.0);
                        begun.any(
                            |it| matches!(it, ClaimEffect::Mark { claim: of, .. } if *of == claim),
                        )
                    };
                    if let ClaimEffect::GiveBack { claim, .. } = effect {
                        assert!(!is_marking(claim), "claim {claim} ends beside its marks");
                    }
                    node.under_way.push((effect, self.now));
                }
            }
        }
    }

    fn complete(&mut self, at: usize) {
        let count = self.nodes[at].under_way.len();
        if count == 0 {
            return;
        }
        let which = self.rng.random_range(0..count);
        let (effect, _) = self.nodes[at].under_way.remove(which);
        let fails = self.is_faulty && self.rng.random_bool(0.02);
        if fails && self.rng.random_bool(0.5) {
            return self.end_session(at);
        }
        let session = self.nodes[at].session;
        let outcome = self.execute(session, effect);
        match outcome {
            // The connection is gone, or the answer was lost.
            None => self.end_session(at),
            Some(_) if fails => self.end_session(at),
            Some(None) => {}
            Some(Some(outcome)) => {
                let now = self.time_of(at);
                self.nodes[at].engine.outcome(now, outcome);
            }
        }
    }

    /// What came of it, if anything; `None` if the server had ended the claim.
    fn execute(&mut self, session: u32, effect: ClaimEffect) -> Option<Option<ClaimOutcome>> {
        let now = self.now;
        let mut of = |claim: u32| {
            self.heard.get_mut(&(session, claim)).map(|heard| *heard = now)?;
            Some((session, claim))
        };
        Some(match effect {
            ClaimEffect::Claim { claim } => Some(self.claim((session, claim))),
            ClaimEffect::Renew { claim } => {
                // It may have been given back since.
                _ = of(claim);
                Some(ClaimOutcome::Renewed { claim })
            }
            ClaimEffect::Mark { claim, published } => {
                of(claim)?;
                if self.is_faulty && self.rng.random_bool(0.2) {
                    return Some(Some(ClaimOutcome::NotMarked { claim, published }));
                }
                for event in &published {
                    self.mark(event.id.as_u128());
                }
                Some(ClaimOutcome::Marked { claim, marked: published.len() as u64 })
            }
            ClaimEffect::GiveBack { claim, published } => {
                let claim = of(claim)?;
                for event in &published {
                    self.mark(event.id.as_u128());
                }
                self.release(claim);
                Some(ClaimOutcome::GaveBack { marked: published.len() as u64 })
            }
            ClaimEffect::Park { claim, index, dead } => {
                of(claim)?;
                let id = dead.event.id.as_u128();
                assert!(is_poison(id), "{id} is parked");
                self.rows.remove(&id);
                self.parked.insert(id);
                Some(ClaimOutcome::Parked { index })
            }
            ClaimEffect::NoteFailure { claim, id, pause, .. } => {
                of(claim)?;
                if let Some(row) = self.rows.get_mut(&id.as_u128()) {
                    (row.attempts, row.due) = (row.attempts + 1, now + pause);
                }
                None
            }
            ClaimEffect::ReadTail { from, .. } => {
                let from = usize::try_from(from).expect("small").saturating_sub(reach() + 1);
                match self.is_faulty && self.rng.random_bool(0.1) {
                    true => Some(ClaimOutcome::TailFailed("no answer".into())),
                    false => Some(ClaimOutcome::Tail(self.tail_since(from))),
                }
            }
            ClaimEffect::LookAtTail { from } => match self.is_faulty && self.rng.random_bool(0.1) {
                true => Some(ClaimOutcome::LookFailed("no answer".into())),
                false => Some(ClaimOutcome::Looked(self.newest_since(from - 1))),
            },
            ClaimEffect::MakeUpForMarks => None,
            ClaimEffect::Measure(_) | ClaimEffect::Tell(_) | ClaimEffect::End(_) => {
                panic!("not under way: {effect:?}")
            }
        })
    }

    fn mark(&mut self, id: u128) {
        assert!(self.stream.iter().any(|it| it.0 == id), "{id} is marked and not published");
        if let Some(row) = self.rows.get_mut(&id) {
            row.is_marked = true;
        }
    }

    /// As the statement: each aggregate is tried once, the oldest first.
    fn claim(&mut self, claim: ClaimId) -> ClaimOutcome {
        let unmarked: Vec<(u128, Row)> =
            self.rows.iter().filter(|(_, it)| !it.is_marked).map(|(id, it)| (*id, *it)).collect();
        let waits: HashSet<u64> =
            unmarked.iter().filter(|(_, it)| it.due > self.now).map(|(_, it)| it.key).collect();
        for (_, row) in unmarked.iter().filter(|(_, it)| !waits.contains(&it.key)) {
            self.locks.entry(row.key).or_insert(claim);
        }
        let is_ours = |it: &&(u128, Row)| self.locks.get(&it.1.key) == Some(&claim);
        let rows = unmarked.iter().filter(is_ours).take(BATCH).map(|it| self.outgoing(*it));
        let rows: Vec<Outgoing> = rows.collect();
        if rows.is_empty() {
            self.release(claim);
        } else {
            self.heard.insert(claim, self.now);
        }
        ClaimOutcome::Claimed(rows)
    }

    fn outgoing(&self, (id, row): (u128, Row)) -> Outgoing {
        let mut event = Event::new("t", format!("k{}", row.key), "e", &0).expect("valid");
        event.id = Uuid::from_u128(id);
        event.payload = Bytes::from_static(b"{}");
        event.occurred_at = Timestamp::UNIX_EPOCH;
        let pause = row.due.saturating_sub(self.now);
        let tried = Tried { attempts: row.attempts, pause };
        let (subject, seq) = (Ok("s".into()), None);
        Outgoing { event, subject, seq, requeued: false, tried, replayed: None }
    }

    /// The broker takes one message, mostly the oldest.
    fn take(&mut self) {
        let reach = if self.is_faulty { self.network.len().min(3) } else { 1 };
        let first = if reach == 0 { 0 } else { self.rng.random_range(0..reach) };
        // The messages of a connection arrive in their order.
        let session = self.network.get(first).map(|it| it.session);
        let at = self.network.iter().position(|it| Some(it.session) == session);
        let Some(Message { session, epoch, index, id, .. }) =
            at.and_then(|at| self.network.remove(at))
        else {
            return;
        };
        let answer = match self.store(id) {
            Ok((seq, is_duplicate)) => Input::Acked { epoch, index, seq, is_duplicate },
            Err(refusal) => Input::Refused { epoch, index, refusal },
        };
        if !self.is_faulty || self.rng.random_bool(0.95) {
            self.answers.push((session, answer));
        }
    }

    fn store(&mut self, id: u128) -> Result<(u64, bool), Refusal> {
        if self.is_faulty && self.rng.random_bool(0.03) {
            return Err(Refusal::Outage("busy".into()));
        }
        if is_poison(id) {
            return Err(Refusal::Unwelcome("no such subject".into()));
        }
        if let Some(at) = self.stream.iter().rposition(|it| it.0 == id) {
            if self.now < self.stream[at].1 + DUPLICATE_WINDOW {
                return Ok((at as u64 + 1, true));
            }
            // Nobody knows of it: so many messages came behind it.
            assert!(self.stream.len() - at > reach(), "{id} is stored twice");
            self.doubled += 1;
        } else {
            let key = |id: u128| self.rows.get(&id).map(|it| it.key);
            let later = self.stream.iter().find(|it| it.0 > id && key(it.0) == key(id));
            assert!(later.is_none(), "{id} is stored behind {later:?} of its aggregate");
        }
        self.stream.push((id, self.now));
        Ok((self.stream.len() as u64, false))
    }

    fn answer(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let node_of = |session| self.nodes.iter().position(|it| it.session == session);
        // What comes for a node that is stalled waits for it.
        let is_heard = |it: &(u32, Input)| node_of(it.0).is_none_or(|at| self.is_awake(at));
        let Some(first) = self.answers.iter().position(is_heard) else { return };
        let at = node_of(self.answers[first].0);
        let (_, input) = self.answers.remove(first);
        if let Some(at) = at {
            let now = self.time_of(at);
            self.nodes[at].engine.apply(now, input);
        }
    }

    /// Faults end; everything that can be done is done.
    fn heal(&mut self) {
        self.is_faulty = false;
        for node in &mut self.nodes {
            node.stalled_until = self.now;
        }
        let healed_at = self.now;
        while !self.rows.values().all(|it| it.is_marked) || !self.locks.is_empty() {
            self.step();
            let waited = self.now - healed_at;
            assert!(waited < Duration::from_mins(60), "rows are left: {:?}", self.rows);
        }
        for id in 1..self.next_row {
            let is_stored = self.stream.iter().any(|it| it.0 == id);
            assert!(is_stored || self.parked.contains(&id), "{id} is lost");
        }
    }
}

/// Messages that hold whatever was published and not marked, with room for what others publish
/// meanwhile.
fn reach() -> usize {
    4 * NODES * WORKERS * BATCH
}
