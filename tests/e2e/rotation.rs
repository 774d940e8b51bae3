//! Credentials, tokens and certificates that change under load, without a restart.

mod api_tokens;
mod broker_logins;
mod certificates_renewed;
mod failing_program;
mod not_renewed;
mod passwords;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use lab::{NatsOptions, PostgresOptions};
use support::{DEADLINE, Load, Relay, TestEnv, TestEnvOptions, until};
use uuid::Uuid;

use crate::inbox::http::processed;
use crate::inbox::service::Service;

/// Events a second.
const RATE: f64 = 100.0;

/// How many events are committed at least between two changes.
const BETWEEN: u64 = 150;

/// No event is to be late by more than this.
const LATE: Duration = Duration::from_secs(1);

/// So many connections of a process may be under way at once. Each has read its credential.
const UNDER_WAY: usize = 5;

/// The relay's role needs a password, and everybody else none.
const HBA: &str = "\
local   all all                      trust
host    all postgres    127.0.0.1/32 trust
host    all relay       127.0.0.1/32 scram-sha-256
hostssl all certified   127.0.0.1/32 cert
";

/// The database's log of commits says when each event was there.
fn database(settings: &[(&str, &str)], files: &[(&str, String)]) -> PostgresOptions {
    let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    let mut settings: Vec<_> = settings.iter().map(owned).collect();
    settings.push(("track_commit_timestamp".into(), "on".into()));
    let mut files: Vec<_> = files.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    files.push(("pg_hba.conf".into(), HBA.into()));
    PostgresOptions { settings, files, ..PostgresOptions::default() }
}

/// Servers with an outbox and an inbox.
async fn set_up(postgres: PostgresOptions, nats: NatsOptions) -> TestEnv {
    TestEnv::with(TestEnvOptions { postgres, nats, proxied: false }).await
}

async fn make_tables(env: &TestEnv) {
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
}

/// A folder with what somebody renews.
struct Secrets(tempfile::TempDir);

impl Secrets {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file as a whole: nobody reads half of it.
    fn renew(&self, name: &str, text: &str) {
        let beside = self.path("beside");
        std::fs::write(&beside, text).expect("write a secret");
        std::fs::rename(beside, self.path(name)).expect("replace the secret");
    }
}

/// A relay and an inbox at work, under load.
struct Running {
    env: TestEnv,
    relay: Relay,
    inbox: Relay,
    service: Service,
    load: Load,
}

impl Running {
    async fn start(env: TestEnv) -> Self {
        let service = Service::start().await;
        let relay = env.relay();
        relay.wait_active().await;
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        let load = env.load(14, RATE).await;
        let running = Self { env, relay, inbox, service, load };
        running.goes_on().await;
        running
    }

    /// Waits until events that are committed from now on are stored, and the inbox gets on.
    async fn goes_on(&self) {
        let before = processed(&self.env).await;
        self.load.wait_committed(BETWEEN).await;
        self.env.wait_stored(self.load.committed()).await;
        until(DEADLINE, "the inbox gets on", async || processed(&self.env).await > before).await;
    }

    /// How often the relay took the slot.
    fn sessions(&self) -> usize {
        self.relay.log().matches("the slot is ours").count()
    }

    /// How often a process was not let in, by either server.
    fn refusals(process: &Relay) -> usize {
        let words =
            ["authentication failed", "fatal alert", "certificate", "authorization", "load"];
        let log = process.log();
        let is_about = |line: &&str| line.contains(" WARN ") && line.contains("error=");
        let is_refusal = |line: &&str| words.iter().any(|it| line.contains(it));
        log.lines().filter(is_about).filter(is_refusal).count()
    }

    /// How long the relay has waited of its own will before it tried again. However late events
    /// are, this does not depend on the machine.
    fn paused(&self) -> Duration {
        let log = self.relay.log();
        let pauses = log.split("starting anew in ").skip(1);
        let pauses = pauses.filter_map(|it| it.split_whitespace().next());
        pauses.map(seconds).sum()
    }

