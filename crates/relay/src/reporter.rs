//! Keeps a relay's counters across sessions and sends its status out now and then.

mod notices;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use outbox::spans::SpanSink;
use outbox::waiting::{Seen, Waiting};
use servers::NatsLink;
use tokio::sync::watch;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::config::Config;
use crate::engine::{Figures, Origin, Resolved, Send};
use crate::event_state::EventState;
use crate::mode::Mode;
use crate::postgres::sql::Stuck;
use crate::publish_spans::PublishSpans;
use crate::status::{HistoryStatus, Role, Status};

/// How often a status goes out.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// PostgreSQL counts microseconds from 2000-01-01.
pub(crate) const POSTGRES_EPOCH_UNIX_MICROS: i64 = 946_684_800_000_000;

/// A time as PostgreSQL counts it.
fn from_postgres_micros(micros: i64) -> Timestamp {
    let micros = micros.saturating_add(POSTGRES_EPOCH_UNIX_MICROS);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MIN)
}

/// Whom a relay tells what it does.
#[derive(Debug)]
pub struct Reports {
    /// Receives a report about every 100 ms while a session runs, and otherwise one at least every
    /// 40 s: none means that the relay hangs.
    pub status: watch::Sender<Status>,
    /// Those who wait for events are told of each that the broker stores, at once.
    pub waiting: Waiting<EventState>,
    /// Takes a span of each event whose trace is recorded. Nothing is done for it if `None`.
    pub spans: Option<SpanSink>,
}

impl Reports {
    /// For a relay without waiters and spans.
    pub fn to(status: watch::Sender<Status>) -> Self {
        Self { status, waiting: Waiting::default(), spans: None }
    }
}

/// What operators are told when a session begins.
#[derive(Default)]
pub(crate) struct News {
    /// Why it works in keyed mode although fenced mode is configured.
    pub(crate) unfenced: Option<String>,
    /// Rows whose messages the stream has lost are to be published again.
    pub(crate) restores: bool,
    /// The stream has events of a log that the database has not, with their places.
    pub(crate) went_back: Option<String>,
}

pub(crate) struct Reporter {
    status: Status,
    reports: Reports,
    stream: String,
    slot: String,
    /// Of messages of the log that are events.
    wal_prefix: String,
    /// Counters as they were when the session began.
    base: Status,
    sent: Option<Instant>,
    link: Option<watch::Receiver<NatsLink>>,
    spans: Option<PublishSpans>,
    /// An event that the stream does not take because of its id, and why.
    id_taken: Option<(Uuid, String)>,
}

impl Reporter {
    pub(crate) fn new(reports: Reports, config: &Config) -> Self {
        let (mode, stream) = (config.mode, config.stream.name.clone());
        let spans = reports.spans.clone().map(|sink| PublishSpans::new(sink, &stream));
        Self {
            status: Status { mode, configured_mode: mode, ..Status::default() },
            reports,
            stream,
            slot: config.slot.clone(),
            wal_prefix: config.table.wal_prefix(),
            base: Status::default(),
            sent: None,
            link: None,
            spans,
            id_taken: None,
        }
    }

    /// A session begins: its counters start at nothing.
    pub(crate) fn begin(&mut self, timeline: Option<u32>, news: News) {
        let News { unfenced, restores, went_back } = news;
        let stream = &self.stream;
        match &unfenced {
            Some(why) if self.status.keyed_because != unfenced => warn!(
                stream,
                "keyed mode instead of fenced mode: the order of each aggregate is kept, and no other, \
                 and events are single while the stream remembers their ids. {why}"
            ),
            None if self.status.keyed_because.is_some() => info!(stream, "fenced mode again"),
            _ => {}
        }
        self.status.mode =
            if unfenced.is_some() { Mode::Keyed } else { self.status.configured_mode };
        self.status.keyed_because = unfenced;
        self.status.timeline = timeline;
        self.status.restores = restores;
        // It stays until the process ends: an operator has to look.
        self.status.database_went_back = went_back.or(self.status.database_went_back.take());
        self.status.postgres_connected = true;
        self.status.last_progress = Some(Instant::now());
        (self.status.waiting_for, self.status.held_back) = (None, false);
        self.base = self.status.clone();
        self.role(Role::Active);
    }

    pub(crate) fn role(&mut self, role: Role) {
        self.status.role = role;
        if role != Role::Active {
            self.status.postgres_connected = false;
        }
        if role == Role::Standby {
            self.status.last_progress = Some(Instant::now());
        }
        self.send();
    }

