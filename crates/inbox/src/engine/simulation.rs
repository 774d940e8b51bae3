//! Random deliveries, ends and pauses, 100 seeds; `SEEDS=n` plays more;
//! `REPLAY_SEED=n` repeats one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use jiff::Timestamp;
use lab::seeds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::lanes::{Delivered, Ending, Item, Lanes, Load, Offered, Path};
use crate::message::{Message, MessageId, Origin};

const SEEDS: u64 = 100;
const EVENTS: u64 = 60;

pub(crate) fn message(seq: u64, aggregates: u64) -> Arc<Message> {
    let mut headers = HeaderMap::new();
    let aggregate = format!("o-{}", seq % aggregates);
    // Now and then an id comes twice, as it does beyond the broker's duplicate window.
    let id = Uuid::from_u128(u128::from(if seq.is_multiple_of(17) { seq - 1 } else { seq }));
    for (name, value) in [
        ("Nats-Msg-Id", &*id.to_string()),
        ("Event-Type", "OrderPlaced"),
        ("Aggregate-Type", "order"),
        ("Aggregate-Id", &aggregate),
        ("Occurred-At", "2026-01-02T03:04:05Z"),
    ] {
        headers.append(name, value);
    }
    let subject = "outbox.order.OrderPlaced".to_owned();
    let time: Timestamp = "2026-01-02T03:04:06Z".parse().expect("a time");
    let origin = Origin { stream: "S".into(), created: None };
    Arc::new(Message::new(subject, headers, Bytes::from_static(b"{}"), &origin, seq, time))
}

pub(super) fn delivered(
    seq: u64,
    aggregates: u64,
    reply: Option<Subject>,
    path: Path,
) -> Delivered {
    Delivered { message: message(seq, aggregates), reply, path }
}

pub(super) fn id(seq: u64) -> MessageId {
    message(seq, 1).id()
}

struct World {
    random: StdRng,
    lanes: Lanes,
    now: Instant,
    aggregates: u64,
    /// Delivered so far.
    offered: u64,
    /// Taken, with their job.
    busy: Vec<(u32, Item)>,
    jobs: u32,
    /// The newest way to acknowledge each.
    replies: HashMap<u64, Subject>,
    /// By aggregate, what was resolved, in that order.
    resolved: HashMap<u64, Vec<u64>>,
    /// Not to be taken before.
    not_before: HashMap<u64, Instant>,
    /// Being read from the stream.
    loads: Vec<Load>,
}

impl World {
    fn step(&mut self) {
        match self.random.random_range(0..11) {
            0..=2 if self.offered < EVENTS => {
                self.offered += 1;
                self.deliver(self.offered);
            }
            // Once more, or late: it may have been resolved meanwhile, then it is new here.
            3 if self.offered > 0 => {
                let seq = self.random.random_range(1..=self.offered);
                let held = self.resolved.get(&(seq % self.aggregates));
                if !held.is_some_and(|resolved| resolved.contains(&seq)) {
                    self.deliver(seq);
                }
            }
            4..=6 => self.take(),
            7..=8 if !self.busy.is_empty() => self.end(),
            9 => {
                self.lanes.trim(self.random.random_range(1..4), self.now);
                self.loads.extend(self.lanes.next_load());
                self.load();
            }
            _ => {
                self.now += Duration::from_millis(self.random.random_range(0..500));
                self.lanes.advance(self.now);
            }
        }
    }

    fn deliver(&mut self, seq: u64) {
        let path = if self.random.random_bool(0.8) { Path::Fast } else { Path::Careful };
        let reply = self.random.random_bool(0.8).then(|| {
            let reply = Subject::from(format!("ack.{seq}.{}", self.random.random::<u32>()));
            self.replies.insert(seq, reply.clone());
            reply
        });
        let message = message(seq, self.aggregates);
        self.lanes.offer(Delivered { message, reply, path }, self.now);
    }

    /// What was left is read, all or some of it.
    fn load(&mut self) {
        if self.loads.is_empty() || self.random.random_bool(0.5) {
            return;
        }
        let Load { lane, seqs } = self.loads.remove(self.random.random_range(0..self.loads.len()));
        let count = self.random.random_range(0..=seqs.len());
        for seq in seqs.into_iter().take(count) {
            let left = self.lanes.left();
            let reply = Subject::from(format!("ack.{seq}.read"));
            let message = message(seq, self.aggregates);
            self.lanes.loaded(lane, seq, Some((message, reply.clone())), self.now);
            if self.lanes.left() < left {
                self.replies.insert(seq, reply);
            }
        }
        self.lanes.load_ended(lane, self.now);
    }

