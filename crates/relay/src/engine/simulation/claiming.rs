//! Nodes that claim rows of one table, side by side: poll mode.
//!
//! The server ends a claim when it hears nothing of it, the broker remembers ids for a minute, and
//! what is sent arrives within some seconds or never. Nodes crash and stall, lose statements and
//! connections. Each row is published once and in its aggregate's order, unless so many messages came
//! behind it that nobody can know of it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use lab::seeds;
use pgoutput::Lsn;
use rand::RngExt;

use super::broker::Packet;
use super::schedules::CALM;
use super::sessions::publishing;
use super::{Faults, Job, Relay, World};
use crate::engine::{
    BrokerEffect, BrokerInput, ClaimsEffect, ClaimsInput, ClaimsSettings, Effect, End, Engine,
    Input, LEASE, Mode, Outgoing, RowsEffect, Seen, Tail, Tried, WrittenDown,
};

const NODES: usize = 2;
const WORKERS: usize = 2;
const BATCH: usize = 4;
const STEPS: u32 = 1_000;

/// Messages that hold whatever was published and not marked, with room for what others publish
/// meanwhile.
const REACH: u64 = (4 * NODES * WORKERS * BATCH) as u64;

/// `Nats-Msg-Id` is remembered for so long.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(60);

/// A statement that has not answered by then ends the session.
const STATEMENT_MAX: Duration = Duration::from_secs(20);

/// A message that has not arrived by then never will.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(8);

/// A claim of a session, as the server knows it.
type ClaimId = (u64, u32);

/// What the server knows of claims.
#[derive(Debug, Default, Clone)]
pub(super) struct Claiming {
    /// The claim that has an aggregate's rows.
    locks: BTreeMap<u8, ClaimId>,
    /// When the server heard last of each claim.
    heard: BTreeMap<ClaimId, Duration>,
    /// Rows that were tried in vain wait until then.
    due: HashMap<u128, Duration>,
    /// Events that were stored again, as the page on poll mode says they may be.
    doubled: usize,
    is_healed: bool,
}

impl World {
    pub(super) fn begin_nodes(&mut self) {
        self.relay = self.node();
        for _ in 1..NODES {
            let node = self.node();
            self.others.push(node);
        }
    }

    fn node(&mut self) -> Relay {
        self.connections.push(VecDeque::new());
        // As `source/polling.rs` builds it.
        let publishing = publishing(
            self.faults,
            (Lsn(u64::MAX), Lsn(u64::MAX)),
            self.newest_since(1),
            WrittenDown::nothing(),
            &HashSet::new(),
            &HashMap::new(),
        );
        let settings = ClaimsSettings {
            workers: WORKERS,
            batch: BATCH,
            interval: Duration::from_secs(1),
            reach: REACH,
            once: false,
        };
        let engine = Engine::of_claims(publishing, settings);
        self.next_relay(engine)
    }

    /// What was sent may arrive all the same; the claims end when the server notices.
    pub(super) fn end_node(&mut self) {
        self.leave_jobs();
        self.ends = None;
        self.relay = self.node();
    }

    /// Of the newest messages those from sequence `from` on.
    fn newest_since(&self, from: u64) -> Tail {
        let newest = (self.stream.len() as u64 + 1).saturating_sub(REACH);
        self.tail_since(newest.max(from))
    }

    /// A whole reading. In poll mode it goes back far enough for whatever any node published.
    pub(super) fn tail_read_from(&self, from: u64) -> Tail {
        let reach = if self.faults.claims { REACH } else { 0 };
        self.tail_since(from.saturating_sub(reach))
    }

    /// Makes it the turn of the session that has this number. Says whether it still is.
    pub(super) fn turn_to(&mut self, generation: u64) -> bool {
        if let Some(other) = self.others.iter_mut().find(|it| it.generation == generation) {
            std::mem::swap(other, &mut self.relay);
        }
        self.relay.generation == generation
    }

    fn is_awake(&self) -> bool {
        self.relay.stalled_until <= self.now
    }

    /// Whether the session with this number hears what comes for it.
    pub(super) fn is_heard(&self, generation: u64) -> bool {
        let stalls = |it: &&Relay| it.generation == generation && it.stalled_until > self.now;
        self.nodes().find(stalls).is_none()
    }

    fn nodes(&self) -> impl Iterator<Item = &Relay> {
        std::iter::once(&self.relay).chain(&self.others)
    }

    /// For each node in turn.
    fn each_node(&mut self, does: fn(&mut Self)) {
        let generations: Vec<u64> = self.nodes().map(|it| it.generation).collect();
        for generation in generations {
            if self.turn_to(generation) && self.is_awake() {
                does(self);
            }
        }
    }

