//! What the tests of both sources share: servers, an outbox with rows, and what shows that an effect was
//! carried out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lab::{Nats, NatsOptions, Postgres, PostgresOptions};
use outbox::Event;
use outbox::spans::SpanSink;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::SimpleQueryMessage;
use tracing::span;
use uuid::Uuid;

use super::*;
use crate::config::{Config, Mode};
use crate::engine::{About, Dead, Effect, Ignored, Notice, Replayed, Resolved, Send, SlotNotice};
use crate::postgres::Opening;
use crate::reporter::{Reporter, Reports};
use crate::status::{Role, SlotStatus, Status};

pub(super) const MARKED: &str = "SELECT count(published_at) FROM outbox_events";
pub(super) const PARKED: &str = "SELECT count(*) FROM outbox_dead_letter";
pub(super) const ATTEMPTS: &str = "SELECT sum(publish_attempts) FROM outbox_events";
pub(super) const OWED: &str = "SELECT count(*) FROM tailpost_owed";

/// Row 7 and row 8 were inserted before the slot was made; the marks of row 9 are owed.
const ROWS: &str = "
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
    SELECT lpad(to_hex(n), 32, '0')::uuid, 'order', n, 'OrderPlaced', '{}'
    FROM generate_series(1, 9) n;
    UPDATE outbox_events SET txid = '3' WHERE aggregate_id IN ('7', '8');
    INSERT INTO tailpost_owed (id, stream, stream_seq)
    SELECT id, 'OUTBOX', 9 FROM outbox_events WHERE aggregate_id = '9'";