    fn take(&mut self) {
        let max = self.random.random_range(0..8);
        let taken = self.lanes.take(max, |_| true);
        assert!(taken.len() <= max);
        self.jobs += 1;
        let ids: BTreeSet<Uuid> = taken.iter().map(|it| it.message.key.id).collect();
        assert_eq!(ids.len(), taken.len(), "no id twice");
        let mut at_work = self.busy.iter().map(|(_, it)| it.message.key.id);
        assert!(!at_work.any(|it| ids.contains(&it)), "an id that is at work");
        assert!(taken.iter().all(|it| it.path == taken[0].path), "handled in one way");
        for item in taken {
            let lane = |it: &Item| it.id().seq % self.aggregates;
            for (job, other) in self.busy.iter().filter(|(_, it)| lane(it) == lane(&item)) {
                assert_eq!(*job, self.jobs, "another of its aggregate is at work");
                assert_eq!(item.path, Path::Fast, "only fast ones come in rows");
                assert!(other.id() < item.id(), "rows are in order");
            }
            assert!(item.path != Path::Alone || self.busy.is_empty(), "it has to be alone");
            assert!(
                self.not_before.get(&item.id().seq).is_none_or(|it| *it <= self.now),
                "too early"
            );
            self.busy.push((self.jobs, item));
        }
        assert!(self.busy.iter().all(|(_, it)| it.path != Path::Alone) || self.busy.len() == 1);
    }

    /// A row ends from its front, as its transaction does; if one fails so do all behind it.
    fn end(&mut self) {
        let (job, _) = self.busy[self.random.random_range(0..self.busy.len())];
        let mut mine: Vec<Item> = Vec::new();
        self.busy.retain(|(of, item)| {
            let is_mine = *of == job;
            if is_mine {
                mine.push(item.clone());
            }
            !is_mine
        });
        let works = self.random.random_bool(0.6);
        for item in mine {
            let seq = item.id().seq;
            let after = Duration::from_millis(self.random.random_range(0..300));
            let path = [Path::Fast, Path::Careful, Path::Alone][self.random.random_range(0..3)];
            let ending = if works { Ending::Resolved } else { Ending::Again { after, path } };
            let reply = self.lanes.ended(item.id(), ending, self.now);
            if works {
                assert_eq!(reply, self.replies.remove(&seq), "the newest way to acknowledge");
                self.resolved.entry(seq % self.aggregates).or_default().push(seq);
            } else {
                self.not_before.insert(seq, self.now + after);
            }
        }
    }
}

// proves: G-EFFECT-2
#[test]
fn aggregates_stay_in_order_and_everything_has_its_end() {
    for seed in seeds(SEEDS) {
        let mut world = World {
            random: StdRng::seed_from_u64(seed),
            lanes: Lanes::default(),
            now: Instant::now(),
            aggregates: 1 + seed % 7,
            offered: 0,
            busy: Vec::new(),
            jobs: 0,
            replies: HashMap::new(),
            resolved: HashMap::new(),
            not_before: HashMap::new(),
            loads: Vec::new(),
        };
        let mut steps = 0;
        while world.offered < EVENTS || world.lanes.held() + world.lanes.left() > 0 {
            world.step();
            assert_eq!(world.lanes.busy(), world.busy.len());
            steps += 1;
            assert!(steps < 100_000, "stuck with {} held", world.lanes.held());
        }
        for resolved in world.resolved.values() {
            assert!(resolved.is_sorted(), "out of order: {resolved:?}");
        }
        let all: usize = world.resolved.values().map(Vec::len).sum();
        assert_eq!(all as u64, EVENTS);
        assert_eq!((world.lanes.len(), world.lanes.bytes()), (0, 0), "nothing is left behind");
        assert!(world.lanes.next_due().is_none());
    }
}