    pub(crate) fn failed(&mut self, error: String) {
        self.status.reconnects_total += 1;
        self.status.last_error = Some(error);
        (self.status.waiting_for, self.status.held_back) = (None, false);
        self.role(Role::Starting);
    }

    /// Whether a session ever began, or waited for the slot: both servers have let us in.
    pub(crate) fn has_begun(&self) -> bool {
        self.status.last_progress.is_some()
    }

    /// What opening a session waits for, if it does.
    pub(crate) fn waiting(&mut self, what: Option<String>) {
        self.status.waiting_for = what;
        self.send();
    }

    /// PostgreSQL sends nothing, because it waits for others.
    pub(crate) fn held_back(&mut self, what: String) {
        if !self.status.held_back {
            warn!("PostgreSQL holds events back {what}");
        }
        self.status.held_back = true;
        self.status.waiting_for = Some(what);
    }

    /// Rows that the relay cannot mark were counted. Logged when there are the first, and none any more.
    pub(crate) fn stuck(&mut self, stuck: Stuck) {
        let status = &mut self.status;
        let refused = stuck.refused.as_ref().map_or(0, |it| it.0);
        let locked = stuck.owed - refused.min(stuck.owed);
        match (std::mem::replace(&mut status.refused_marks, refused), &stuck.refused) {
            (0, Some((rows, why))) => warn!(
                rows,
                why,
                "the database refuses to mark or remove rows of published or parked events: change the \
                 trigger or the constraint"
            ),
            (1.., None) => info!("the database refuses no mark any more"),
            _ => {}
        }
        let owed = std::mem::replace(&mut status.owed_rows, locked);
        let unidentified = std::mem::replace(&mut status.unidentified_rows, stuck.unidentified);
        match (owed, locked) {
            (0, rows @ 1..) => warn!(
                rows,
                "somebody has rows locked whose events are published or parked: they are marked or \
                 removed when they are free"
            ),
            (1.., 0) => info!("rows that were locked are marked or removed"),
            _ => {}
        }
        match (unidentified, stuck.unidentified) {
            (0, rows @ 1..) => error!(
                rows,
                "the outbox has rows without an id, which can be neither published nor parked: they \
                 are left out. Give each an id, which makes an event of it, or delete it"
            ),
            (1.., 0) => info!("no row lacks an id any more"),
            _ => {}
        }
    }

    /// Rows were compared with the stream.
    pub(crate) fn compared(&mut self, mut found: HistoryStatus) {
        if let Some(why) = &found.missing {
            error!(rows = found.missing_total, "the stream lacks what a row says it has: {why}");
        }
        let before = &mut self.status.history;
        if let Some(why) = &found.failing {
            if before.failing.is_none() {
                info!(error = why, "could not compare rows with the stream");
            }
            found.failing_since = before.failing_since.or(found.failing_since);
            (found.compared_at, found.rows) = (before.compared_at, before.rows);
        }
        found.missing_total += before.missing_total;
        found.missing = found.missing.or_else(|| before.missing.take());
        self.status.history = found;
    }

    /// Something went wrong that the session survives.
    pub(crate) fn trouble(&mut self, why: String) {
        self.status.last_error = Some(why);
    }

    /// The stream has another message under an event's id: what is said of that event next is why.
    pub(crate) fn id_taken(&mut self, id: Uuid, why: String) {
        self.id_taken = Some((id, why));
    }

    /// Why the latest statement that marks rows failed, if it did.
    pub(crate) fn marks_failing(&mut self, why: Option<String>) {
        self.status.marks_failing = why;
    }

    /// A message was handed over.
    pub(crate) fn sending(&mut self, send: &Send<'_>) {
        if let Some(spans) = &mut self.spans {
            spans.sending(send);
        }
    }

    /// No more copies of a replay are handed over for now.
    pub(crate) fn replay_over(&mut self) {
        self.spans.iter_mut().for_each(PublishSpans::replay_over);
    }

