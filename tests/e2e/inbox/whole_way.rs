//! From the order to its effect, while everything on the way is killed.

use std::time::Duration;

use async_nats::jetstream;
use lab::{Forger, Stranger};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, Relay, TestEnv, until};

use super::{Inbox, TABLES, Worker};

const KILLINGS: u32 = 12;

/// What is between an order and its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Postgres,
    Relay,
    Nats,
    Worker,
}

const LINKS: [Link; 4] = [Link::Postgres, Link::Relay, Link::Nats, Link::Worker];

/// The links, alive but for moments.
struct Chain {
    inbox: Inbox,
    relay: Relay,
    worker: Worker,
}

/// Others publish events that are none, acknowledge and terminate what the consumer was given, say that
/// the broker did, and answer in its place.
// proves: G-EFFECT-1
#[tokio::test(flavor = "multi_thread")]
async fn orders_have_one_effect_each_whatever_others_publish_anywhere() {
    let seed = std::env::var("REPLAY_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(17);
    eprintln!("REPLAY_SEED={seed}");
    let Chain { inbox, relay, worker } = Chain::forge().await;
    let client = inbox.env.nats.client().await.expect("connect to NATS");
    let mut forger = Forger::new(seed, "OUTBOX", false).everywhere("worker");
    let forge = move |reply: &str| forger.forge(reply);
    let stranger = Stranger::start(client, "outbox.>", forge).await.expect("subscribe");
    let load = inbox.env.load(seed, 300.0).await;
    load.wait_committed(1_000).await;
    until(DEADLINE, "it answers", async || stranger.answered() > 500).await;
    drop(stranger);
    let committed = i64::try_from(inbox.env.finish(load).await.committed).expect("it fits");
    inbox.wait_count("effects", committed).await;
    inbox.wait_acked().await;
    inbox.assert_exact(committed).await;
    assert_eq!((relay.exited(), worker.exited()), (None, None));
}

impl Chain {
    async fn forge() -> Self {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "500ms");
        env.setup().await;
        let mut client = env.client().await;
        inbox::create_tables(&mut client, "public").await.expect("create the tables");
        env.execute(TABLES).await;
        let jetstream = jetstream::new(env.nats.client().await.expect("connect to NATS"));
        let variables = vec![
            ("DATABASE_URL".to_owned(), env.postgres.url("postgres")),
            ("NATS_URL".to_owned(), env.nats.url()),
            ("WORKER_ACK_WAIT_MS".to_owned(), "1000".to_owned()),
            // What a killed worker had claimed waits for so long.
            ("WORKER_LEASE_MS".to_owned(), "2000".to_owned()),
        ];
        let relay = env.relay();
        let inbox = Inbox { env, jetstream, variables, partitions: None };
        Self { worker: inbox.worker(), relay, inbox }
    }

    /// Kills one or more links, and replaces them a moment later.
    async fn kill_some(&mut self, random: &mut StdRng) {
        let mut victims = LINKS;
        victims.shuffle(random);
        let victims = &victims[..random.random_range(1..=LINKS.len())];
        eprintln!("killing {victims:?}");
        for victim in victims {
            self.kill(*victim).await;
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        // In the order of the chain: the worker does not start without a database.
        for link in LINKS.iter().filter(|it| victims.contains(it)) {
            self.replace(*link).await;
        }
    }

    async fn kill(&mut self, link: Link) {
        let env = &mut self.inbox.env;
        match link {
            Link::Postgres => env.postgres.kill().await.expect("kill PostgreSQL"),
            Link::Relay => self.relay.kill9().await,
            Link::Nats => env.nats.kill().await.expect("kill NATS"),
            Link::Worker => self.worker.kill9().await,
        }
    }

    async fn replace(&mut self, link: Link) {
        let env = &mut self.inbox.env;
        match link {
            Link::Postgres => env.postgres.start_again().await.expect("start PostgreSQL"),
            Link::Relay => self.relay = env.relay(),
            Link::Nats => env.nats.start_again().await.expect("start NATS"),
            Link::Worker => self.worker = self.inbox.worker(),
        }
    }
}

mod long {
    use super::*;

    /// `REPLAY_SEED=n` chooses other moments and victims.
    // proves: G-EFFECT-1
    #[tokio::test(flavor = "multi_thread")]
    async fn orders_have_one_effect_each_whatever_is_killed_on_the_way() {
        let seed = std::env::var("REPLAY_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(17);
        eprintln!("REPLAY_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut chain = Chain::forge().await;
        let load = chain.inbox.env.load(seed, 500.0).await;
        for _ in 0..KILLINGS {
            // The next killing meets a chain that recovers as often as one that has recovered.
            tokio::time::sleep(Duration::from_millis(random.random_range(0..900))).await;
            chain.kill_some(&mut random).await;
        }
        let Chain { inbox, relay: _relay, worker: _worker } = chain;
        let committed = i64::try_from(inbox.env.finish(load).await.committed).expect("it fits");
        inbox.wait_count("effects", committed).await;
        inbox.wait_acked().await;
        inbox.assert_exact(committed).await;
        assert_eq!(inbox.count("inbox_dead_letter").await, 0, "dead letters");
        let orders = inbox.count("orders").await;
        let affected = "(SELECT DISTINCT payload ->> 'order' FROM outbox_events
        JOIN effects ON event_id = id) AS t";
        assert_eq!(inbox.count(affected).await, orders, "orders with effects");
        eprintln!("{orders} orders, {committed} events, {committed} effects");
    }
}
