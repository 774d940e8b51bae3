//! The servers of one scenario, a load on them, and the reckoning at the end.

mod inbox_side;
mod odd;
mod waits;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::ledger::{Ledger, Tally};
use crate::nats::{Nats, NatsOptions};
use crate::postgres::{Postgres, PostgresOptions};
use crate::proxy::{Protocol, Proxy};
use crate::workload::{Workload, WorkloadOptions, Written};
use anyhow::{Context, Result};
use outbox::Table;
use tokio_postgres::Client;
use tokio_postgres::types::FromSqlOwned;

use super::daemon::{self, Daemon};
use super::logs::Logs;
use super::shipping::Shipping;
use super::wait::{until, until_within};

pub(super) use inbox_side::CONSUMER;
use odd::Odd;
use waits::Waits;

const DATABASE: &str = "postgres";
pub(super) const STREAM: &str = "OUTBOX";

/// The share of transactions that the writers roll back.
const ROLLED_BACK: f64 = 0.1;

/// A relay whose connections are all silent finds out within 15 s, may pause for 10 s, and goes
/// through the table if the slot was lost.
const RECOVERY_MAX: Duration = Duration::from_secs(120);

/// What a scenario wants of its servers.
#[derive(Clone, Copy)]
pub(super) struct Servers {
    /// Settings of PostgreSQL.
    pub(super) postgres: &'static [(&'static str, &'static str)],
    /// The largest message that the broker takes, in bytes.
    pub(super) max_payload: Option<u32>,
}

impl Servers {
    pub(super) const PLAIN: Self = Self { postgres: &[], max_payload: None };
}

/// Two servers, a proxy before each for relays and inboxes and another for the writers. Gone with
/// this.
pub(super) struct Lab {
    pub(super) postgres: Postgres,
    pub(super) nats: Nats,
    pub(super) to_postgres: Proxy,
    pub(super) to_nats: Proxy,
    writers_way: Proxy,
    env: Vec<(String, String)>,
    load: Option<Workload>,
    // Of loads that have ended.
    written: Written,
    // Events that the lab wrote beside the load and the broker will take, or a dead letter be.
    further: u64,
    odd: Odd,
    waits: Waits,
    relays_started: usize,
    inboxes_started: usize,
    shipping: Option<Shipping>,
    logs: Logs,
    opened: Instant,
    fault_over: Option<Instant>,
    recovered: Duration,
}

