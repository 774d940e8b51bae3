//! One test's own servers, and the relay's settings for them.

use std::io::PipeWriter;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lab::{Nats, NatsCluster, NatsOptions, Postgres, PostgresOptions, Protocol, Proxy};

use crate::broker::Broker;
use crate::kept::Kept;
use crate::process::{Relay, binary};
use crate::wait::DEADLINE;

/// Lines of each server's log that a failing test shows.
const LOG_TAIL: usize = 15;

/// How to set up a [`TestEnv`].
#[derive(Default)]
pub struct TestEnvOptions {
    /// The PostgreSQL server.
    pub postgres: PostgresOptions,
    /// The NATS server.
    pub nats: NatsOptions,
    /// Whether `tailpost` reaches the servers through proxies. Everybody else goes straight.
    pub proxied: bool,
}

/// A PostgreSQL and a NATS of the test's own, and how to run `tailpost` between them.
///
/// The outbox is in the database `postgres`, everything else is named by default. Helpers connect
/// anew when a connection is lost, so that they work again as soon as a restarted server does.
pub struct TestEnv<B: Broker = Nats> {
    /// The database server.
    pub postgres: Postgres,
    /// The broker.
    pub nats: B,
    variables: Vec<(String, String)>,
    network: Option<Network>,
    removes: Arc<AtomicBool>,
    pub(crate) shards: u32,
    pub(crate) session: Kept<tokio_postgres::Client>,
    pub(crate) jetstream: Kept<async_nats::jetstream::Context>,
}

struct Network {
    to_postgres: Proxy,
    to_nats: Proxy,
}

impl TestEnv {
    /// Starts both servers with their defaults.
    ///
    /// # Panics
    ///
    /// When one does not start.
    pub async fn new() -> Self {
        Self::with(TestEnvOptions::default()).await
    }

    /// Starts both servers, and a proxy before each: see [`TestEnv::to_postgres`] and [`TestEnv::to_nats`].
    ///
    /// # Panics
    ///
    /// When one does not start.
    pub async fn proxied() -> Self {
        Self::with(TestEnvOptions { proxied: true, ..TestEnvOptions::default() }).await
    }

    /// Starts both servers.
    ///
    /// # Panics
    ///
    /// When one does not start.
    pub async fn with(options: TestEnvOptions) -> Self {
        let (postgres, nats) =
            tokio::join!(Postgres::start(options.postgres), Nats::start(options.nats));
        let postgres = postgres.expect("start PostgreSQL");
        let nats = nats.expect("start NATS");
        let (mut to_postgres, mut to_nats) = (loopback(postgres.port()), loopback(nats.port()));
        let network = if options.proxied {
            let started = tokio::try_join!(
                Proxy::start_for(Protocol::Postgres, to_postgres),
                Proxy::start_for(Protocol::Nats, to_nats)
            );
            let (before_postgres, before_nats) = started.expect("start proxies");
            (to_postgres, to_nats) = (before_postgres.addr(), before_nats.addr());
            Some(Network { to_postgres: before_postgres, to_nats: before_nats })
        } else {
            None
        };
        Self::between(
            postgres,
            nats,
            network,
            [to_postgres.to_string(), format!("nats://{to_nats}")],
        )
    }
}

impl TestEnv<NatsCluster> {
    /// Starts PostgreSQL and a cluster of three NATS servers, which keep the stream in three
    /// replicas.
    ///
    /// # Panics
    ///
    /// When one does not start.
    pub async fn replicated() -> Self {
        Self::replicated_by(Default::default()).await
    }

    /// As [`TestEnv::replicated`], with each server in its own way.
    ///
    /// # Panics
    ///
    /// When one does not start.
    pub async fn replicated_by(servers: [NatsOptions; 3]) -> Self {
        let (postgres, nats) =
            tokio::join!(Postgres::start(PostgresOptions::default()), NatsCluster::of(servers));
        let postgres = postgres.expect("start PostgreSQL");
        let nats = nats.expect("start the NATS cluster");
        let urls = [loopback(postgres.port()).to_string(), nats.urls()];
        let mut env = Self::between(postgres, nats, None, urls);
        env.set("TAILPOST_STREAM__REPLICAS", "3");
        env
    }
}

