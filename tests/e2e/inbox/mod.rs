//! The inbox on real servers: its workers are processes that can be killed.

mod any_message;
mod bounds;
mod counted;
mod dead_letters_api;
mod example;
mod faults;
mod http;
mod inbox_dead_letters;
mod inbox_shards;
mod killed;
mod left;
mod letters_kept;
mod orders;
mod outages;
mod role;
mod service;
mod whole_way;

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream;
use async_nats::jetstream::{self, Context};
use outbox::{Event, wire};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::{DEADLINE, TestEnv, TestEnvOptions, peak_memory, until};
use uuid::Uuid;

/// A stream, the tables, and workers between.
pub(crate) struct Inbox {
    pub(crate) env: TestEnv,
    jetstream: Context,
    variables: Vec<(String, String)>,
}

const TABLES: &str = "
    CREATE TABLE effects (event_id UUID NOT NULL, aggregate_id TEXT NOT NULL, n BIGINT NOT NULL,
        place BIGINT GENERATED ALWAYS AS IDENTITY);
    CREATE TABLE runs (event_id UUID NOT NULL, pid INT NOT NULL, attempt INT NOT NULL);";

impl Inbox {
    pub(crate) async fn new() -> Self {
        Self::with(TestEnvOptions::default(), inbox::Layout::Partitioned).await
    }

    pub(crate) async fn with(options: TestEnvOptions, layout: inbox::Layout) -> Self {
        let env = TestEnv::with(options).await;
        let mut client = env.client().await;
        inbox::create_tables(&mut client, "public", layout).await.expect("create the tables");
        env.execute(TABLES).await;
        let jetstream = jetstream::new(env.nats.client().await.expect("connect to NATS"));
        let config = stream::Config {
            name: "OUTBOX".into(),
            subjects: vec!["outbox.>".into()],
            ..stream::Config::default()
        };
        jetstream.create_stream(config).await.expect("create the stream");
        let variables = vec![
            ("DATABASE_URL".to_owned(), env.postgres.url("postgres")),
            ("NATS_URL".to_owned(), env.nats.url()),
        ];
        Self { env, jetstream, variables }
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn worker(&self) -> Worker {
        Worker::spawn(&self.variables)
    }

    /// Stores an event whose payload is `orders`; returns its id.
    pub(crate) async fn publish(&self, aggregate: &str, orders: Value) -> Uuid {
        let event = Event::new("order", aggregate, "OrderPlaced", &orders).expect("an event");
        self.publish_event(&event).await;
        event.id
    }

    /// Says whether the stream took it: it had the event already, and knew that.
    pub(crate) async fn publish_event(&self, event: &Event) -> bool {
        self.publish_to("outbox.order.OrderPlaced", event).await
    }

    pub(crate) async fn publish_to(&self, subject: &'static str, event: &Event) -> bool {
        let mut headers = HeaderMap::new();
        wire::event_headers(event, |name, value| headers.append(name, value)).expect("headers");
        let ack = self.jetstream.publish_with_headers(subject, headers, event.payload.clone());
        !ack.await.expect("publish").await.expect("the stream takes it").duplicate
    }

    /// From soon on, what is published twice is stored twice.
    pub(crate) async fn forget_ids(&self) {
        let mut config = self.env.stream().await.cached_info().config.clone();
        config.duplicate_window = Duration::from_millis(100);
        self.jetstream.update_stream(&config).await.expect("shorten the window");
    }

    /// Stores `n` events of ten aggregates, numbered from `first`, and all with these `orders`.
    pub(crate) async fn publish_many(&self, first: i64, n: i64, orders: &Value) -> Vec<Uuid> {
        self.publish_as(|n| format!("o-{}", n % 10), first..first + n, orders).await
    }

    /// Stores events with these numbers, of the aggregates that `aggregate` says.
    pub(crate) async fn publish_as(
        &self,
        aggregate: impl Fn(i64) -> String,
        numbers: std::ops::Range<i64>,
        orders: &Value,
    ) -> Vec<Uuid> {
        let mut ids = Vec::new();
        let mut acks = Vec::new();
        for n in numbers {
            let mut orders = orders.clone();
            orders["n"] = json!(n);
            let aggregate = aggregate(n);
            let event = Event::new("order", aggregate, "OrderPlaced", &orders).expect("an event");
            let mut headers = HeaderMap::new();
            wire::event_headers(&event, |name, value| headers.append(name, value))
                .expect("headers");
            let subject = "outbox.order.OrderPlaced";
            let payload = event.payload.clone();
            let ack = self.jetstream.publish_with_headers(subject, headers, payload).await;
            acks.push(ack.expect("publish"));
            ids.push(event.id);
        }
        for ack in acks {
            ack.await.expect("the stream takes it");
        }
        ids
    }

    /// Stores as many events of this aggregate, without numbers, quickly.
    pub(crate) async fn publish_quickly(&self, aggregate: &str, n: u64, orders: &Value) {
        let before = self.env.stored_count().await;
        let client = self.env.nats.client().await.expect("connect to NATS");
        let mut event = Event::new("order", aggregate, "OrderPlaced", orders).expect("an event");
        for _ in 0..n {
            event.id = Uuid::new_v4();
            let mut headers = HeaderMap::new();
            wire::event_headers(&event, |name, value| headers.append(name, value))
                .expect("headers");
            let (subject, payload) = ("outbox.order.OrderPlaced", event.payload.clone());
            client.publish_with_headers(subject, headers, payload).await.expect("publish");
        }
        client.flush().await.expect("NATS takes them");
        self.env.wait_stored(before + n).await;
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.env.query(&format!("SELECT count(*) FROM {sql}")).await
    }

    pub(crate) async fn wait_count(&self, sql: &str, n: i64) {
        until(DEADLINE, &format!("{n} are in {sql}"), async || self.count(sql).await >= n).await;
    }

    /// Waits until every message is acknowledged.
    pub(crate) async fn wait_acked(&self) {
        until(DEADLINE, "everything is acknowledged", async || {
            let stream = self.jetstream.get_stream("OUTBOX").await.expect("the stream");
            let Ok(info) = stream.consumer_info("worker").await else { return false };
            info.num_ack_pending == 0 && info.num_pending == 0
        })
        .await;
    }

    /// Checks that each of `n` events has had exactly one effect, and each aggregate's in order.
    pub(crate) async fn assert_exact(&self, n: i64) {
        let twice = "(SELECT FROM effects GROUP BY event_id HAVING count(*) > 1)";
        assert_eq!(self.count(&format!("{twice} AS t")).await, 0, "effects that happened twice");
        assert_eq!(self.count("effects").await, n, "effects");
        self.assert_ordered().await;
    }

    pub(crate) async fn assert_ordered(&self) {
        let out_of_order =
            "(SELECT n < lag(n) OVER (PARTITION BY aggregate_id ORDER BY place) AS bad
            FROM effects) AS t WHERE bad";
        assert_eq!(self.count(out_of_order).await, 0, "effects out of order");
    }
}