impl Lab {
    /// Starts the servers and runs `tailpost setup`. The broker forgets ids after 200 ms: nothing is
    /// to hang on its memory.
    pub(super) async fn open(servers: &Servers) -> Result<Self> {
        let opened = Instant::now();
        let settings = servers.postgres.iter().map(|it| (it.0.to_owned(), it.1.to_owned()));
        let postgres =
            PostgresOptions { settings: settings.collect(), ..PostgresOptions::default() };
        let nats = NatsOptions { max_payload: servers.max_payload, ..NatsOptions::default() };
        let (postgres, nats) = tokio::try_join!(Postgres::start(postgres), Nats::start(nats))?;
        let (to_postgres, to_nats, writers_way) = tokio::try_join!(
            Proxy::start_for(Protocol::Postgres, loopback(postgres.port())),
            Proxy::start_for(Protocol::Nats, loopback(nats.port())),
            Proxy::start(loopback(postgres.port())),
        )?;
        let mut lab = Self {
            postgres,
            nats,
            to_postgres,
            to_nats,
            writers_way,
            env: Vec::new(),
            load: None,
            written: Written::default(),
            further: 0,
            odd: Odd::default(),
            waits: Waits::default(),
            relays_started: 0,
            inboxes_started: 0,
            shipping: None,
            logs: Logs::default(),
            opened,
            fault_over: None,
            recovered: Duration::ZERO,
        };
        let database_url = format!("postgres://postgres@{}/{DATABASE}", lab.to_postgres.addr());
        lab.set("DATABASE_URL", &database_url);
        lab.set("NATS_URL", &format!("nats://{}", lab.to_nats.addr()));
        lab.set("TAILPOST_ADMIN__LISTEN", "off");
        lab.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "200ms");
        lab.setup().await?;
        Ok(lab)
    }

    /// Runs `tailpost setup`.
    pub(super) async fn setup(&self) -> Result<()> {
        daemon::run_to_end(&["setup"], &self.env).await
    }

    /// Tells what happens, with the time since the lab was opened.
    pub(super) fn say(&self, text: &str) {
        eprintln!("{:>7.2} s  {text}", self.opened.elapsed().as_secs_f64());
    }

    /// Sets a variable for relays and inboxes started later.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
    }

    pub(super) fn start_relay(&mut self) -> Result<Daemon> {
        self.relays_started += 1;
        let name = format!("relay-{}", self.relays_started);
        Daemon::relay(name, &self.env, &self.logs)
    }

    /// A relay that has the slot.
    pub(super) async fn active_relay(&mut self) -> Result<Daemon> {
        let relay = self.start_relay()?;
        relay.wait_active().await?;
        Ok(relay)
    }

    /// Lets writers loose that commit about `rate` events a second, and come back when the server
    /// does. They do not share the relays' way to it.
    pub(super) async fn start_load(&mut self, rate: f64, seed: u64) -> Result<()> {
        let addr = self.writers_way.addr();
        let url =
            format!("postgres://postgres@{addr}/{DATABASE}?application_name={}", waits::PRODUCER);
        let options = WorkloadOptions {
            rate: Some(rate),
            rolled_back: ROLLED_BACK,
            seed,
            ..WorkloadOptions::default()
        };
        self.load = Some(Workload::start(&url, options).await?);
        Ok(())
    }

    /// From now on looks for whom the writers wait.
    pub(super) fn watch_waits(&mut self) {
        self.waits.watch(self.postgres.url(DATABASE));
    }

    /// Lets the writers finish.
    pub(super) async fn stop_load(&mut self) -> Result<()> {
        if let Some(load) = self.load.take() {
            let written = load.stop().await?;
            self.written.committed.extend(written.committed);
            self.written.rolled_back.extend(written.rolled_back);
        }
        Ok(())
    }

    /// Events that are to arrive by now.
    pub(super) fn committed(&self) -> u64 {
        let load = self.load.as_ref().map_or(0, Workload::committed);
        self.written.committed.len() as u64 + load + self.further
    }

    /// Says that `n` events were written beside the load.
    pub(super) fn wrote(&mut self, n: u64) {
        self.further += n;
    }

    /// Waits until `n` further events are committed.
    pub(super) async fn wait_committed(&self, n: u64) -> Result<()> {
        let goal = self.committed() + n;
        let what = format!("{goal} events are committed");
        until(&what, async || Ok(self.committed() >= goal)).await
    }

    /// How many events the stream holds: its messages but those of other clients.
    pub(super) async fn stored(&self) -> Result<u64> {
        let stream = self.nats.jetstream().await?.get_stream(STREAM).await?;
        Ok(stream.cached_info().state.messages.saturating_sub(self.odd.messages()))
    }

    /// Starts the clock that [`Lab::recover`] stops.
    pub(super) fn fault_is_over(&mut self) {
        self.fault_over = Some(Instant::now());
    }

    /// Waits until the relays have published all that is committed now; returns how long that took
    /// since the fault was over.
    pub(super) async fn recover(&mut self) -> Result<Duration> {
        let over = self.fault_over.take().unwrap_or_else(Instant::now);
        let goal = self.committed();
        let what = format!("the stream holds {goal} events");
        until_within(RECOVERY_MAX, &what, async || self.has_published(goal).await).await?;
        let took = over.elapsed();
        self.recovered = self.recovered.max(took);
        Ok(took)
    }

    /// As [`Lab::recover`], says what happened, and how long that took.
    pub(super) async fn recovers(&mut self, what: &str) -> Result<()> {
        let took = self.recover().await?;
        self.say(&format!("{what} after {took:.2?}"));
        Ok(())
    }

    /// Whether so many events are published, or dead letters that were to be expected.
    pub(super) async fn has_published(&self, goal: u64) -> Result<bool> {
        Ok(self.stored().await? + self.odd_parked().await? >= goal)
    }

    pub(super) async fn database(&self) -> Result<Client> {
        self.postgres.client(DATABASE).await
    }

    /// The way of relays and inboxes to NATS, or to PostgreSQL.
    pub(super) fn network(&mut self, to_nats: bool) -> (&'static str, &mut Proxy) {
        match to_nats {
            true => ("NATS", &mut self.to_nats),
            false => ("PostgreSQL", &mut self.to_postgres),
        }
    }

    /// Runs statements, not through a proxy.
    pub(super) async fn execute(&self, sql: &str) -> Result<()> {
        let done = self.database().await?.batch_execute(sql).await;
        done.with_context(|| sql.to_owned())
    }

    /// Asks for one value, not through a proxy.
    pub(super) async fn query<T: FromSqlOwned>(&self, sql: &str) -> Result<T> {
        let row = self.database().await?.query_one(sql, &[]).await;
        row.and_then(|row| row.try_get(0)).with_context(|| sql.to_owned())
    }

    /// Makes another server the one that writers and relays reach.
    pub(super) fn replace_postgres(&mut self, other: Postgres) -> Postgres {
        let addr = loopback(other.port());
        self.to_postgres.set_upstream(addr);
        self.writers_way.set_upstream(addr);
        std::mem::replace(&mut self.postgres, other)
    }

    /// Ends the load, waits until the relays have caught up, and compares.
    pub(super) async fn finish(&mut self) -> Result<Tally> {
        self.stop_load().await?;
        let caught_up = self.catch_up().await;
        self.say("comparing the table and the stream");
        let client = self.database().await?;
        let ledger =
            Ledger::collect_any(&client, &Table::default(), &self.nats.url(), STREAM).await?;
        let tally = self.odd.excuse(ledger).report(&self.written);
        // What did not arrive is for the ledger to name; here is the rest.
        if tally.is_exact() && tally.is_marked() {
            caught_up?;
        }
        Ok(tally)
    }

    /// The sequences of all messages in the stream, and the ids of their events.
    async fn messages(&self) -> Result<Vec<(u64, Option<uuid::Uuid>)>> {
        let client = self.database().await?;
        let url = self.nats.url();
        let ledger = Ledger::collect_any(&client, &Table::default(), &url, STREAM).await?;
        Ok(ledger.messages().iter().map(|it| (it.sequence, it.id)).collect())
    }

    async fn catch_up(&mut self) -> Result<()> {
        self.say("the load has ended; waiting until everything is published, marked and confirmed");
        self.recover().await?;
        let unmarked = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
        until("every row is marked", async || Ok(self.query::<i64>(unmarked).await? == 0)).await?;
        let end: String = self.query("SELECT pg_current_wal_insert_lsn()::TEXT").await?;
        let confirmed = format!(
            "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots \
             WHERE slot_name = 'tailpost'"
        );
        until("all of the log is confirmed", async || self.query(&confirmed).await).await
    }

    pub(super) fn recovered(&self) -> Duration {
        self.recovered
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Fails if a relay or an inbox panicked, even if the next one mended everything.
    pub(super) fn check_logs(&self) -> Result<()> {
        self.logs.check()
    }

    /// Writes all logs into a folder that stays, and says where.
    pub(super) fn keep_logs(&self, title: &str) -> Result<()> {
        let servers = [("postgres", self.postgres.log()), ("nats", self.nats.log())];
        let folder = self.logs.keep(title, &servers)?;
        self.say(&format!("the logs of servers and processes are kept in {}", folder.display()));
        Ok(())
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