    /// Tells those who wait, ends spans, and measures how long acknowledged events took.
    pub(crate) fn resolved(&mut self, resolved: &[Resolved]) {
        let stored = || resolved.iter().filter(|it| it.seq.is_some());
        let published = |seq| EventState::Published { stream: Some(self.stream.clone()), seq };
        // No row will tell.
        let emitted = stored().filter(|it| it.origin == Origin::Emitted);
        self.reports.waiting.remember(emitted.map(|it| (it.id, published(it.seq))));
        let told = stored().map(|it| (it.id, it.seq));
        self.reports.waiting.tell(told, |seq| Seen::Final(published(seq)));
        if let Some(spans) = &mut self.spans {
            for it in resolved {
                spans.resolved(it, || from_postgres_micros(it.commit_time_micros).into());
            }
        }
        let mut measured = resolved.iter().filter(|it| it.acked && it.origin.is_logged());
        let Some(first) = measured.next() else { return };
        let now = Timestamp::now().as_microsecond() - POSTGRES_EPOCH_UNIX_MICROS;
        for it in std::iter::once(first).chain(measured) {
            let micros = now.saturating_sub(it.commit_time_micros).max(0);
            self.status.commit_to_ack.record(Duration::from_micros(micros.unsigned_abs()));
        }
    }

    /// Takes a session's state over, if it is time. With `last` it always is.
    pub(crate) fn report(&mut self, figures: &Figures<'_>, last: bool) {
        let Figures { publishing: state, marks, confirmed, scanned, has_gap } = *figures;
        if !last && self.sent.is_some_and(|sent| sent.elapsed() < REPORT_EVERY) {
            return;
        }
        let (base, counts) = (&self.base, state.counts());
        let status = &mut self.status;
        let resolved = |it: &Status| {
            it.published_total + it.already_stored_total + it.dead_letters_total + it.dropped_total
        };
        let before = resolved(status);
        status.restores &= has_gap;
        let received = state.received().max(state.confirmed());
        if received > status.received_lsn && std::mem::take(&mut status.held_back) {
            status.waiting_for = None;
            info!("PostgreSQL sends events again");
        }
        status.resolved_lsn = state.confirmed();
        status.confirmed_flush_lsn = confirmed;
        status.received_lsn = received;
        status.oldest_unresolved_at = state.oldest_commit_micros().map(from_postgres_micros);
        status.publish_to_ack = base.publish_to_ack.plus(state.answer_times());
        status.in_flight_events = state.unresolved();
        status.in_flight_bytes = state.window_bytes();
        status.published_total = base.published_total + counts.acked;
        status.duplicates_total = base.duplicates_total + counts.duplicates;
        status.already_stored_total = base.already_stored_total + counts.found;
        status.dead_letters_total = base.dead_letters_total + counts.parked.total();
        status.dead_letters_by_reason = base.dead_letters_by_reason.plus(&counts.parked);
        status.replayed_total = base.replayed_total + counts.replayed;
        status.dropped_total = base.dropped_total + counts.dropped;
        status.resyncs_total = base.resyncs_total + counts.resyncs;
        status.batches_total = base.batches_total + counts.batches;
        status.strangers_total = base.strangers_total + counts.strangers;
        status.foreign_total = base.foreign_total + counts.foreign;
        status.ignored_total = base.ignored_total + counts.ignored;
        status.outages_total = base.outages_total + counts.outages;
        status.deferred_total = base.deferred_total + counts.deferred;
        (status.breaker, status.breaker_retry_in) = state.breaker();
        status.breaker_opened_total = base.breaker_opened_total + state.breaker_opened();
        status.rows_marked_total = base.rows_marked_total + marks.marked;
        status.swept_total = base.swept_total + marks.swept;
        status.unlogged_total = base.unlogged_total + marks.unlogged;
        status.scanned_total = base.scanned_total + scanned;
        let now = Some(Instant::now());
        if resolved(status) > before {
            status.last_resolved = now;
        }
        if resolved(status) > before || status.in_flight_events == 0 {
            status.last_progress = now;
        }
        self.send();
    }

    /// From now on the connection to the broker is watched here.
    pub(crate) fn watch(&mut self, link: watch::Receiver<NatsLink>) {
        self.link = Some(link);
    }

    /// The connection to the broker, as far as there is one.
    pub(crate) fn link(&self) -> watch::Receiver<NatsLink> {
        self.link.clone().unwrap_or_else(|| watch::channel(NatsLink::default()).1)
    }

    /// Shows that the relay runs, also while nothing changes.
    pub(crate) fn alive(&self) {
        self.reports.status.send_modify(|_| {});
    }

    fn send(&mut self) {
        if let Some(link) = &self.link {
            let link = link.borrow();
            self.status.nats_connected = link.connected;
            self.status.nats_lost_at =
                (!link.connected).then(|| self.status.nats_lost_at.unwrap_or_else(Timestamp::now));
            let refused = link.refused.clone().filter(|_| !link.connected);
            self.status.last_error = refused.or(self.status.last_error.take());
        }
        self.sent = Some(Instant::now());
        self.reports.status.send_replace(self.status.clone());
    }
}
