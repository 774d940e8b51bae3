//! Everything fails, in no particular order.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{Relay, Rig};
use testbed::Direction;

/// The relay that is active, and the one that stands by.
type Relays = [Relay; 2];

/// R-REL-02, R-REL-03, R-REL-05, R-REL-06, R-REL-13. `REPLAY_SEED=n` chooses other faults.
// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_all_kinds_one_upon_the_other_cost_nothing() {
    let seed = std::env::var("REPLAY_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(51);
    let mut rig = Rig::proxied().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "500ms");
    rig.setup().await;
    let mut relays = [rig.relay(), rig.relay()];
    let load = rig.load(seed, 1000.0).await;
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..20 {
        fault(&mut rig, &mut relays, random.random_range(0..8)).await;
        // The next fault meets a relay that recovers as often as one that has recovered.
        tokio::time::sleep(Duration::from_millis(random.random_range(0..600))).await;
    }
    rig.to_nats().restore().await.expect("restore the network");
    rig.to_postgres().restore().await.expect("restore the network");
    rig.finish(load).await;
}

/// Lets one thing fail. What is slow or swallowed stays so until something restores the network.
async fn fault(rig: &mut Rig, relays: &mut Relays, kind: u32) {
    eprintln!("fault {kind}");
    match kind {
        0 => {
            relays[0].kill9().await;
            relays[0] = rig.relay();
            relays.reverse();
        }
        1 => {
            rig.nats.kill().await.expect("kill NATS");
            rig.nats.start_again().await.expect("start NATS");
        }
        2 => {
            rig.postgres.kill().await.expect("kill PostgreSQL");
            rig.postgres.start_again().await.expect("start PostgreSQL");
        }
        3 => rig.to_nats().blackhole(Direction::ToClient),
        4 => {
            rig.to_postgres().cut().await;
            rig.to_postgres().restore().await.expect("restore the network");
        }
        5 => rig.to_nats().set_delay(Duration::from_millis(20)),
        6 => {
            relays[0].pause();
            tokio::time::sleep(Duration::from_millis(200)).await;
            relays[0].resume();
        }
        _ => {
            rig.to_nats().cut().await;
            rig.to_nats().restore().await.expect("restore the network");
        }
    }
}