    pub(super) fn step_of_nodes(&mut self) {
        let node = self.rng.random_range(0..NODES);
        let generation = self.nodes().nth(node).map(|it| it.generation);
        self.turn_to(generation.expect("one of them"));
        let (honest, is_awake) = (self.claiming.is_healed, self.is_awake());
        match self.rng.random_range(0..20) {
            0 | 1 if !honest => self.insert(),
            2..6 if is_awake => {
                self.job(honest);
                self.job(honest);
            }
            6..10 => self.broker(honest),
            10..14 => self.answer(),
            14 if !honest && is_awake && self.rng.random_bool(0.15) => self.end_node(),
            15 if !honest && self.rng.random_bool(0.1) => {
                let stall = Duration::from_secs(self.rng.random_range(1..120));
                self.relay.stalled_until = self.now + stall;
            }
            16 if !honest && self.rng.random_bool(0.2) => self.break_link(),
            _ => self.pass_time(),
        }
        self.each_node(|it| {
            it.relay.engine.before_sending(it.time());
            while it.relay.engine.has_send() && it.send() {}
            it.effects();
        });
    }

    fn insert(&mut self) {
        for _ in 0..self.rng.random_range(1..4) {
            let (id, transaction) = (self.mint(), self.table.begin());
            self.table.insert(id, transaction, true, self.is_filtered(id));
            self.old_rows.push(id);
        }
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(self.rng.random_range(0..600));
        for connection in 0..self.connections.len() {
            while let Some(Packet::Message(message)) = self.connections[connection].front()
                && self.now > message.sent + ON_ITS_WAY_MAX
            {
                match self.rng.random_bool(0.5) {
                    true => self.take_from(connection, false),
                    false => _ = self.connections[connection].pop_front(),
                }
            }
        }
        // The server ends what it hears nothing of, and, sooner or later, whose client is gone.
        let live: HashSet<u64> = self.nodes().map(|it| it.generation).collect();
        let claims: Vec<ClaimId> = self.claiming.heard.keys().copied().collect();
        for claim in claims {
            let is_silent = self.now > self.claiming.heard[&claim] + LEASE;
            let is_gone = !live.contains(&claim.0) && self.rng.random_bool(0.1);
            if is_silent || is_gone {
                self.release_claim(claim);
            }
        }
        self.each_node(|it| {
            if it.relay.jobs.iter().any(|job| it.now > job.since + STATEMENT_MAX) {
                it.end_node();
            }
            let makes_up = |it: &Job| matches!(it.effect, Effect::Rows(RowsEffect::MakeUpForMarks));
            let has_free = !it.relay.jobs.iter().any(makes_up);
            it.relay.engine.tick(it.time(), Seen { silence: Duration::ZERO, has_free });
        });
    }

    fn release_claim(&mut self, claim: ClaimId) {
        self.claiming.heard.remove(&claim);
        self.claiming.locks.retain(|_, holder| *holder != claim);
    }

    /// A statement of a claim, if it is one's. If the server had ended that, the session is over.
    pub(super) fn hear(&mut self, claim: Option<u32>) -> Option<()> {
        assert_eq!(claim.is_some(), self.faults.claims, "a row that is claimed, or is not");
        let Some(claim) = claim else { return Some(()) };
        match self.claiming.heard.get_mut(&(self.relay.generation, claim)) {
            Some(heard) => *heard = self.now,
            None => self.ends = Some(End::ClaimLost),
        }
        self.ends.is_none().then_some(())
    }

    pub(super) fn wait_until_due(&mut self, id: u128, pause: Duration) {
        self.claiming.due.insert(id, self.now + pause);
    }

    pub(super) fn execute_claims(&mut self, effect: ClaimsEffect) -> Option<ClaimsInput> {
        let generation = self.relay.generation;
        let of = |claim| (generation, claim);
        Some(match effect {
            ClaimsEffect::Claim { claim } => self.claim(of(claim)),
            ClaimsEffect::Renew { claim } => {
                // It may have been given back since.
                if let Some(heard) = self.claiming.heard.get_mut(&of(claim)) {
                    *heard = self.now;
                }
                ClaimsInput::Renewed { claim }
            }
            ClaimsEffect::Mark { claim, published } => {
                self.hear(Some(claim))?;
                self.check_published(&published);
                ClaimsInput::Marked { claim, marked: self.table.mark(&published).0 }
            }
            ClaimsEffect::GiveBack { claim, published } => {
                self.hear(Some(claim))?;
                self.check_published(&published);
                let marked = self.table.mark(&published).0;
                self.release_claim(of(claim));
                ClaimsInput::GaveBack { marked }
            }
            ClaimsEffect::LookAtTail { from } => ClaimsInput::Looked(self.newest_since(from)),
        })
    }

