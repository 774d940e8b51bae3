//! The servers, and on them a database and streams of their own for each round.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::HeaderMap;
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::{self, stream};
use lab::{Nats, NatsOptions, Postgres, PostgresOptions};
use outbox::{Event, wire};
use tokio_postgres::Client;

use crate::HTTP_PART;
use crate::cpu;
use crate::report::{Conditions, Cost};

const PAYLOAD_BYTES: usize = 300;
const AGGREGATES: u32 = 1_000;

/// Messages stored before an acknowledgement is waited for.
const WINDOW: usize = 1_024;

/// A durable PostgreSQL and a NATS that keeps streams in files.
pub(crate) struct Servers {
    pub(crate) postgres: Postgres,
    pub(crate) nats: Nats,
    pub(crate) measured: Measured,
}

/// What is measured, and how.
pub(crate) struct Measured {
    /// Handlers of the HTTP phases at a time.
    pub(crate) lanes: usize,
    /// The program that the inbox is in; this one if it is not set.
    pub(crate) inbox: Option<PathBuf>,
    /// Events that come at a steady pace.
    pub(crate) paced: u32,
}

impl Servers {
    pub(crate) async fn start(measured: Measured) -> Result<Self> {
        let options = PostgresOptions {
            fsync: true,
            // It would fall into one phase and not into another.
            settings: vec![("autovacuum".into(), "off".into())],
            ..PostgresOptions::default()
        };
        let postgres = Postgres::start(options).await?;
        Ok(Self { postgres, nats: Nats::start(NatsOptions::default()).await?, measured })
    }

    pub(crate) async fn conditions(&self, events: u32) -> Result<Conditions> {
        let client = self.postgres.client("postgres").await?;
        let row = client.query_one("SHOW server_version", &[]).await?;
        let load = std::fs::read_to_string("/proc/loadavg").context("read the machine's load")?;
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Ok(Conditions {
            postgresql: row.get(0),
            nats: self.nats.client().await?.server_info().version,
            cores: std::thread::available_parallelism()?.get(),
            processor: model.map_or("unknown", |it| it.1.trim()).to_owned(),
            load_before: load.split(' ').next().unwrap_or_default().parse().unwrap_or(f64::NAN),
            events,
            http_events: events / HTTP_PART,
            payload_bytes: PAYLOAD_BYTES,
            aggregates: AGGREGATES,
        })
    }

    /// Starts to measure what something costs the servers.
    pub(crate) fn meter(&self) -> Result<Meter<'_>> {
        let (postgres, nats) = self.used()?;
        Ok(Meter { servers: self, started: Instant::now(), postgres, nats })
    }

    fn used(&self) -> Result<(Duration, Duration)> {
        Ok((cpu::of_family(self.postgres.pid()?)?, cpu::of_process(self.nats.pid()?)?))
    }
}

/// What both servers had used at a start.
pub(crate) struct Meter<'a> {
    servers: &'a Servers,
    pub(crate) started: Instant,
    postgres: Duration,
    nats: Duration,
}

impl Meter<'_> {
    /// How fast `events` were handled since, and what that has cost.
    pub(crate) fn cost(&self, events: u32) -> Result<Cost> {
        let seconds = self.started.elapsed().as_secs_f64();
        let (postgres, nats) = self.servers.used()?;
        let each = |used: Duration| used.as_secs_f64() * 1e6 / f64::from(events);
        Ok(Cost {
            events_per_second: f64::from(events) / seconds,
            postgres_us_per_event: each(postgres.saturating_sub(self.postgres)),
            nats_us_per_event: each(nats.saturating_sub(self.nats)),
        })
    }
}

/// Events in a stream.
pub(crate) struct Waiting {
    pub(crate) stream: String,
    pub(crate) events: Vec<Event>,
}

impl Waiting {
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.events.len()).unwrap_or(u32::MAX)
    }
}

/// A database with the tables of an inbox, and streams with events.
pub(crate) struct BenchEnv<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) database: String,
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) all: Waiting,
    /// For the service.
    pub(crate) some: Waiting,
    /// For the service, at their times.
    pub(crate) paced: Waiting,
}

impl<'a> BenchEnv<'a> {
    pub(crate) async fn set_up(servers: &'a Servers, name: &str, events: u32) -> Result<Self> {
        servers.postgres.create_database(name).await?;
        let mut client = servers.postgres.client(name).await?;
        inbox::create_tables(&mut client, "public").await?;
        let jetstream = servers.nats.jetstream().await?;
        let all = store(&jetstream, format!("{name}_all"), events).await?;
        let some = store(&jetstream, format!("{name}_some"), events / HTTP_PART).await?;
        let paced = create(&jetstream, format!("{name}_paced"), servers.measured.paced).await?;
        Ok(Self { servers, database: name.to_owned(), client, jetstream, all, some, paced })
    }

