//! The inbox on real servers: its workers are processes that can be killed.

mod acked_by_others;
mod advisories;
mod any_history;
mod any_message;
mod bounds;
mod changed_consumer;
mod consumer_ahead;
mod consumers_api;
mod counted;
mod credentials;
pub(crate) mod database_gone_back;
mod dead_letters_api;
mod effects_awaited;
mod encrypted;
mod example;
mod explained;
mod faults;
pub(crate) mod http;
mod inbox_dead_letters;
mod inbox_shards;
mod kept_out;
mod killed;
mod left;
mod letters_kept;
mod locked_partitions;
mod orders;
mod outages;
mod programs;
mod receivers;
mod replayed;
mod rewind;
mod role;
pub(crate) mod service;
mod shared;
mod shared_at_random;
mod shared_handlers;
pub(crate) mod shared_stuck;
mod silent;
mod tables_lost;
pub(crate) mod unread;
mod whole_way;

use std::num::NonZeroU32;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream;
use async_nats::jetstream::{self, Context};
use outbox::{Event, wire};
use serde_json::{Value, json};
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, until, until_counted};
use uuid::Uuid;

/// A stream, the tables, and workers between.
pub(crate) struct Inbox {
    pub(crate) env: TestEnv,
    jetstream: Context,
    variables: Vec<(String, String)>,
    /// Into how many the stream is divided, if it is.
    partitions: Option<NonZeroU32>,
}

const TABLES: &str = "
    CREATE TABLE effects (event_id UUID NOT NULL, aggregate_id TEXT NOT NULL, n BIGINT NOT NULL,
        place BIGINT GENERATED ALWAYS AS IDENTITY);
    CREATE TABLE runs (event_id UUID NOT NULL, pid INT NOT NULL, attempt INT NOT NULL);";

impl Inbox {
    pub(crate) async fn new() -> Self {
        Self::with(TestEnvOptions::default()).await
    }

    pub(crate) async fn with(options: TestEnvOptions) -> Self {
        Self::within(TestEnv::with(options).await).await
    }

    /// With an application's own table of records, which has no partitions.
    pub(crate) async fn unpartitioned() -> Self {
        let env = TestEnv::new().await;
        let partitions = "PARTITION BY RANGE (event_time)";
        env.execute(&inbox::render_tables("public").replace(partitions, "")).await;
        Self::within(env).await
    }

    async fn within(env: TestEnv) -> Self {
        let mut client = env.client().await;
        inbox::create_tables(&mut client, "public").await.expect("create the tables");
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
        Self { env, jetstream, variables, partitions: None }
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Divides the stream, whose workers share the partitions from now on.
    pub(crate) async fn divide(&mut self, partitions: u32) {
        let mut config = self.env.stream().await.cached_info().config.clone();
        config.metadata.insert(wire::PARTITIONS.into(), partitions.to_string());
        self.jetstream.update_stream(&config).await.expect("divide the stream");
        self.set("WORKER_PARTITIONS", &partitions.to_string());
        self.set("WORKER_SUBJECTS", "outbox.{partition}.order.*");
        self.partitions = NonZeroU32::new(partitions);
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
            let subject = match self.partitions {
                Some(of) => {
                    let number = wire::partition("order", &event.aggregate_id, of);
                    format!("outbox.{number}.order.OrderPlaced")
                }
                None => "outbox.order.OrderPlaced".to_owned(),
            };
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
        let count = async || self.count(sql).await;
        until_counted(&format!("{n} are in {sql}"), count, |it| it >= n).await;
    }

    /// Waits until every message is acknowledged.
    pub(crate) async fn wait_acked(&self) {
        until(DEADLINE, "everything is acknowledged", async || self.is_acked().await).await;
    }

    /// Whether the consumer was given every message, and acknowledged it. A consumer that was just
    /// made has nothing pending: the broker has not looked at the stream for it.
    async fn is_acked(&self) -> bool {
        let stream = self.jetstream.get_stream("OUTBOX").await.expect("the stream");
        let last = stream.cached_info().state.last_sequence;
        let names = match self.partitions {
            Some(of) => (0..of.get()).map(|it| format!("worker-{it}")).collect(),
            None => vec!["worker".to_owned()],
        };
        for name in names {
            let Ok(info) = stream.consumer_info(&name).await else { return false };
            // The last message is of one of the partitions.
            let is_given = info.delivered.stream_sequence >= last || self.partitions.is_some();
            if !is_given || info.num_pending > 0 || info.num_ack_pending > 0 {
                return false;
            }
        }
        true
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
pub(crate) struct Worker(Relay);

impl Worker {
    fn spawn(variables: &[(String, String)]) -> Self {
        let worker = Path::new(env!("CARGO_BIN_EXE_inbox-worker"));
        let process = Relay::spawn_program(worker, &[], variables);
        // Its handler fails where it is told to.
        process.announce("");
        Self(process)
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(self) {
        self.sigterm();
        assert!(self.wait_exit(DEADLINE).await.success(), "{}", self.log());
    }

    pub(crate) async fn wait_active(&self) {
        self.wait_log("the consumer is ours").await;
    }
}

impl Deref for Worker {
    type Target = Relay;

    fn deref(&self) -> &Relay {
        &self.0
    }
}

/// A pause between faults: their moment is random, not their number.
pub(crate) async fn some_time(millis: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(rand::random_range(millis))).await;
}
