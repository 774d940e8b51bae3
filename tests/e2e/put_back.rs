//! History goes back, at random: copies of the stream's store and of the database are put back, each
//! alone, while the other goes on under load, and servers and the relay are killed. The ledger is a
//! table beside the outbox, which goes back with it. `EXAMPLES=n` plays more seeds, `REPLAY_SEED=n`
//! one again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, Relay, TestEnv, until};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::gone_back::{StoreCopy, others_publish};
use crate::inbox::database_gone_back::DatabaseCopy;

const STEPS: usize = 8;
const WRITERS: usize = 3;

const MIXES: [(&str, &str); 7] = [
    ("fenced", "row"),
    ("poll", "row"),
    ("keyed", "row"),
    ("fenced", "delete"),
    ("fenced", "lean"),
    ("keyed", "delete"),
    ("poll", "delete"),
];

/// Beside the outbox, in the same transaction.
const INSERT: &str = "
    WITH event AS (
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', $1, 'OrderPlaced', '{}' FROM generate_series(1, $2::INT)
        RETURNING id, aggregate_id
    )
    INSERT INTO committed (id, aggregate) SELECT id, aggregate_id FROM event";

/// Each of them writes one aggregate, so that its order is known.
struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(env: &TestEnv, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let write =
            |n| tokio::spawn(write(env.postgres.url("postgres"), n, seed, Arc::clone(&stop)));
        let writers = (0..WRITERS).map(write).collect();
        Self { stop, writers }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await.expect("a writer");
        }
    }
}