// proves: G-EFFECT-2
#[test]
fn of_an_aggregate_without_progress_only_the_first_few_events_are_held() {
    let now = Instant::now();
    let mut lanes = Lanes::default();
    for seq in 1..=1000 {
        let reply = Some(format!("ack.{seq}").into());
        assert_eq!(lanes.offer(delivered(seq, 1, reply, Path::Careful), now), Offered::Held);
    }
    assert!(lanes.trim(16, now).is_empty(), "nobody waits");
    let taken = lanes.take(1, |_| true);
    let again = Ending::Again { after: Duration::from_secs(60), path: Path::Careful };
    lanes.ended(taken[0].id(), again, now);
    let replies = lanes.trim(16, now);
    assert_eq!((replies.len(), lanes.held(), lanes.left()), (984, 16, 984));
    for seq in [1001, 1001, 500] {
        let offered = lanes.offer(delivered(seq, 1, None, Path::Fast), now);
        assert_eq!(offered, Offered::Left, "behind those that are left");
    }
    assert_eq!((lanes.held(), lanes.left()), (16, 985));
    assert_eq!(lanes.offer(delivered(7, 1, None, Path::Fast), now), Offered::Held);
    assert!(lanes.next_load().is_none(), "its turn has not come");

    let (mut now, mut done) = (now + Duration::from_secs(60), Vec::new());
    lanes.advance(now);
    while lanes.held() + lanes.left() > 0 {
        while let Some(Load { lane, seqs }) = lanes.next_load() {
            for seq in seqs {
                // One of them has been deleted from the stream.
                let found = (seq != 600).then(|| (message(seq, 1), "ack".into()));
                lanes.loaded(lane, seq, found, now);
            }
            lanes.load_ended(lane, now);
        }
        assert!(lanes.held() < 16 + 64);
        for item in lanes.take(64, |_| true) {
            assert!(item.path == Path::Careful || item.id().seq == 1001, "it may have been begun");
            lanes.ended(item.id(), Ending::Resolved, now);
            done.push(item.id().seq);
        }
        now += Duration::from_millis(1);
    }
    assert_eq!(done, (1..=1001).filter(|seq| *seq != 600).collect::<Vec<_>>());
    assert_eq!((lanes.len(), lanes.bytes()), (0, 0));
}

#[test]
fn what_is_released_is_forgotten_and_what_is_at_work_is_not() {
    let now = Instant::now();
    let mut lanes = Lanes::default();
    for seq in 1..=4 {
        lanes.offer(delivered(seq, 2, Some(format!("ack.{seq}").into()), Path::Careful), now);
    }
    let taken = lanes.take(1, |_| true);
    assert_eq!(lanes.release().len(), 3);
    assert_eq!((lanes.held(), lanes.busy()), (1, 1));
    assert_eq!(lanes.ended(taken[0].id(), Ending::Resolved, now).as_deref(), Some("ack.1"));
    assert_eq!((lanes.held(), lanes.len(), lanes.bytes()), (0, 0, 0));
}

/// An operator decided about it: its record says what is done.
#[test]
fn what_waits_for_a_time_is_told_with_what_waits_for_it_and_can_be_hastened() {
    let now = Instant::now();
    let mut lanes = Lanes::default();
    for seq in 1..=4 {
        lanes.offer(delivered(seq, 1, None, Path::Careful), now);
    }
    assert!(lanes.held_up().is_empty());
    let first = lanes.take(1, |_| true).remove(0);
    let again = Ending::Again { after: Duration::from_secs(60), path: Path::Careful };
    lanes.ended(first.id(), again, now);
    lanes.trim(2, now);
    let held_up = lanes.held_up();
    let told: Vec<_> = held_up.iter().map(|it| (it.event_id, it.waiting)).collect();
    assert_eq!(told, [(first.id().key.id, 3)], "two of them are left in the stream");
    assert_eq!(held_up[0].aggregate.as_deref(), Some("order:o-0"));
    lanes.hasten(id(2).key.id, now);
    assert!(lanes.take(1, |_| true).is_empty(), "that is not what is waited for");
    lanes.hasten(first.id().key.id, now);
    assert_eq!(lanes.take(1, |_| true)[0].id(), first.id());
    assert_eq!(lanes.held_up().len(), 1, "it is at work");
    lanes.ended(first.id(), Ending::Resolved, now);
    assert!(lanes.held_up().is_empty());
}
