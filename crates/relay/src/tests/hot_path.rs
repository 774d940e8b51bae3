//! What an event costs on its way through the relay, in allocations: a number that does not depend
//! on the machine, and that must not grow unnoticed.
//!
//! The way is the real one, from the bytes of the log to the message that is handed to the client:
//! decode, row, subject, window, headers, reply subject, queue; then, once answered, resolution and
//! what is to be marked. Left out are the two clients, while which run nothing is counted, and the
//! reading of the answer, of which there is one for a batch.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use allocation_counter::measure;
use async_nats::jetstream::stream;
use bytes::{BufMut, Bytes, BytesMut};
use outbox::Table;
use outbox::wire::{CloudEvents, SubjectTemplate};
use pgoutput::{Lsn, Message};
use servers::NatsLink;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::unconstrained;
use uuid::Uuid;

use crate::engine::{
    BrokerInput, LogInput, Mode, Part, Publishing, Settings, Start, Tail, WindowLimits,
};
use crate::nats::{self, Attributes, History, Publisher};
use crate::postgres::Rows;
use crate::routing::Routing;

/// Allocations of one event among many. Lower it when it falls; do not raise it without a reason.
const ALLOCATIONS_MAX: f64 = 22.1;
/// What the attributes of a CloudEvent cost besides.
const OF_ATTRIBUTES_MAX: f64 = 36.0;

const SUBJECT: &str = "outbox.{aggregate_type}.{event_type}";

const RELATION: u32 = 16_384;

/// The outbox's columns with their types, as the publication announces them.
const COLUMNS: [(&str, u32); 11] = [
    ("id", 2950),
    ("aggregate_type", 25),
    ("aggregate_id", 25),
    ("event_type", 25),
    ("event_version", 23),
    ("payload", 3802),
    ("occurred_at", 1184),
    ("correlation_id", 2950),
    ("causation_id", 2950),
    ("headers", 3802),
    ("published_at", 1184),
];

const TRANSACTION_EVENTS: u32 = 500;
const TRANSACTIONS: u32 = 8;

fn relation() -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'R');
    out.put_u32(RELATION);
    out.put_slice(b"public\0outbox_events\0d");
    out.put_u16(COLUMNS.len().try_into().unwrap());
    for (name, oid) in COLUMNS {
        out.put_u8(0);
        out.put_slice(name.as_bytes());
        out.put_u8(0);
        out.put_u32(oid);
        out.put_i32(-1);
    }
    out.freeze()
}

/// A row as the walsender sends it: binary, 300 bytes of payload, the last four columns null.
fn insert(n: u32) -> Bytes {
    let id = Uuid::from_u128(u128::from(n) + 1);
    let aggregate = format!("o-{}", n % 1_000);
    let payload = format!("\u{1}{{\"n\": {n:>8}, \"note\": \"{:x<280}\"}}", "");
    let at = 800_000_000_000_000_i64 + i64::from(n);
    let values: [&[u8]; 7] = [
        id.as_bytes(),
        b"order",
        aggregate.as_bytes(),
        b"OrderPlaced",
        &1_i32.to_be_bytes(),
        payload.as_bytes(),
        &at.to_be_bytes(),
    ];
    let mut out = BytesMut::new();
    out.put_u8(b'I');
    out.put_u32(RELATION);
    out.put_u8(b'N');
    out.put_u16(COLUMNS.len().try_into().unwrap());
    for value in values {
        out.put_u8(b'b');
        out.put_u32(value.len().try_into().unwrap());
        out.put_slice(value);
    }
    out.put_bytes(b'n', COLUMNS.len() - values.len());
    out.freeze()
}

/// Takes a client in, and then whatever it sends.
async fn broker() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (from, mut to) = socket.split();
        let info = r#"{"server_id":"x","version":"2.15.1","headers":true,"max_payload":1048576}"#;
        to.write_all(format!("INFO {info}\r\n").as_bytes()).await.unwrap();
        let mut lines = BufReader::new(from).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            if line == b"PING\r" {
                to.write_all(b"PONG\r\n").await.unwrap();
            }
        }
    });
    url
}

struct HotPath {
    rows: Rows,
    state: Publishing,
    publisher: Publisher,
    /// What the stream gave out last.
    seq: u64,
    committed: u64,
    resolved: usize,
}