/// What fails is written again once the server is there.
async fn write(url: String, n: usize, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed + n as u64);
    let aggregate = format!("o-{n}");
    while !stop.load(Ordering::Relaxed) {
        if let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await
        {
            tokio::spawn(connection);
            while !stop.load(Ordering::Relaxed) {
                let events = *[1, 1, 1, 5].choose(&mut random).expect("some");
                if client.execute(INSERT, &[&aggregate, &events]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct History {
    env: TestEnv,
    random: StdRng,
    mode: &'static str,
    mark: &'static str,
    relay: Option<Relay>,
    load: Load,
    database: Option<DatabaseCopy>,
    store: Option<StoreCopy>,
    /// Messages of which relays said that the stream lost them, and that no row told of.
    told: u64,
    /// The stream went back under a relay that stores what it has in flight wherever the stream ends:
    /// before what was lost.
    in_flight_came_first: bool,
}

impl History {
    async fn begin(seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let (mode, mark) = MIXES[usize::try_from(seed).expect("few") % MIXES.len()];
        eprintln!("seed {seed}: {mode}, {mark}");
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.set("TAILPOST_RELAY__MARK", mark);
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "1s");
        env.setup().await;
        env.execute("CREATE TABLE committed (n BIGSERIAL PRIMARY KEY, id UUID, aggregate TEXT)")
            .await;
        let load = Load::start(&env, seed);
        let (database, store, relay) = (None, None, None);
        let (told, in_flight_came_first) = (0, false);
        let mut history = Self {
            env,
            random,
            mode,
            mark,
            relay,
            load,
            database,
            store,
            told,
            in_flight_came_first,
        };
        history.start();
        history
    }

    fn start(&mut self) {
        let relay = self.env.relay();
        relay.announce("");
        self.relay = Some(relay);
    }

    fn end(&mut self, relay: &Relay) {
        self.told += told(&relay.log());
    }

    async fn kill_or_start(&mut self) {
        let Some(relay) = self.relay.take() else {
            eprintln!("  a relay starts");
            return self.start();
        };
        let in_order = self.random.random_bool(0.3);
        eprintln!("  the relay is {}", if in_order { "stopped" } else { "killed" });
        match in_order {
            true => {
                relay.sigterm();
                relay.wait_exit(DEADLINE).await;
            }
            false => relay.kill9().await,
        }
        self.end(&relay);
    }

    async fn step(&mut self) {
        let pause = Duration::from_millis(self.random.random_range(0..400));
        tokio::time::sleep(pause).await;
        let env = &mut self.env;
        match self.random.random_range(0..9) {
            0 | 1 => self.kill_or_start().await,
            2 => {
                eprintln!("  NATS is killed");
                env.nats.kill().await.expect("kill NATS");
                tokio::time::sleep(pause).await;
                env.nats.start_again().await.expect("start NATS");
            }
            3 => {
                eprintln!("  PostgreSQL is killed");
                env.postgres.kill().await.expect("kill PostgreSQL");
                env.postgres.start_again().await.expect("start PostgreSQL");
            }
            4..=6 => match self.store.take() {
                None => {
                    eprintln!("  a copy of the stream");
                    self.store = Some(StoreCopy::take(env).await);
                }
                Some(copied) => {
                    eprintln!("  the stream is put back");
                    self.in_flight_came_first |= self.mode != "fenced" && self.relay.is_some();
                    copied.put_back(env).await;
                    if self.random.random_bool(0.4) {
                        let messages = self.random.random_range(1..400);
                        eprintln!("  others publish {messages} messages");
                        others_publish(env, messages).await;
                    }
                }
            },
            _ => match self.database.take() {
                None => {
                    eprintln!("  a copy of the database");
                    self.database = Some(DatabaseCopy::take(env).await);
                }
                Some(copied) => {
                    eprintln!("  the database is put back");
                    copied.put_back(env).await;
                }
            },
        }
    }

    /// What is committed, by aggregate, in order.
    async fn committed(&self) -> BTreeMap<String, Vec<Uuid>> {
        let rows = "SELECT aggregate, id FROM committed ORDER BY n";
        let mut of: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
        for row in self.env.client().await.query(rows, &[]).await.expect(rows) {
            of.entry(row.get(0)).or_default().push(row.get(1));
        }
        of
    }

    async fn ends(mut self) {
        if self.relay.is_none() {
            self.start();
        }
        self.load.stop().await;
        self.load = Load { stop: Arc::default(), writers: Vec::new() };
        let committed = self.committed().await;
        let all: BTreeSet<Uuid> = committed.values().flatten().copied().collect();
        let mut missing = Vec::new();
        until(DEADLINE, "what is not in the stream is told of", async || {
            let stored: BTreeSet<Uuid> = self.env.stored_ids().await.into_iter().collect();
            missing = all.difference(&stored).copied().collect();
            let log = self.relay.as_ref().expect("one").log();
            // What was stored in the place of lost messages meanwhile is not among those told of.
            missing.is_empty() || self.mark != "row" && self.told + told(&log) > 0
        })
        .await;
        let wait = ["wait", "--all", "--timeout", "2m"];
        self.env.ends_with(0, &wait).await;
        let stored = self.env.stored_ids().await;
        let mut times: HashMap<Uuid, u32> = HashMap::new();
        stored.iter().for_each(|id| *times.entry(*id).or_default() += 1);
        let twice: Vec<_> = times.iter().filter(|(id, n)| all.contains(id) && **n > 1).collect();
        eprintln!(
            "  {} committed, {} stored, {} missing, {} twice",
            all.len(),
            stored.len(),
            missing.len(),
            twice.len()
        );
        assert!(twice.is_empty(), "stored twice: {twice:?}");
        for (aggregate, ids) in committed {
            let expected: Vec<Uuid> =
                ids.iter().filter(|id| times.contains_key(id)).copied().collect();
            let of: BTreeSet<Uuid> = ids.into_iter().collect();
            let there: Vec<Uuid> = stored.iter().filter(|id| of.contains(id)).copied().collect();
            let is_so = self.in_flight_came_first || there == expected;
            assert!(is_so, "the order of {aggregate}, {} mode: {there:?}, {expected:?}", self.mode);
        }
        if self.mark == "row" {
            assert_eq!(self.env.unmarked().await, 0);
        }
    }
}

/// How many messages a relay said the stream has lost that no row names.
fn told(log: &str) -> u64 {
    let lines = log.lines().filter(|it| it.contains("the stream has lost acknowledged messages"));
    let number = |line: &str, name: &str| -> u64 {
        let found = line.split(&format!(" {name}=")).nth(1).and_then(|it| it.split(' ').next());
        found.and_then(|it| it.trim().parse().ok()).expect("a number")
    };
    lines.map(|it| number(it, "messages").saturating_sub(number(it, "rows"))).sum()
}

async fn plays(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut history = History::begin(seed).await;
        for _ in 0..STEPS {
            history.step().await;
        }
        history.ends().await;
    }
}

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|it| it.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

mod long {
    use super::*;

    // proves: G-LOSS-6
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_is_put_back_in_any_mode_no_event_is_lost_in_silence() {
        let first = given("REPLAY_SEED").unwrap_or(2);
        plays(first..first + given("EXAMPLES").unwrap_or(MIXES.len() as u64)).await;
    }

    // proves: G-LOSS-6
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_is_put_back_each_row_has_one_message() {
        plays(0..2).await;
    }
}