/// A worker's process. Dropping it kills it.
pub(crate) struct Worker {
    child: Child,
    folder: tempfile::TempDir,
}

impl Worker {
    fn spawn(variables: &[(String, String)]) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let log = File::create(folder.path().join("stderr")).expect("create the log");
        let child = Command::new(env!("CARGO_BIN_EXE_inbox-worker"))
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start the worker");
        Self { child, folder }
    }

    pub(crate) fn peak_memory(&self) -> u64 {
        peak_memory(Pid::from_child(&self.child))
    }

    pub(crate) fn kill9(mut self) {
        self.kill();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill the worker");
        self.child.wait().expect("wait for the worker");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("send a signal");
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.ended().await.success(), "{}", self.log());
    }

    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        until(DEADLINE, "the worker ends", async || {
            status = self.child.try_wait().expect("look after the worker");
            status.is_some()
        })
        .await;
        status.expect("just seen")
    }

    /// The most memory it has had at a time, in KiB.
    pub(crate) fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("read the status of the process");
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let most = most.and_then(|it| it.trim().strip_suffix(" kB")).expect("as Linux says it");
        most.parse().expect("a number")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).expect("read the log")
    }

    pub(crate) async fn wait_log(&self, text: &str) {
        let what = format!("the worker says `{text}`");
        until(DEADLINE, &what, async || self.log().contains(text)).await;
    }

    pub(crate) async fn wait_active(&self) {
        self.wait_log("the consumer is ours").await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "--- log of a worker\n{}",
                lines[lines.len().saturating_sub(60)..].join("\n")
            );
        }
    }
}

/// A pause between faults: their moment is random, not their number.
pub(crate) async fn some_time(millis: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(rand::random_range(millis))).await;
}
