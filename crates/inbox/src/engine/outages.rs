//! Random outages of a service, and events that bring it down, 100 seeds; `SEEDS=n` plays more;
//! `REPLAY_SEED=n` repeats one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::backoff::Backoff;
use super::breaker::{Breaker, Trouble, TroubleKind};
use super::lanes::{Ending, Item, Lanes, Path};
use super::seeds::seeds;
use super::simulation::delivered;

const SEEDS: u64 = 100;
const EVENTS: u64 = 120;
const AGGREGATES: u64 = 20;
const ATTEMPTS_MAX: u32 = 5;
const LANES: usize = 6;

const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(20) };

struct World {
    random: StdRng,
    lanes: Lanes,
    breaker: Breaker,
    now: Instant,
    began: Instant,
    offered: u64,
    /// The service is away from the first to the second.
    outage: (Duration, Duration),
    poison: BTreeSet<u64>,
    /// At work, each with the time of its end and whether it is answered.
    busy: Vec<(Instant, bool, Item)>,
    attempts: BTreeMap<u64, u32>,
    done: Vec<u64>,
    dead: BTreeSet<u64>,
    calls_in_outage: u32,
    calls_of_poison: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut outage = (Duration::MAX, Duration::MAX);
        if !seed.is_multiple_of(3) {
            let begin = random.random_range(0..2000);
            let end = begin + random.random_range(0..120_000);
            outage = (Duration::from_millis(begin), Duration::from_millis(end));
        }
        let poison = match seed % 2 {
            // Not all are in time to leave one that can be the control.
            0 => {
                (0..random.random_range(1..4)).map(|_| random.random_range(1..EVENTS / 2)).collect()
            }
            _ => BTreeSet::new(),
        };
        Self {
            random,
            lanes: Lanes::default(),
            breaker: Breaker::new(BACKOFF),
            now: Instant::now(),
            began: Instant::now(),
            offered: 0,
            outage,
            poison,
            busy: Vec::new(),
            attempts: BTreeMap::new(),
            done: Vec::new(),
            dead: BTreeSet::new(),
            calls_in_outage: 0,
            calls_of_poison: 0,
        }
    }

    fn is_away(&self, at: Instant) -> bool {
        let at = at - self.began;
        self.outage.0 <= at && at < self.outage.1
    }

    fn step(&mut self) {
        // There is always another event some time.
        if self.random.random_bool(0.2) || self.lanes.held() == 0 {
            self.offered += 1;
            self.lanes.offer(delivered(self.offered, AGGREGATES, None, Path::Careful), self.now);
        }
        self.lanes.advance(self.now);
        loop {
            let free = LANES - self.busy.len();
            let taken = self.breaker.take(&mut self.lanes, free, self.now);
            if taken.is_empty() {
                break;
            }
            taken.into_iter().for_each(|item| self.begin(item));
        }
        self.now += Duration::from_millis(self.random.random_range(1..60));
        let (ended, busy) = std::mem::take(&mut self.busy)
            .into_iter()
            .partition::<Vec<_>, _>(|(end, ..)| *end <= self.now);
        self.busy = busy;
        for (_, answered, item) in ended {
            self.end(&item, answered);
        }
    }

    fn begin(&mut self, item: Item) {
        let (id, seq) = (item.id(), item.id().seq);
        if let Some(reason) = &item.convicted {
            assert_eq!(&**reason, "503");
            let attempts = self.attempts.entry(seq).or_default();
            *attempts += 1;
            let parked = *attempts >= ATTEMPTS_MAX;
            let after = Duration::from_millis(self.random.random_range(0..1000 << *attempts));
            let ending = if parked {
                self.dead.insert(seq);
                Ending::Resolved
            } else {
                Ending::Again { after, path: Path::Careful }
            };
            self.lanes.ended(id, ending, self.now);
            self.breaker.not_asked(id, self.now);
            if parked {
                self.breaker.forget(id);
            }
            return;
        }
        let takes = Duration::from_millis(self.random.random_range(1..200));
        let poison = self.poison.contains(&seq);
        self.calls_of_poison += u32::from(poison);
        self.calls_in_outage += u32::from(self.is_away(self.now));
        let answered = !self.is_away(self.now) && !self.is_away(self.now + takes) && !poison;
        self.busy.push((self.now + takes, answered, item));
    }

    fn end(&mut self, item: &Item, answered: bool) {
        let (id, seq) = (item.id(), item.id().seq);
        if answered {
            self.lanes.ended(id, Ending::Resolved, self.now);
            self.done.push(seq);
            if let Some(convicted) = self.breaker.answered(id) {
                self.lanes.convict(convicted.id, &convicted.reason, self.now);
            }
            self.breaker.forget(id);
        } else {
            let ending = Ending::Again { after: Duration::ZERO, path: Path::Careful };
            self.lanes.ended(id, ending, self.now);
            let trouble = Trouble { kind: TroubleKind::Away, reason: "503".into(), after: None };
            self.breaker.failed(id, trouble, self.now, self.random.random());
        }
    }
}

#[test]
fn an_outage_costs_no_attempt_and_an_event_that_brings_the_service_down_ends() {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed);
        let mut steps = 0;
        let ended = |world: &World| {
            let (done, dead) = (world.done.len(), world.dead.len());
            world.offered >= EVENTS && (done + dead) as u64 == world.offered
        };
        while !ended(&world) {
            world.step();
            steps += 1;
            assert!(steps < 50_000, "stuck: {:?}", world.breaker);
            if world.dead == world.poison && world.offered > EVENTS {
                // Enough: the rest has its end now.
                break;
            }
        }
        assert_eq!(world.dead, world.poison, "who is to blame, and nobody else");
        let blamed: BTreeSet<u64> = world.attempts.keys().copied().collect();
        assert_eq!(blamed, world.poison, "no attempt of anybody else counts");
        // In an outage one probe after each pause, beside those that were under way.
        assert!(world.calls_in_outage < 60, "{} calls", world.calls_in_outage);
        for aggregate in 0..AGGREGATES {
            let of = |seq: &&u64| *seq % AGGREGATES == aggregate;
            let order: Vec<&u64> = world.done.iter().filter(of).collect();
            assert!(order.is_sorted(), "out of order: {order:?}");
        }
    }
}