impl HotPath {
    async fn new(
        client: async_nats::Client,
        subject: &str,
        attributes: Option<Attributes>,
    ) -> Self {
        let subject: SubjectTemplate = subject.parse().unwrap();
        let subject = subject.of_partitions(16.try_into().unwrap());
        let mut rows = Rows::new(Table::default(), Routing::new(Vec::new(), subject));
        let Message::Relation(relation) = Message::decode(relation()).unwrap() else { panic!() };
        rows.relation(&relation).unwrap();
        let history = History { system_id: 7_123_456_789_012_345_678, timeline: 1 };
        let stream = stream::Config { subjects: vec!["outbox.>".into()], ..Default::default() };
        let (_, limits) = watch::channel(nats::Limits::of(&stream, String::new()));
        let (_, link) = watch::channel(NatsLink::default());
        let publisher = Publisher::new(client, "OUTBOX", history, true, attributes, limits, link);
        let publisher = publisher.await;
        let state = Publishing::new(Start {
            written: crate::engine::WrittenDown::nothing(),
            mode: Mode::Fenced,
            tail: Tail::default(),
            dead: HashSet::new(),
            tried: HashMap::new(),
            seed: 1,
            settings: Settings {
                limits: WindowLimits { events: 8_192, bytes: 16 << 20 },
                ack_timeout: Duration::from_secs(5),
                resolved_before: Lsn::ZERO,
                log_end: Lsn(u64::MAX),
                stays_fenced: false,
                parking_blocks: false,
                max_attempts: 10,
            },
        });
        let (publisher, _answers) = publisher.unwrap();
        Self { rows, state, publisher, seq: 0, committed: 0, resolved: 0 }
    }

    fn read(&mut self, input: LogInput) {
        self.state.read(Duration::from_millis(1), input);
    }

    /// One transaction comes from the log, goes to the broker, and is answered.
    fn transact(&mut self, inserts: Vec<Bytes>) {
        self.committed += 1 << 20;
        let at = Lsn(self.committed);
        self.read(LogInput::Begin { commit_lsn: at, commit_time_micros: 800_000_000_000_000 });
        for body in inserts {
            let Message::Insert(insert) = Message::decode(body).unwrap() else { panic!() };
            let outgoing = self.rows.insert(&insert).unwrap().unwrap();
            self.read(LogInput::Logged(outgoing));
        }
        self.read(LogInput::Commit { end_lsn: Lsn(self.committed + 1) });
        // The first event is answered before the others follow, in a batch.
        while self.state.has_send() {
            let answers = self.send();
            for answer in answers {
                self.state.heard(Duration::from_millis(1), answer);
            }
        }
        self.resolved += self.state.take_resolved().len();
    }

    /// Sends what may be sent. Says what is answered.
    fn send(&mut self) -> Vec<BrokerInput> {
        let mut answers = Vec::new();
        while self.state.has_send() {
            assert!(self.publisher.is_ready(), "the client's queue takes a transaction");
            let send = self.state.next_send().unwrap();
            self.seq += 1;
            let (seq, epoch, index) = (self.seq, send.epoch, send.index);
            match send.part {
                None => answers.push(BrokerInput::Acked { epoch, index, seq, is_duplicate: false }),
                Some(Part { batch, number, last: true }) => {
                    answers.push(BrokerInput::Ended { batch, count: number, seq });
                }
                Some(_) => {}
            }
            assert_eq!(self.publisher.send(&send).unwrap(), None);
        }
        answers
    }
}

#[tokio::test]
async fn an_event_costs_no_more_allocations_than_it_did() {
    check(SUBJECT, None, ALLOCATIONS_MAX).await;
}

#[tokio::test]
async fn a_partition_costs_no_allocation() {
    check("outbox.{partition}.{aggregate_type}.{event_type}", None, ALLOCATIONS_MAX).await;
}

/// Each attribute is a name and a value in the client's map.
#[tokio::test]
async fn attributes_cost_a_bounded_number_of_allocations() {
    let attributes = Attributes { names: CloudEvents::default(), epoch: Some(1) };
    check(SUBJECT, Some(attributes), ALLOCATIONS_MAX + OF_ATTRIBUTES_MAX).await;
}

async fn check(subject: &str, attributes: Option<Attributes>, most: f64) {
    let client = async_nats::connect(broker().await).await.unwrap();
    let mut path = HotPath::new(client.clone(), subject, attributes).await;
    // The first event alone, as after any start; then everything grows to the size that it keeps.
    path.transact(vec![insert(0)]);
    unconstrained(async { path.transact((1..=TRANSACTION_EVENTS).map(insert).collect()) }).await;
    path.resolved = 0;

    let mut allocations = 0;
    for transaction in 1..=TRANSACTIONS {
        client.flush().await.unwrap();
        let first = transaction * TRANSACTION_EVENTS + 1;
        let inserts: Vec<Bytes> = (first..first + TRANSACTION_EVENTS).map(insert).collect();
        // Tokio would have a task pause amid so many messages.
        let transact = unconstrained(async { measure(|| path.transact(inserts)) });
        allocations += transact.await.count_total;
    }
    let events = TRANSACTIONS * TRANSACTION_EVENTS;
    assert_eq!(path.resolved, events as usize, "every event went all the way");
    assert_eq!(path.state.counts().batches, u64::from(TRANSACTIONS) + 1, "in batches");
    let each = allocations as f64 / f64::from(events);
    println!("{each:.3} allocations for each event");
    assert!(each <= most, "{each:.3} allocations an event, not {most}");
    assert!(each > most - 1.0, "{each:.3}: fewer than {most}, pin it lower");
}
