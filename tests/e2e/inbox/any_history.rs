//! History goes back, at random: copies of the inbox's database, of the broker, of the stream alone
//! and of its consumers alone are put back while everything else goes on. The ledger is the stream:
//! what it has at the end has its effect. `EXAMPLES=n` plays more seeds, `REPLAY_SEED=n` one again.

use std::collections::{BTreeMap, BTreeSet};

use lab::NatsOptions;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use support::{DEADLINE, TestEnvOptions, until};
use uuid::Uuid;

use super::database_gone_back::DatabaseCopy;
use super::{Inbox, Worker};
use crate::gone_back::StoreCopy;

const SEEDS: u64 = 2;
const STEPS: usize = 9;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|it| it.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

struct History {
    inbox: Inbox,
    random: StdRng,
    worker: Option<Worker>,
    database: Option<DatabaseCopy>,
    store: Option<StoreCopy>,
    published: i64,
}

impl History {
    async fn begin(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let version = if random.random() { "2.11" } else { "2.15" };
        let nats = NatsOptions { version: Some(version.into()), ..NatsOptions::default() };
        let mut inbox = Inbox::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
        inbox.env.setup().await;
        let mode = if random.random() { "transactional" } else { "leased" };
        inbox.set("WORKER_MODE", mode);
        inbox.set("WORKER_LEASE_MS", "2000");
        eprintln!("seed {seed}: nats-server {version}, {mode}");
        Self { inbox, random, worker: None, database: None, store: None, published: 0 }
    }

    async fn begin_worker(&mut self) {
        let worker = self.inbox.worker();
        worker.announce("");
        worker.wait_active().await;
        // A database from before that knows nothing of the consumer: what it handled is not repaired.
        let begun = "SELECT count(*) FROM inbox_roles WHERE handled_to IS NOT NULL";
        let env = &self.inbox.env;
        until(DEADLINE, "it has begun", async || env.query::<i64>(begun).await > 0).await;
        self.worker = Some(worker);
    }

    async fn publish(&mut self) {
        let n = self.random.random_range(1..80);
        // Some are under way when the next thing happens.
        let orders = json!({ "sleep_ms": self.random.random_range(0..3) });
        self.inbox.publish_many(self.published, n, &orders).await;
        self.published += n;
        eprintln!("  published {n}");
    }

    async fn step(&mut self) {
        let env = &mut self.inbox.env;
        match self.random.random_range(0..10) {
            0..=2 => self.publish().await,
            3 => {
                eprintln!("  everything is handled");
                if self.worker.is_none() {
                    self.begin_worker().await;
                }
                self.inbox.wait_acked().await;
            }
            4 => match self.worker.take() {
                Some(worker) => {
                    eprintln!("  the worker is killed");
                    worker.kill9().await;
                }
                None => self.begin_worker().await,
            },
            5..=6 => match self.database.take() {
                None => {
                    eprintln!("  a copy of the database");
                    self.database = Some(DatabaseCopy::take(env).await);
                }
                Some(copied) => {
                    eprintln!("  the database is put back");
                    copied.put_back(env).await;
                }
            },
            _ => match self.store.take() {
                None => {
                    eprintln!("  a copy of the broker's store");
                    self.store = Some(StoreCopy::take(env).await);
                }
                Some(copied) => match self.random.random_range(0..3) {
                    0 => {
                        eprintln!("  the broker is put back");
                        copied.put_back(env).await;
                    }
                    1 => {
                        eprintln!("  the stream is put back");
                        copied.put_stream_back(env).await;
                    }
                    _ => {
                        eprintln!("  the consumers are put back");
                        copied.put_consumers_back(env).await;
                    }
                },
            },
        }
    }

    /// Everything that the stream has has its effect.
    async fn ends(mut self) {
        if self.worker.is_none() {
            self.begin_worker().await;
        }
        self.publish().await;
        let stored: BTreeSet<Uuid> = self.inbox.env.stored().await.iter().map(|it| it.id).collect();
        until(DEADLINE, "each event of the stream has its effect", async || {
            stored.is_subset(&self.effects().await.keys().copied().collect())
        })
        .await;
        self.inbox.wait_acked().await;
        let all = ["wait", "--all", "--processed-by", "worker", "--timeout", "5m"];
        self.inbox.env.ends_with(0, &all).await;
        let twice: Vec<_> = self.effects().await.into_iter().filter(|(_, n)| *n > 1).collect();
        assert!(twice.is_empty(), "handled twice although the record was there: {twice:?}");
        self.worker.expect("a worker").stop().await;
    }

    async fn effects(&self) -> BTreeMap<Uuid, i64> {
        // An effect under a lease without a record may come twice: the worker was killed between.
        let sql = "SELECT event_id, count(*) FILTER (WHERE EXISTS (SELECT FROM inbox_messages
                WHERE message_id = event_id AND status = 'PROCESSED' AND attempts = 1))
            FROM effects GROUP BY event_id";
        let rows = self.inbox.env.client().await.query(sql, &[]).await.expect(sql);
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

mod long {
    use super::*;

    // proves: G-REWIND-7
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_is_put_back_each_event_of_the_stream_has_its_effect() {
        let seeds = match given("REPLAY_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..given("EXAMPLES").unwrap_or(SEEDS),
        };
        for seed in seeds {
            let mut history = History::begin(seed).await;
            history.begin_worker().await;
            for _ in 0..STEPS {
                history.step().await;
            }
            history.ends().await;
        }
    }
}
