//! Anything happens at any time to workers that share a consumer.

use std::cell::Cell;
use std::time::{Duration, Instant};

use lab::{Direction, Proxy};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use support::{DEADLINE, until};

use super::{Inbox, Worker};

const PARTITIONS: u32 = 16;
const AGGREGATES: i64 = 100;
const LANES: i64 = 16;
/// The last place is of the worker that comes and goes beside four others.
const PLACES: usize = 5;

/// Where a worker runs: behind a network of its own.
struct Place {
    postgres: Proxy,
    nats: Proxy,
    variables: Vec<(String, String)>,
    worker: Option<Worker>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Absent,
    Works,
    Frozen,
    WithoutBroker,
    WithoutDatabase,
    /// Nothing arrives, and no connection ends.
    SilentDatabase,
}

const FAULTS: [State; 5] = [
    State::Absent,
    State::Frozen,
    State::WithoutBroker,
    State::WithoutDatabase,
    State::SilentDatabase,
];

impl Place {
    async fn new(inbox: &Inbox) -> Self {
        let proxy = async |port: u16| {
            Proxy::start(([127, 0, 0, 1], port).into()).await.expect("start a proxy")
        };
        let (postgres, nats) = (inbox.env.postgres.port(), inbox.env.nats.port());
        let (postgres, nats) = (proxy(postgres).await, proxy(nats).await);
        let url = format!("postgres://postgres@{}/postgres", postgres.addr());
        let mut variables = inbox.variables.clone();
        variables.retain(|(name, _)| !name.ends_with("_URL"));
        variables.push(("DATABASE_URL".into(), url));
        variables.push(("NATS_URL".into(), format!("nats://{}", nats.addr())));
        Self { postgres, nats, variables, worker: None, state: State::Absent }
    }

    async fn become_at_random(&mut self, inbox: &Inbox, random: &mut StdRng) {
        if self.state == State::Works {
            let fault = FAULTS[random.random_range(0..FAULTS.len())];
            self.suffer(fault, random.random()).await;
        } else {
            self.mend(inbox).await;
        }
    }

    async fn suffer(&mut self, fault: State, gently: bool) {
        let worker = self.worker.as_ref().expect("it works");
        match fault {
            State::Works => unreachable!("no fault"),
            State::Absent => {
                let worker = self.worker.take().expect("it works");
                if gently {
                    worker.stop().await;
                } else {
                    worker.kill9().await;
                }
            }
            State::Frozen => worker.pause(),
            State::WithoutBroker => self.nats.cut().await,
            State::WithoutDatabase => self.postgres.cut().await,
            State::SilentDatabase => self.postgres.blackhole(Direction::Both),
        }
        self.state = fault;
    }

    async fn mend(&mut self, inbox: &Inbox) {
        match self.state {
            State::Works => {}
            State::Absent => {
                let worker = Worker::spawn(&self.variables);
                // Before that it lacks the servers, and ends.
                let row = format!("inbox_workers WHERE owner LIKE '{}:%'", worker.pid());
                inbox.wait_count(&row, 1).await;
                self.worker = Some(worker);
            }
            State::Frozen => self.worker.as_ref().expect("it is frozen").resume(),
            State::WithoutBroker => self.nats.restore().await.expect("mend the network"),
            State::WithoutDatabase | State::SilentDatabase => {
                self.postgres.restore().await.expect("mend the network");
            }
        }
        self.state = State::Works;
    }
}

/// Publishes until `ends`, so that there is always something to do; returns how much.
async fn load(inbox: &Inbox, ends: &Cell<bool>) -> i64 {
    let mut published = 0;
    while !ends.get() {
        let aggregate = |n: i64| format!("o-{}", n % AGGREGATES);
        let numbers = published..published + 200;
        inbox.publish_as(aggregate, numbers, &json!({ "sleep_ms": 5 })).await;
        published += 200;
        until(DEADLINE, "there is little left to do", async || {
            ends.get() || inbox.count("effects").await > published - 1_000
        })
        .await;
    }
    published
}

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|it| it.parse().expect("a number"))
}

mod long {
    use super::*;

    // proves: G-EFFECT-3, G-EFFECT-6
    #[tokio::test(flavor = "multi_thread")]
    async fn transactional_workers_end_with_each_effect_once_whatever_becomes_of_them() {
        play("transactional").await;
    }

    // proves: G-EFFECT-3, G-EFFECT-6
    #[tokio::test(flavor = "multi_thread")]
    async fn leased_workers_begin_each_aggregate_in_order_whatever_becomes_of_them() {
        play("leased").await;
    }
}

/// `REPLAY_SEED=n` plays one schedule again, `SECONDS_SHARED=500` for how long. What takes 600 is
/// ended.
async fn play(mode: &str) {
    let seed = given("REPLAY_SEED").unwrap_or_else(rand::random);
    let lasts = Duration::from_secs(given("SECONDS_SHARED").unwrap_or(60));
    eprintln!("REPLAY_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut inbox = Inbox::new().await;
    inbox.divide(PARTITIONS).await;
    for (name, value) in [
        ("WORKER_MODE", mode),
        ("WORKER_LANES", &LANES.to_string()),
        ("WORKER_BATCH", "8"),
        ("WORKER_LEASE_MS", "3000"),
        ("WORKER_ACK_WAIT_MS", "2000"),
        ("WORKER_MAX_ATTEMPTS", "1000"),
    ] {
        inbox.set(name, value);
    }
    let mut places = Vec::new();
    for _ in 0..PLACES {
        let mut place = Place::new(&inbox).await;
        place.mend(&inbox).await;
        places.push(place);
    }
    let ends = Cell::new(false);
    let mut faults = 0;
    let work = async {
        let began = Instant::now();
        while began.elapsed() < lasts {
            let place = random.random_range(0..PLACES);
            places[place].become_at_random(&inbox, &mut random).await;
            eprintln!("{:?}: {place} {:?}", began.elapsed(), places[place].state);
            faults += i64::from(places[place].state != State::Works);
            tokio::time::sleep(Duration::from_millis(random.random_range(0..3_000))).await;
        }
        ends.set(true);
        for place in &mut places {
            place.mend(&inbox).await;
        }
        let last = places.last_mut().expect("a fifth");
        last.suffer(State::Absent, true).await;
    };
    let (all, ()) = tokio::join!(load(&inbox, &ends), work);
    eprintln!("{all} events, {faults} faults");
    until(DEADLINE, "all have had their effect", async || {
        inbox.count("(SELECT DISTINCT event_id FROM effects) AS t").await == all
    })
    .await;
    inbox.wait_acked().await;
    let first = "(SELECT n < lag(n) OVER (PARTITION BY aggregate_id ORDER BY place) AS bad FROM
        (SELECT aggregate_id, n, min(place) AS place FROM effects GROUP BY 1, 2) AS t) AS t
        WHERE bad";
    assert_eq!(inbox.count(first).await, 0, "aggregates out of order");
    if mode == "transactional" {
        inbox.assert_exact(all).await;
    } else {
        // What a worker had begun when it was hit, another does again.
        let again = inbox.count("effects").await - all;
        assert!(again <= faults * LANES, "{again} effects more than events, {faults} faults");
    }
    let idle_nobody = "(SELECT FROM inbox_roles WHERE expires_at > now() AND state = 'active'
        GROUP BY owner HAVING count(*) = 4) AS t";
    until(DEADLINE, "four have four each", async || inbox.count(idle_nobody).await == 4).await;
}
