//! Everything fails, in no particular order.

use std::time::Duration;

use lab::Direction;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{Relay, TestEnv};

/// The relay that is active, and the one that stands by.
type Relays = [Relay; 2];

/// Lets one thing fail. What is slow or swallowed stays so until something restores the network.
async fn fault(env: &mut TestEnv, relays: &mut Relays, kind: u32) {
    eprintln!("fault {kind}");
    match kind {
        0 => {
            relays[0].kill9().await;
            relays[0] = env.relay();
            relays.reverse();
        }
        1 => {
            env.nats.kill().await.expect("kill NATS");
            env.nats.start_again().await.expect("start NATS");
        }
        2 => {
            env.postgres.kill().await.expect("kill PostgreSQL");
            env.postgres.start_again().await.expect("start PostgreSQL");
        }
        3 => env.to_nats().blackhole(Direction::ToClient),
        4 => {
            env.to_postgres().cut().await;
            env.to_postgres().restore().await.expect("restore the network");
        }
        5 => env.to_nats().set_delay(Duration::from_millis(20)),
        6 => {
            relays[0].pause();
            tokio::time::sleep(Duration::from_millis(200)).await;
            relays[0].resume();
        }
        _ => {
            env.to_nats().cut().await;
            env.to_nats().restore().await.expect("restore the network");
        }
    }
}

mod long {
    use super::*;

    /// `REPLAY_SEED=n` chooses other faults.
    // proves: G-LOSS-2
    #[tokio::test(flavor = "multi_thread")]
    async fn faults_of_all_kinds_one_upon_the_other_cost_nothing() {
        let seed = std::env::var("REPLAY_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(51);
        let mut env = TestEnv::proxied().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "500ms");
        env.setup().await;
        let mut relays = [env.relay(), env.relay()];
        let load = env.load(seed, 1000.0).await;
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..20 {
            fault(&mut env, &mut relays, random.random_range(0..8)).await;
            // The next fault meets a relay that recovers as often as one that has recovered.
            tokio::time::sleep(Duration::from_millis(random.random_range(0..600))).await;
        }
        env.to_nats().restore().await.expect("restore the network");
        env.to_postgres().restore().await.expect("restore the network");
        env.finish(load).await;
    }
}