/// The id of row `n`.
pub(super) fn row(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// The event of row `n` is stored.
pub(super) fn stored(n: u128) -> Resolved {
    Resolved { seq: Some(1), acked: true, ..Resolved::somewhere(row(n)) }
}

fn event(id: Uuid) -> Event {
    let event = Event::new("order", "o-1", "OrderPlaced", &0).unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d00000007-00f067aa00000007-01";
    Event { id, ..event.with_header("traceparent", parent) }
}

pub(super) fn dead(n: u128) -> Dead {
    Dead {
        event: Box::new(event(row(n))),
        seq: None,
        reason: "refused".into(),
        attempts: 1,
        blocks: false,
        blocked_by: None,
        has_row: true,
        is_requeued: false,
    }
}

/// The first notice, or the one behind this. Names all: one that is added has to get its place.
pub(super) fn notice_after(last: Option<&Notice>) -> Option<Notice> {
    let about = About { event_id: row(1), lsn: None, trace_id: None };
    let (reason, pause) = (String::from("refused"), Duration::ZERO);
    let slot = |notice| Notice::Slot { status: SlotStatus::default(), notice };
    Some(match last {
        None => Notice::ReadingTail { why: reason, unresolved: 1 },
        Some(Notice::ReadingTail { .. }) => Notice::Parking { about, reason },
        Some(Notice::Parking { .. }) => Notice::TryingAgain { about, attempts: 1, reason, pause },
        Some(Notice::TryingAgain { .. }) => Notice::NotReplayed { copy: row(6) },
        Some(Notice::NotReplayed { .. }) => Notice::Uncounted,
        Some(Notice::Uncounted) => Notice::Counted { counted: 1, uncertain: 0 },
        Some(Notice::Counted { uncertain: 0, .. }) => Notice::Counted { counted: 1, uncertain: 1 },
        Some(Notice::Counted { .. }) => Notice::ScanFound,
        Some(Notice::ScanFound) => Notice::FirstScanDone,
        Some(Notice::FirstScanDone) => Notice::Swept { rows: 1 },
        Some(Notice::Swept { .. }) => Notice::Unlogged { rows: 1 },
        Some(Notice::Unlogged { .. }) => slot(None),
        Some(Notice::Slot { notice: None, .. }) => slot(Some(SlotNotice::OverLimit)),
        Some(Notice::Slot { notice: Some(SlotNotice::OverLimit), .. }) => {
            slot(Some(SlotNotice::LimitIn(pause)))
        }
        Some(Notice::Slot { notice: Some(SlotNotice::LimitIn(_)), .. }) => {
            slot(Some(SlotNotice::Recovered))
        }
        Some(Notice::Slot { notice: Some(SlotNotice::Recovered), .. }) => Notice::StaysFenced,
        Some(Notice::StaysFenced) => Notice::IgnoringMessages { why: Ignored::Off },
        Some(Notice::IgnoringMessages { why: Ignored::Off }) => {
            Notice::IgnoringMessages { why: Ignored::NotTransactional }
        }
        Some(Notice::IgnoringMessages { why: Ignored::NotTransactional }) => {
            Notice::Stranger { why: reason }
        }
        Some(Notice::Stranger { .. }) => Notice::Stopping { why: "on request", unresolved: 1 },
        Some(Notice::Stopping { .. }) => return None,
    })
}

/// By what it shows that an effect was carried out.
pub(super) enum Sign {
    /// PostgreSQL gives another answer to this.
    Changes(&'static str),
    /// Its job brings this.
    Brings(fn(&Done) -> bool),
    Logged,
    /// The status says something else of the slot, or of how long events take.
    Reported,
    /// The span of a message ends.
    EndsSpan,
    /// The connection to the broker is another one.
    Reconnects,
    /// The session ends with this.
    Ends(fn(&Error) -> bool),
    /// It ends with an [`Error::Bug`], where assertions are checked with a panic.
    IsBug,
}

/// Counts what is logged.
#[derive(Clone, Default)]
struct Log(Arc<AtomicUsize>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with(module_path!().trim_end_matches("source::tests"))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A source on servers of its own, and whatever shows what it does.
/// To the crate of operators this one is another one than the one under test.
async fn set_up(config: &Config, postgres: String, nats: &str) {
    let mut made = tailpost_relay::Config::new(postgres.parse().unwrap(), nats.parse().unwrap());
    if config.mode == Mode::Poll {
        made.mode = tailpost_relay::Mode::Poll;
    }
    Box::pin(operate::setup(&made, operate::Storage::default())).await.unwrap();
}

pub(super) struct Shell {
    pub(super) source: Source,
    pub(super) sql: tokio_postgres::Client,
    reporter: Reporter,
    status: watch::Receiver<Status>,
    spans: Arc<AtomicUsize>,
    log: Log,
    client: Client,
    _logging: tracing::subscriber::DefaultGuard,
    _servers: (Postgres, Nats),
}

impl Shell {
    /// `adjust` changes the configuration before anything is made by it.
    pub(super) async fn open(adjust: fn(&mut Config)) -> Self {
        let log = Log::default();
        let logging = tracing::subscriber::set_default(log.clone());
        let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
        let nats = Nats::start(NatsOptions::default()).await.unwrap();
        let mut config = crate::config::tests::config();
        config.postgres = postgres.url("postgres").parse().unwrap();
        // By two names it is two servers, of which one can be left.
        let servers = format!("nats://127.0.0.1:{0},nats://localhost:{0}", nats.port());
        config.nats = servers.parse().unwrap();
        adjust(&mut config);
        set_up(&config, postgres.url("postgres"), &servers).await;
        let sql = postgres.client("postgres").await.unwrap();
        sql.batch_execute(ROWS).await.unwrap();
        let config = Arc::new(config);
        let (client, link) = config.nats.connect_watched("tailpost").await.unwrap();
        let opening = Opening::new(&config);
        let with = OpenWith {
            config: &config,
            opening: &opening,
            client: &client,
            link: &link,
            once: false,
        };
        let opened = Source::open(with, None).await.unwrap();
        let spans = Arc::new(AtomicUsize::new(0));
        let ended = Arc::clone(&spans);
        let (sender, status) = watch::channel(Status::default());
        let sink = SpanSink::new(move |_| _ = ended.fetch_add(1, Ordering::Relaxed));
        let reports = Reports { spans: Some(sink), ..Reports::to(sender) };
        let reporter = Reporter::new(reports, &config);
        Self {
            source: opened.source,
            sql,
            reporter,
            status,
            spans,
            log,
            client,
            _logging: logging,
            _servers: (postgres, nats),
        }
    }

    /// A copy, with the id of row 6, is being published.
    fn send_copy(&mut self) {
        let replayed = Replayed { event: row(2), replay: row(3), position: None };
        self.reporter.sending(&Send {
            epoch: 0,
            index: 0,
            expected: None,
            event: &event(row(6)),
            subject: "outbox.order.OrderPlaced",
            position: None,
            part: None,
            replayed: Some(&replayed),
            has_row: true,
        });
    }

    pub(super) async fn ask(&self, sql: &str) -> String {
        let answer = self.sql.simple_query(sql).await.unwrap();
        let mut columns = answer
            .iter()
            .filter_map(|it| if let SimpleQueryMessage::Row(row) = it { row.get(0) } else { None });
        columns.next().unwrap_or_default().to_owned()
    }

    /// What is seen where the sign is expected.
    async fn look(&self, sign: &Sign) -> String {
        match sign {
            Sign::Changes(sql) => self.ask(sql).await,
            Sign::Logged => self.log.0.load(Ordering::Relaxed).to_string(),
            Sign::Reported => {
                let status = self.status.borrow();
                format!("{:?} {:?}", status.slot, status.commit_to_ack.counts)
            }
            Sign::EndsSpan => self.spans.load(Ordering::Relaxed).to_string(),
            Sign::Reconnects => {
                self.client.statistics().connects.load(Ordering::Relaxed).to_string()
            }
            Sign::Brings(_) | Sign::Ends(_) | Sign::IsBug => String::new(),
        }
    }

    /// Panics unless the effect does what the sign says.
    pub(super) async fn carry_out(&mut self, effect: Effect, sign: Sign) -> Done {
        let what = format!("{effect:?}");
        let seen = timeout(Duration::from_secs(10), self.try_out(effect, sign)).await;
        seen.unwrap_or_else(|_| panic!("nothing came of {what}"))
            .unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    async fn try_out(&mut self, effect: Effect, sign: Sign) -> Result<Done, String> {
        if let Sign::IsBug = &sign {
            let (source, reporter) = (&mut self.source, &mut self.reporter);
            let ended = catch_unwind(AssertUnwindSafe(|| source.carry_out(effect, reporter)));
            let is_bug = ended.map_or(true, |it| matches!(it, Err(Error::Bug(_))));
            return if is_bug { Ok(Done::Nothing) } else { Err("it is taken for no bug".into()) };
        }
        if let Sign::EndsSpan = &sign {
            self.send_copy();
        }
        let before = self.look(&sign).await;
        let job = match (self.source.carry_out(effect, &mut self.reporter), &sign) {
            (Err(error), Sign::Ends(is_meant)) if is_meant(&error) => return Ok(Done::Nothing),
            (job, _) => job.map_err(|error| crate::describe(&error))?,
        };
        let done = match job {
            Some(job) => job.await.map_err(|error| crate::describe(&error))?,
            None => Done::Nothing,
        };
        self.reporter.role(Role::Active);
        match &sign {
            Sign::Brings(is_meant) if is_meant(&done) => {}
            Sign::Brings(_) => return Err("it brings something else".into()),
            Sign::Ends(_) | Sign::IsBug => return Err("the session goes on".into()),
            Sign::Changes(_)
            | Sign::Logged
            | Sign::Reported
            | Sign::EndsSpan
            | Sign::Reconnects => {
                while self.look(&sign).await == before {
                    sleep(Duration::from_millis(10)).await;
                }
            }
        }
        Ok(done)
    }
}