    /// Ends every connection of a role of the database, and waits until the relay is back. By then
    /// the server and what the relay reads agree.
    async fn end_connections(&self, role: &str) {
        let processes = [&self.relay, &self.inbox];
        let (before, paused) = (self.sessions(), self.paused());
        let refusals = processes.map(Self::refusals);
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{role}'"
        );
        assert!(self.env.query::<i64>(&end).await >= 4, "relay and inbox have connections");
        until(DEADLINE, "the relay is back", async || self.sessions() > before).await;
        self.goes_on().await;
        // Some connections may have been about to be made, with what was read before.
        for (process, before) in processes.into_iter().zip(refusals) {
            let refusals = Self::refusals(process) - before;
            assert!(refusals <= UNDER_WAY, "the next attempt lets it in: {}", process.log());
        }
        let paused = self.paused() - paused;
        eprintln!("the relay paused for {paused:?}");
        assert!(paused < LATE, "{}", self.relay.log());
    }

    /// How often relay and inbox connected to NATS.
    fn links(&self) -> [usize; 2] {
        let connects = |it: &Relay| it.log().matches(" connected to NATS").count();
        [connects(&self.relay), connects(&self.inbox)]
    }

    /// Waits until all connections that there were are made once more: each with the first attempt.
    async fn links_are_back(&self, [relays, inboxes]: [usize; 2]) {
        until(DEADLINE, "relay and inbox are back", async || {
            let now = self.links();
            now[0] > relays && now[1] >= 2 * inboxes
        })
        .await;
        for process in [&self.relay, &self.inbox] {
            let log = process.log();
            let reported = "NATS client reported an error";
            let mut reported = log.lines().filter(|it| it.contains(reported));
            let refused = ["authorization", "certificate", "alert"];
            let refused = reported.find(|it| refused.iter().any(|word| it.contains(word)));
            assert!(refused.is_none(), "the next attempt let it in: {log}");
        }
        assert_eq!(self.paused(), Duration::ZERO, "{}", self.relay.log());
    }

    /// Every event is stored once, in order, and had its effect once; the processes are those that
    /// were started, and said no secret.
    async fn end(self, secrets: &[&str]) {
        let Self { env, relay, inbox, service, load } = self;
        env.finish(load).await;
        let stored = env.stored_count().await;
        let goal = i64::try_from(stored).expect("fits");
        until(DEADLINE, "every event had its effect", async || processed(&env).await >= goal).await;
        let mut called: Vec<Uuid> = service.calls().iter().map(|it| it.id).collect();
        called.sort_unstable();
        called.dedup();
        assert_eq!(called.len() as u64, stored, "the service was called with every event");
        for process in [&relay, &inbox] {
            assert!(process.exited().is_none(), "it was not started again");
            for secret in secrets {
                assert!(!process.log().contains(secret), "{secret}: {}", process.log());
            }
        }
        print_lateness(&env).await;
    }
}

/// A time as the log has it, such as `167.4ms`.
fn seconds(text: &str) -> Duration {
    let units = [("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, factor)| {
        Some(text.trim_end_matches('"').strip_suffix(unit)?.parse::<f64>().ok()? * factor)
    });
    Duration::from_secs_f64(found.unwrap_or_else(|| panic!("{text} is a time")))
}

/// From the commit to the stream, and from the commit to the record of the effect. How late they are
/// is up to the machine too: the tests assert how many attempts it took, and show this.
async fn print_lateness(env: &TestEnv) {
    let commits =
        "SELECT id, (extract(epoch FROM pg_xact_commit_timestamp(txid::xid)) * 1000)::int8
                   FROM outbox_events";
    let commits = env.client().await.query(commits, &[]).await.expect("commits are logged");
    let committed: BTreeMap<Uuid, i64> =
        commits.iter().map(|row| (row.get(0), row.get(1))).collect();
    let stored = env.stored().await;
    print_late("stored", stored.iter().map(|it| it.stored_at - committed[&it.id]).collect());
    let effects = "SELECT array_agg((extract(epoch FROM m.processed_at
                       - pg_xact_commit_timestamp(e.txid::xid)) * 1000)::int8)
                   FROM inbox_messages m JOIN outbox_events e ON e.id = m.message_id";
    print_late("processed", env.query(effects).await);
}

fn print_late(what: &str, mut late: Vec<i64>) {
    late.sort_unstable();
    let (count, median, most) = (late.len(), late[late.len() / 2], late[late.len() - 1]);
    let over = late.iter().filter(|it| i128::from(**it) > LATE.as_millis().cast_signed()).count();
    eprintln!("{count} events {what}: median {median} ms, most {most} ms, {over} over {LATE:?}");
}