    /// Writes down what the last phase has left to be written.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        self.client.batch_execute("CHECKPOINT").await.context("checkpoint")
    }

    /// How many messages a consumer has dealt with for good, and how many not.
    pub(crate) async fn handled(&self, stream: &str, consumer: &str) -> Result<(u64, u64)> {
        let stream = self.jetstream.get_stream_no_info(stream).await?;
        // It is not there before the inbox is.
        let Ok(info) = stream.consumer_info(consumer).await else { return Ok((0, u64::MAX)) };
        let pending = info.num_pending + info.num_ack_pending as u64;
        Ok((info.ack_floor.stream_sequence, pending))
    }

    /// Checks that a consumer has the record of each event of a stream.
    pub(crate) async fn check(&self, stream: &str, consumer: &str, events: u32) -> Result<()> {
        let sql = "SELECT count(*), count(*) FILTER (WHERE status = 'PROCESSED' AND attempts = 1)
                   FROM inbox_messages WHERE consumer = $1 AND stream = $2";
        let row =
            self.client.query_one(sql, &[&consumer, &stream]).await.context("count the records")?;
        let counted: (i64, i64) = (row.get(0), row.get(1));
        let expected = (events.into(), events.into());
        ensure!(counted == expected, "{consumer}: {counted:?} of {events} events are handled");
        Ok(())
    }

    /// Stores the paced events, and says when each was due. What is late is stored at once.
    pub(crate) async fn store_at_pace(&self, per_second: u32) -> Result<Vec<Instant>> {
        let (began, subject) = (Instant::now(), subject_of(&self.paced.stream));
        let (mut due, mut acks) = (Vec::new(), Vec::new());
        for (n, event) in (0_u32..).zip(&self.paced.events) {
            let at = began + Duration::from_secs_f64(f64::from(n) / f64::from(per_second));
            tokio::time::sleep_until(at.into()).await;
            due.push(at);
            acks.push(publish(&self.jetstream, &subject, event).await?);
        }
        for ack in acks {
            ack.await.context("store an event")?;
        }
        Ok(due)
    }

    /// Removes what would burden the next environment.
    pub(crate) async fn tear_down(self) -> Result<()> {
        for waiting in [&self.all, &self.some, &self.paced] {
            self.jetstream.delete_stream(&waiting.stream).await?;
        }
        drop(self.client);
        let admin = self.servers.postgres.client("postgres").await?;
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        admin.batch_execute(&sql).await.context("drop the database")
    }
}

fn subject_of(stream: &str) -> String {
    format!("{stream}.order.OrderPlaced")
}

async fn publish(
    jetstream: &jetstream::Context,
    subject: &str,
    event: &Event,
) -> Result<PublishAckFuture> {
    let mut headers = HeaderMap::new();
    wire::event_headers(event, |name, value| headers.append(name, value))?;
    let payload = event.payload.clone();
    Ok(jetstream.publish_with_headers(subject.to_owned(), headers, payload).await?)
}

/// A stream without any of these events.
async fn create(jetstream: &jetstream::Context, stream: String, events: u32) -> Result<Waiting> {
    let config = stream::Config {
        name: stream.clone(),
        subjects: vec![format!("{stream}.>")],
        ..stream::Config::default()
    };
    jetstream.create_stream(config).await.context("create a stream")?;
    let events: Vec<Event> = (0..events).map(event).collect::<Result<_, _>>()?;
    Ok(Waiting { stream, events })
}

async fn store(jetstream: &jetstream::Context, stream: String, events: u32) -> Result<Waiting> {
    let waiting = create(jetstream, stream, events).await?;
    let subject = subject_of(&waiting.stream);
    for events in waiting.events.chunks(WINDOW) {
        let mut acks = Vec::with_capacity(events.len());
        for event in events {
            acks.push(publish(jetstream, &subject, event).await?);
        }
        for ack in acks {
            ack.await.context("store an event")?;
        }
    }
    Ok(waiting)
}

/// The `n`-th event of a run.
fn event(n: u32) -> Result<Event, outbox::Error> {
    let bare = serde_json::json!({ "n": n, "note": "" }).to_string().len();
    let note = "parcels leave in the order in which they came. ".repeat(7);
    let note: String = note.chars().take(PAYLOAD_BYTES - bare).collect();
    let payload = serde_json::json!({ "n": n, "note": note });
    Event::new("order", format!("o-{}", n % AGGREGATES), "OrderPlaced", &payload)
}
