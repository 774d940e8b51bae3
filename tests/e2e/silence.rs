//! Connections that fall silent after any number of messages: opening, running, closing.
//!
//! What is silent stays so. A process has to find out by itself, and to open others, which are well
//! once the fault is over.
//!
//! A run takes some of the numbers, drawn by `REPLAY_SEED`; with `SILENCE=all` it takes them all.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use lab::{After, Port, PostgresOptions, Protocol, Proxy};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, get, until};
use tokio::net::TcpListener;

/// Processes side by side. They share the servers, one slot and one consumer: the others stand by.
const AT_A_TIME: usize = 25;

/// Of a connection that is in use.
const RUNNING: [u64; 3] = [0, 3, 7];

/// How many numbers are drawn if not all are taken: one from each of as many parts of the range.
const DRAWN: u64 = 7;

/// Nothing is noticed later than this.
const NOTICED: Duration = Duration::from_secs(60);

/// Each process has several connections, and those that fell silent stay open for some time.
async fn env() -> TestEnv {
    let settings = vec![("max_connections".to_owned(), "400".to_owned())];
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await
}

/// Which of the connections are silent.
#[derive(Clone, Copy)]
enum Way {
    Postgres,
    Nats,
}

impl Way {
    /// More than what opens a session passes on its longest connection.
    fn most(self) -> u64 {
        match self {
            Self::Postgres => 49,
            Self::Nats => 24,
        }
    }

    /// After how many messages there is silence.
    fn messages(self) -> Vec<u64> {
        let all = 0..=self.most();
        if takes_all() {
            return all.collect();
        }
        let mut random = random();
        let part = self.most() / DRAWN + 1;
        (0..DRAWN).map(|at| (at * part + random.random_range(0..part)).min(self.most())).collect()
    }
}

fn takes_all() -> bool {
    std::env::var("SILENCE").is_ok_and(|it| it == "all")
}

fn random() -> StdRng {
    let seed = std::env::var("REPLAY_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(45);
    eprintln!("REPLAY_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// A process whose way to one of the servers can fall silent.
struct Patient {
    messages: u64,
    process: Relay,
    proxy: Proxy,
    admin: Port,
}

impl Patient {
    async fn start(env: &mut TestEnv, way: Way, messages: u64, args: &[&str]) -> Self {
        let loopback = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (postgres, nats) = (loopback(env.postgres.port()), loopback(env.nats.port()));
        let (protocol, server) = match way {
            Way::Postgres => (Protocol::Postgres, postgres),
            Way::Nats => (Protocol::Nats, nats),
        };
        let proxy = Proxy::start_for(protocol, server).await.expect("start a proxy");
        proxy.after(messages, After::Silence);
        let (to_postgres, to_nats) = match way {
            Way::Postgres => (proxy.addr(), nats),
            Way::Nats => (postgres, proxy.addr()),
        };
        let admin = Port::reserve().expect("a free port");
        env.set(
            "DATABASE_URL",
            &format!("postgres://postgres@{to_postgres}/postgres?connect_timeout=2"),
        );
        env.set("NATS_URL", &format!("nats://{to_nats}"));
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
        let process = env.spawn(args);
        process.announce(""); // some end a session with an error
        Self { messages, process, proxy, admin }
    }

    /// Waits until the process is ready, or is silent, has noticed, and gets on once new connections
    /// are well.
    async fn recovers(&self) {
        let after = format!("after {} messages", self.messages);
        until(DEADLINE, &format!("{after} there is silence"), async || {
            self.proxy.limited() > 0 || self.is_ready().await
        })
        .await;
        if self.proxy.limited() == 0 {
            // It stands by, and says less than that.
            self.proxy.lift_limit();
            return;
        }
        let accepted = self.proxy.accepted();
        until(NOTICED, &format!("{after} the silence is noticed"), async || {
            self.is_alive();
            self.proxy.accepted() > accepted || !self.is_ready().await
        })
        .await;
        self.proxy.lift_limit();
        until(NOTICED, &format!("{after} the process is ready"), async || {
            self.is_alive();
            self.is_ready().await
        })
        .await;
    }

    async fn is_ready(&self) -> bool {
        let told = get(self.admin.addr(), "/readyz").await.unwrap_or_default();
        told.starts_with("HTTP/1.1 200 ")
    }

    fn is_alive(&self) {
        let ended = self.process.exited();
        assert!(ended.is_none(), "ended by itself: {ended:?}\n{}", self.process.log());
    }
}

/// Lets a process with each number of messages recover; returns those that were last.
async fn each_recovers(env: &mut TestEnv, way: Way, args: &[&str]) -> Vec<Patient> {
    let numbers = way.messages();
    let mut patients = Vec::new();
    for numbers in numbers.chunks(AT_A_TIME) {
        patients.clear();
        for messages in numbers {
            patients.push(Patient::start(env, way, *messages, args).await);
        }
        join_all(patients.iter().map(Patient::recovers)).await;
    }
    patients
}

/// SIGTERM, and silence after so many messages of what ends a session: it ends all the same.
async fn each_ends(patients: Vec<Patient>) {
    stream::iter((0..).zip(patients))
        .for_each_concurrent(None, |(messages, patient)| async move {
            patient.proxy.after(messages, After::Silence);
            patient.process.sigterm();
            patient.process.wait_exit(DEADLINE).await;
        })
        .await;
}

async fn relays_survive(way: Way) {
    let mut env = env().await;
    env.setup().await;
    let patients = each_recovers(&mut env, way, &["relay"]).await;
    let mut ids = env.insert(20).await;
    env.wait_marked().await;
    each_ends(patients).await;

    let mut patient = Patient::start(&mut env, way, u64::MAX, &["relay"]).await;
    patient.process.wait_active().await;
    let drawn = random().random_range(0..RUNNING.len());
    let running = if takes_all() { &RUNNING[..] } else { &RUNNING[drawn..=drawn] };
    for &messages in running {
        patient.messages = messages;
        let before = patient.proxy.limited();
        patient.proxy.after(messages, After::Silence);
        ids.extend(env.insert(20).await);
        let what = format!("after {messages} messages there is silence");
        until(DEADLINE, &what, async || patient.proxy.limited() > before).await;
        patient.recovers().await;
        env.wait_marked().await;
    }
    assert_eq!(env.stored_ids().await, ids);
}

async fn inboxes_survive(way: Way) {
    let mut env = env().await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let handler = format!("http://{}/", listener.local_addr().expect("an address"));
    let args = ["inbox", "run", "--consumer", "billing", "--handler", &handler];
    let patients = each_recovers(&mut env, way, &args).await;
    each_ends(patients).await;
}

mod long {
    use super::*;

    // proves: G-LOSS-5
    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_survives_silence_of_postgres_after_any_message() {
        relays_survive(Way::Postgres).await;
    }

    // proves: G-LOSS-5
    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_survives_silence_of_nats_after_any_message() {
        relays_survive(Way::Nats).await;
    }

    // proves: G-LOSS-5
    #[tokio::test(flavor = "multi_thread")]
    async fn an_inbox_survives_silence_of_postgres_after_any_message() {
        inboxes_survive(Way::Postgres).await;
    }

    // proves: G-LOSS-5
    #[tokio::test(flavor = "multi_thread")]
    async fn an_inbox_survives_silence_of_nats_after_any_message() {
        inboxes_survive(Way::Nats).await;
    }
}
