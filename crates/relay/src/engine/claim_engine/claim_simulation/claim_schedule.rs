//! What the nodes have to hold, on seeded schedules.

use super::*;

#[test]
fn nodes_that_crash_stall_and_lose_statements_publish_every_claimed_row_once_and_in_order() {
    let (mut stored, mut doubled) = (0, 0);
    for seed in seeds(20) {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.heal();
        (stored, doubled) = (stored + world.stream.len(), doubled + world.doubled as usize);
    }
    assert!(doubled * 100 <= stored, "{doubled} of {stored} were stored again");
}
