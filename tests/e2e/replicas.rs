//! A stream of three replicas, whose servers hand over, die and lose each other under load.
//!
//! In fenced mode the whole stream must be in commit order, in keyed mode each aggregate: the
//! ledger tells the one from the other by the messages.

use lab::{NatsCluster, Proxy};
use support::{Load, Relay, TestEnv};

const STREAM: &str = "OUTBOX";

/// Several elections' worth of events.
const RATE: u32 = 500;

struct Scene {
    env: TestEnv<NatsCluster>,
    relay: Relay,
    load: Load,
}

impl Scene {
    /// In fenced mode the broker forgets ids at once: only what the stream holds can prevent
    /// duplicates. Keyed mode needs them: a paused server wakes up with messages that another one
    /// has stored meanwhile, and passes them on.
    async fn begin(mode: &str, seed: u64) -> Self {
        let mut env = TestEnv::replicated().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
        if mode == "fenced" {
            env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        }
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        let load = env.load(seed, RATE.into()).await;
        load.wait_committed(200).await;
        Self { env, relay, load }
    }

    async fn leader(&self) -> usize {
        self.env.nats.leader(STREAM).await.expect("the stream has a leader")
    }

    /// Waits until the servers other than `gone` have what is committed from now on.
    async fn wait_stored_without(&self, gone: usize) {
        self.load.wait_committed(RATE.into()).await;
        let goal = self.load.committed();
        let rest = self.env.nats.node((gone + 1) % 3).jetstream().await.expect("connect to NATS");
        let what = format!("the stream holds {goal} messages");
        support::until(support::DEADLINE, &what, async || {
            let stream = rest.get_stream(STREAM).await;
            stream.is_ok_and(|stream| stream.cached_info().state.messages >= goal)
        })
        .await;
    }

    async fn end(self) {
        self.load.wait_committed(200).await;
        self.env.nats.wait_current(STREAM).await.expect("all replicas are back");
        let tally = self.env.finish(self.load).await;
        assert!(tally.committed > 500, "{tally}");
        assert!(self.relay.exited().is_none(), "the relay is alive");
    }
}

async fn leaders_step_down(mode: &str, seed: u64) {
    let scene = Scene::begin(mode, seed).await;
    for _ in 0..8 {
        scene.env.nats.step_down(STREAM).await.expect("the leader steps down");
        scene.load.wait_committed((RATE / 2).into()).await;
    }
    scene.end().await;
}

async fn leader_is_killed(mode: &str, seed: u64) {
    let mut scene = Scene::begin(mode, seed).await;
    let leader = scene.leader().await;
    scene.env.nats.node_mut(leader).kill().await.expect("kill the leader");
    scene.wait_stored_without(leader).await;
    scene.env.nats.node_mut(leader).start_again().await.expect("start it again");
    scene.end().await;
}

/// It believes for a while that it leads; the other two elect another one, and go on.
async fn leader_is_isolated(mode: &str, seed: u64) {
    let mut scene = Scene::begin(mode, seed).await;
    let leader = scene.leader().await;
    scene.env.nats.isolate(leader).await;
    scene.wait_stored_without(leader).await;
    scene.env.nats.rejoin().await.expect("end the isolation");
    scene.end().await;
}

async fn leader_is_paused(mode: &str, seed: u64) {
    let mut scene = Scene::begin(mode, seed).await;
    let leader = scene.leader().await;
    scene.env.nats.node_mut(leader).pause().expect("pause the leader");
    scene.load.wait_committed((RATE * 12).into()).await;
    scene.env.nats.node_mut(leader).resume().expect("wake it");
    scene.end().await;
}

// proves: G-ONCE-4
#[tokio::test(flavor = "multi_thread")]
async fn leaders_that_step_down_cost_nothing_in_fenced_mode() {
    leaders_step_down("fenced", 81).await;
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn leaders_that_step_down_cost_nothing_in_keyed_mode() {
        leaders_step_down("keyed", 82).await;
    }

    // proves: G-ONCE-4
    #[tokio::test(flavor = "multi_thread")]
    async fn a_killed_leader_costs_nothing_in_fenced_mode() {
        leader_is_killed("fenced", 83).await;
    }

    // proves: G-ONCE-4
    #[tokio::test(flavor = "multi_thread")]
    async fn a_killed_leader_costs_nothing_in_keyed_mode() {
        leader_is_killed("keyed", 84).await;
    }

    // proves: G-ONCE-4
    #[tokio::test(flavor = "multi_thread")]
    async fn an_isolated_leader_costs_nothing_in_fenced_mode() {
        leader_is_isolated("fenced", 85).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_isolated_leader_costs_nothing_in_keyed_mode() {
        leader_is_isolated("keyed", 86).await;
    }

    /// It wakes with messages that its successor has stored long since.
    // proves: G-ONCE-4
    #[tokio::test(flavor = "multi_thread")]
    async fn a_leader_that_was_paused_costs_nothing_in_fenced_mode() {
        leader_is_paused("fenced", 87).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_leader_that_was_paused_costs_nothing_in_keyed_mode() {
        leader_is_paused("keyed", 88).await;
    }

    /// The server that the relay is connected to answers the client, and can do nothing.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_whose_server_is_cut_off_goes_to_another() {
        let mut env = TestEnv::replicated().await;
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.setup().await;
        let leader = env.nats.leader(STREAM).await.expect("the stream has a leader");
        let mut others = Vec::new();
        for node in (0..3).filter(|node| *node != leader) {
            let addr = ([127, 0, 0, 1], env.nats.node(node).port()).into();
            let mut proxy = Proxy::start(addr).await.expect("start a proxy");
            proxy.cut().await;
            others.push(proxy);
        }
        let urls = [
            env.nats.node(leader).url(),
            format!("nats://{}", others[0].addr()),
            format!("nats://{}", others[1].addr()),
        ];
        env.set("NATS_URL", &urls.join(","));
        let relay = env.relay();
        relay.wait_active().await;
        for proxy in &mut others {
            proxy.restore().await.expect("open the way");
        }
        let load = env.load(89, RATE.into()).await;
        load.wait_committed(200).await;

        env.nats.isolate(leader).await;
        let mut scene = Scene { env, relay, load };
        scene.wait_stored_without(leader).await;
        scene.env.nats.rejoin().await.expect("end the isolation");
        scene.end().await;
    }
}