impl<B: Broker> TestEnv<B> {
    fn between(
        postgres: Postgres,
        nats: B,
        network: Option<Network>,
        [to_postgres, to_nats]: [String; 2],
    ) -> Self {
        let mut env = Self {
            postgres,
            nats,
            variables: Vec::new(),
            network,
            removes: Arc::default(),
            shards: 1,
            session: Kept::default(),
            jetstream: Kept::default(),
        };
        env.set("DATABASE_URL", &format!("postgres://postgres@{to_postgres}/postgres"));
        env.set("NATS_URL", &to_nats);
        env.set("TAILPOST_ADMIN__LISTEN", "off");
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", "off");
        env
    }

    /// The network between `tailpost` and PostgreSQL.
    ///
    /// # Panics
    ///
    /// When the environment is not proxied.
    pub fn to_postgres(&mut self) -> &mut Proxy {
        &mut self.network.as_mut().expect("a proxied env").to_postgres
    }

    /// The network between `tailpost` and NATS.
    ///
    /// # Panics
    ///
    /// When the environment is not proxied.
    pub fn to_nats(&mut self) -> &mut Proxy {
        &mut self.network.as_mut().expect("a proxied env").to_nats
    }

    /// Sets a variable, such as `TAILPOST_STREAM__DUPLICATE_WINDOW`, for processes started later.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// The test removes messages from the stream: a relay may say, or not, that rows name some.
    pub fn removes_messages(&self) {
        self.removes.store(true, Ordering::Relaxed);
    }

    /// Sets `relay.shards` for processes started later. Helpers look at all shards then.
    pub fn set_shards(&mut self, shards: u32) {
        self.shards = shards;
        self.set("TAILPOST_RELAY__SHARDS", &shards.to_string());
    }

    /// The names of the streams.
    pub fn streams(&self) -> Vec<String> {
        match self.shards {
            1 => vec!["OUTBOX".to_owned()],
            shards => (0..shards).map(|shard| format!("OUTBOX_{shard}")).collect(),
        }
    }

    /// Runs `tailpost setup`.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub async fn setup(&self) {
        self.ends_with(0, &["setup"]).await;
    }

    /// Starts `tailpost relay`.
    ///
    /// # Panics
    ///
    /// As [`Relay::spawn`].
    pub fn relay(&self) -> Relay {
        self.spawn(&["relay"])
    }

    /// Runs `tailpost` to its end, and returns what it wrote to stdout and to stderr.
    ///
    /// # Panics
    ///
    /// When its exit code is another one.
    pub async fn ends_with(&self, code: i32, args: &[&str]) -> (String, String) {
        let process = self.spawn(args);
        process.announce(""); // the code tells
        let status = process.wait_exit(DEADLINE).await;
        assert_eq!(status.code(), Some(code), "{args:?}\n{}{}", process.stdout(), process.log());
        (process.stdout(), process.log())
    }

    /// Starts `tailpost` with any arguments.
    ///
    /// # Panics
    ///
    /// As [`Relay::spawn`].
    pub fn spawn(&self, args: &[&str]) -> Relay {
        Relay::spawn(args, &self.variables).beside(&self.removes)
    }

    /// As [`TestEnv::spawn`]. What the process writes, also to stderr, goes into this pipe.
    ///
    /// # Panics
    ///
    /// As [`Relay::spawn`].
    pub fn spawn_into(&self, pipe: &PipeWriter, args: &[&str]) -> Relay {
        Relay::spawn_into(Some(pipe), &binary(), args, &self.variables)
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl<B: Broker> Drop for TestEnv<B> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (name, log) in [("PostgreSQL", self.postgres.log()), ("NATS", self.nats.log())] {
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LOG_TAIL)..];
            eprintln!("--- log of {name}\n{}", tail.join("\n"));
        }
    }
}