    /// Somebody has the table locked, or the stream does not answer. Whatever else breaks ends the
    /// session, with the statement executed or not.
    pub(super) fn fail_of_claims(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Claims(ClaimsEffect::Claim { .. }) if self.rng.random_bool(0.5) => {
                Some(ClaimsInput::NotClaimed.into())
            }
            Effect::Claims(ClaimsEffect::Mark { claim, published })
                if self.rng.random_bool(0.9) =>
            {
                Some(ClaimsInput::NotMarked { claim, published }.into())
            }
            Effect::Claims(ClaimsEffect::LookAtTail { .. }) => {
                Some(ClaimsInput::LookFailed("no answer".into()).into())
            }
            Effect::Broker(BrokerEffect::ReadTail { .. }) => {
                Some(BrokerInput::TailFailed("no answer".into()).into())
            }
            Effect::Broker(BrokerEffect::LookUp { epoch, index, seq, .. }) => {
                Some(BrokerInput::LookedUp { epoch, index, seq, is_there: false }.into())
            }
            effect @ (Effect::Books(_)
            | Effect::Rows(_)
            | Effect::Marking(_)
            | Effect::Scan(_)
            | Effect::Replay(_)
            | Effect::Claims(_)
            | Effect::Broker(_)
            | Effect::Confirm(_)
            | Effect::Measure(_)
            | Effect::Tell(_)
            | Effect::End(_)) => {
                let fails = self.rng.random_bool(0.2);
                let outcome = match fails && self.rng.random_bool(0.5) {
                    true => None,
                    false => self.execute(effect),
                };
                if fails {
                    self.ends = Some(End::ClaimLost);
                }
                outcome.filter(|_| !fails)
            }
        }
    }

    /// As the statement: each aggregate is tried once, the oldest first.
    fn claim(&mut self, claim: ClaimId) -> ClaimsInput {
        let unmarked = self.table.visible();
        let due = |id: &u128| self.claiming.due.get(id).copied().unwrap_or_default();
        let waits: HashSet<u8> =
            unmarked.iter().filter(|id| due(id) > self.now).map(|id| self.keys[id]).collect();
        for key in unmarked.iter().map(|id| self.keys[id]).filter(|key| !waits.contains(key)) {
            self.claiming.locks.entry(key).or_insert(claim);
        }
        let is_ours = |id: &&u128| self.claiming.locks.get(&self.keys[*id]) == Some(&claim);
        let rows = unmarked.iter().filter(is_ours).take(BATCH);
        let rows: Vec<Outgoing> = rows.map(|id| self.claimed(*id)).collect();
        match rows.is_empty() {
            true => self.release_claim(claim),
            false => _ = self.claiming.heard.insert(claim, self.now),
        }
        ClaimsInput::Claimed(rows)
    }

    fn claimed(&self, id: u128) -> Outgoing {
        let due = self.claiming.due.get(&id).copied().unwrap_or_default();
        let outgoing = self.scanned(id);
        let tried = Tried { pause: due.saturating_sub(self.now), ..outgoing.tried };
        Outgoing { tried, ..outgoing }
    }

    /// Whether the broker still knows the id of the message at this place.
    pub(super) fn is_remembered(&self, at: usize) -> bool {
        !self.faults.claims || self.now < self.stream[at].at + DUPLICATE_WINDOW
    }

    /// Of what is stored in poll mode: once, and in its aggregate's order.
    pub(super) fn check_order(&mut self, id: u128) {
        if !self.faults.claims {
            return;
        }
        if let Some(at) = self.stream.iter().rposition(|it| it.id == Some(id)) {
            // Nobody knows of it: so many messages came behind it.
            let behind = (self.stream.len() - at) as u64;
            assert!(behind > REACH, "{id} is stored twice");
            self.claiming.doubled += 1;
            self.may_rescan = true;
            self.may_repeat.insert(id);
        } else {
            let is_later = |other: &u128| *other > id && self.keys[other] == self.keys[&id];
            let later = self.stream.iter().filter_map(|it| it.id).find(is_later);
            assert_eq!(later, None, "{id} is stored behind a later one of its aggregate");
        }
    }

    /// Faults end; everything that can be done is done.
    pub(super) fn heal_nodes(&mut self) {
        (self.claiming.is_healed, self.is_picky) = (true, false);
        let now = self.now;
        self.relay.stalled_until = now;
        self.others.iter_mut().for_each(|it| it.stalled_until = now);
        while !self.claiming.locks.is_empty() || !self.table.rows.values().all(|it| it.is_marked) {
            self.step();
            let is_soon = self.now - now < Duration::from_mins(60);
            assert!(is_soon, "rows are left: {:?}", self.table.rows);
        }
    }
}

/// Poll mode is keyed, and statements fail.
pub(super) const POLL: Faults = Faults { mode: Mode::Keyed, claims: true, failing: true, ..CALM };

fn run(faults: Faults) {
    let (mut stored, mut doubled) = (0, 0);
    for seed in seeds(8) {
        let mut world = World::new(seed, faults);
        for _ in 0..STEPS {
            world.step();
        }
        world.heal();
        world.check_end();
        (stored, doubled) = (stored + world.stream.len(), doubled + world.claiming.doubled);
    }
    assert!(doubled * 100 <= stored, "{doubled} of {stored} were stored again");
}

#[test]
fn nodes_that_crash_stall_and_lose_statements_publish_every_claimed_row_once_and_in_order() {
    run(Faults { poison: true, unwelcome: true, ..POLL });
}

#[test]
fn nodes_park_what_the_stream_never_takes_and_leave_out_what_a_route_drops() {
    run(Faults { poison: true, ..POLL });
    run(Faults { poison: true, deletes: true, ..POLL });
}

#[test]
fn answers_of_others_change_nothing_of_what_nodes_publish() {
    run(Faults { strangers: true, ..POLL });
    run(Faults { strangers: true, poison: true, unwelcome: true, ..POLL });
}
