//! A schedule that failed once, and what all of them rely on.

use std::time::Duration;

use rand::RngExt;

use super::record_model::LEASE;
use super::{CALM, Mix, World};

impl World {
    fn play_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
    }

    /// How long it took, and what would be drawn next.
    fn play_all(seed: u64, mix: &'static Mix) -> (Duration, u64) {
        let mut world = Self::new(seed, mix);
        world.play();
        (world.now - world.began, world.random.random())
    }
}

/// No event that takes longer than from one taking to the next would have its end.
#[test]
fn two_workers_that_ended_each_others_connections_do_not_go_on_taking_the_role() {
    let mut world = World::new(0, &CALM);
    world.play_for(2 * LEASE);
    for _ in 0..2 {
        let now = world.now;
        let active = world.workers.iter_mut().find(|it| it.is_active(now));
        active.expect("one has the role").stalled_until = now + 2 * LEASE;
        world.play_for(4 * LEASE);
    }
    let tokens = |world: &World| world.workers.each_ref().map(|it| it.token);
    let before = tokens(&world);
    world.play_for(Duration::from_mins(1));
    assert_eq!(tokens(&world), before, "nobody was stopped, and the role was taken");
}

/// Otherwise `REPLAY_SEED` would not repeat what failed.
#[test]
fn a_seed_is_always_the_same_schedule() {
    static MIX: Mix = Mix {
        statements: 0.04,
        lost: 0.05,
        away: true,
        outage: true,
        crashes: true,
        stalls: true,
        stops: true,
        pauses: true,
        requeues: true,
        slow_commits: true,
        large: true,
        held_max: 12,
        unacked_max: 25,
        ..CALM
    };
    for seed in 0..20 {
        let [first, second] = [0, 1].map(|_| World::play_all(seed, &MIX));
        assert_eq!(first, second, "seed {seed}");
    }
}
