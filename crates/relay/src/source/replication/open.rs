//! Takes the slot, and begins to read it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use async_nats::Client;
use async_nats::jetstream::stream::Info;
use pgoutput::Lsn;
use tracing::{info, warn};
use uuid::Uuid;

use super::log_stream::LogStream;
use super::mark_jobs::MarkStores;
use super::slot_creation::{AwaitedSlot, Made, Making, make};
use super::{Log, Replication};
use crate::config::{self, Config, MarkBy, OnPark};
use crate::engine::{
    Backfill, Batching, Checkpoint, Engine, LastEvent, LogStart, MARKS_WAITING_MAX, Marking,
    MarkingStart, Mode, Publishing, Replaying, ResolvedPlace, ScanRanges, Settings, Start, Tail,
    WrittenDown, beyond_the_log,
};
use crate::error::Error;
use crate::nats::{self, Attributes, History, Publisher, TailReader, WAY_BACK_MAX, WayBack};
use crate::postgres::sql::{Books, Marks, StateRow};
use crate::postgres::{
    Encoding, Found, Messages, OpenSlot, Opening, Rows, Slot, Store, drained, sql,
};
use crate::reporter::News;
use crate::source::stream_comparison::HistoryWatch;
use crate::source::{OpenWith, Opened, Source, lost_end, other_messages};

/// How long a session that opens waits for the table of dead letters.
const LETTERS_WAIT: &str = "2s";

/// Stands for what decides which events take a sequence, and for the stream that gives it: if any of
/// that has changed, events behind a place that is written down cannot be counted.
fn rules(config: &Config, mode: Mode, stream: &Info) -> i64 {
    let version = env!("CARGO_PKG_VERSION");
    let (routing, table) = (config.routing(), &config.table);
    let (wal, created) = (config.wal, stream.created);
    let text = format!("{version} {mode:?} {routing:?} {table:?} {wal:?} {created}");
    // The same for each build of a version.
    outbox::fnv(text.bytes()).cast_signed()
}

/// Reads the stream's tail back to what is resolved, and builds the engine on it.
async fn publishing(
    config: &Config,
    mode: Mode,
    way: WayBack,
    reader: &TailReader,
    dead: HashSet<Uuid>,
    store: &Store,
    (resolved, rules): (Option<ResolvedPlace>, i64),
) -> Result<(Publishing, Option<LastEvent>, Option<String>), Error> {
    let resolved_before = way.resolved_before;
    let log_end = store.log_end().await?;
    let (tail, is_whole) = reader.all_back_to(way).await?;
    let tried = store.tried(&config.slot).await?;
    let mut written = WrittenDown::of(resolved, rules, is_whole);
    if written.needs_end(&tail) {
        written.before = store.mark_the_end().await?;
    }
    let stream = &config.stream.name;
    let went_back = beyond_the_log(&tail, log_end).map(|position| {
        format!(
            "the database went back, by a restore or a failover, or others write positions: stream \
             {stream} has events up to {position}, and the log ended at {log_end}. Their rows may \
             be gone; `tailpost verify` names them"
        )
    });
    if let Some(why) = &went_back {
        warn!(slot = config.slot, "{why}");
    }
    info!(
        slot = config.slot,
        stream = config.stream.name,
        %resolved_before,
        last_sequence = tail.last_seq,
        read_back = tail.stored.len(),
        "the slot is ours"
    );
    let (last, start) = (tail.last, start(config, mode, tail, (resolved_before, log_end)));
    let start = Start { written, dead, tried, ..start };
    Ok((Publishing::new(start), last, went_back))
}

/// Of a session for which nothing else is known.
pub(in crate::source) fn start(
    config: &Config,
    mode: Mode,
    tail: Tail,
    (resolved_before, log_end): (Lsn, Lsn),
) -> Start {
    let settings = Settings {
        limits: config.window,
        ack_timeout: config.ack_timeout,
        resolved_before,
        log_end,
        max_attempts: config.max_attempts,
        parking_blocks: config.on_park == OnPark::BlockKey,
        stays_fenced: config.needs_fence(),
    };
    let (written, seed) = (WrittenDown::nothing(), rand::random());
    Start { mode, settings, tail, written, dead: HashSet::new(), tried: HashMap::new(), seed }
}

/// Whether rows can be found by their transactions. Without marks nothing else leads to them.
async fn is_indexed(config: &Config, store: &Store) -> Result<bool, Error> {
    if config.mark.by == MarkBy::Lean {
        store.check_index_of_transactions().await?;
    }
    store.has_index_of_transactions().await
}

fn marking(config: &Config, state: Option<&StateRow>, is_indexed: bool, lost_end: bool) -> Marking {
    Marking::new(MarkingStart {
        batching: Batching {
            marks: config.mark.batch,
            interval: config.mark.interval,
            waiting_max: MARKS_WAITING_MAX,
        },
        by_watermark: config.mark.by == MarkBy::Lean,
        swept: state.and_then(|it| it.swept.clone()),
        whole_swept: state.and_then(|it| it.swept_ago),
        is_indexed,
        lost_end,
    })
}

/// What the log may bring again although nothing is to become of it.
///
/// A lock on the table of dead letters is not waited for, unless they block aggregates: those that the
/// log brings again are refused, and parked, again.
async fn newest_dead_letters(config: &Config, store: &Store) -> Result<HashSet<Uuid>, Error> {
    if config.on_park == OnPark::BlockKey {
        return store.newest_dead_letters().await;
    }
    store.wait_for_locks(Some(LETTERS_WAIT)).await?;
    let dead = match store.newest_dead_letters().await {
        Err(error) if error.is_contention() => {
            warn!("somebody has the dead letters locked: beginning without them");
            store.newest_requeued().await?
        }
        dead => dead?,
    };
    store.wait_for_locks(None).await?;
    Ok(dead)
}

/// Starts to stream. From then on events without a row are accepted if they are taken.
async fn log_stream(
    config: &Config,
    store: &Store,
    slot: Slot,
) -> Result<(LogStream, OpenSlot, StateRow), Error> {
    if !config.wal.messages {
        let how = "lose them: `tailpost slot drop --force` makes the slot anew";
        drained::check(config, store, how).await?;
    }
    let (walsender, open, state) = slot.start(store, &config.slot).await?;
    match config.wal.messages {
        true => store.accept_wal_messages(&config.slot).await?,
        false => store.forget_wal_messages(&config.slot).await?,
    }
    let rows = Rows::new(config.table.clone(), config.routing());
    let rows = rows.all_of(store.outbox_oids().await?).stored_in(Encoding::of(store).await?);
    let rows = rows.beside(store.types(&config.table.quoted()).await?.into_keys().collect());
    let messages = Messages::new(&config.table, config.wal.messages);
    Ok((LogStream::new(walsender, rows, messages), open, state))
}

/// Takes the slot and finds out what the stream has of what the slot will bring again.
///
/// The order matters, and each step can only be made from the one before it: only who reads the slot may
/// look at the stream's tail, so that no other relay writes what the slot brings by then.
///
/// # Errors
///
/// [`Error::SlotBusy`] if another relay is active; also if something is missing or broken.
pub(in crate::source) async fn open(
    with: OpenWith<'_>,
    unfenced: Option<String>,
) -> Result<Opened, Error> {
    let OpenWith { config, once, .. } = with;
    let known = match Box::pin(Taken::take(with, unfenced)).await? {
        Took::Slot(taken) => taken.stream(config).await?.know(config, once).await?,
        Took::Awaited(awaited) => awaited.know(config, with.opening).await?,
    };
    Box::pin(known.open(with)).await
}

/// The stream, and how it is published to.
struct Target {
    tail: TailReader,
    mode: Mode,
    /// Why that is keyed mode, although fenced mode is configured.
    unfenced: Option<String>,
}

impl Target {
    async fn find(
        config: &Arc<Config>,
        client: &Client,
        unfenced: Option<String>,
    ) -> Result<Self, Error> {
        let tail = TailReader::new(client, &config.stream.name).await?;
        let tail = tail.judged_by(other_messages::judge(config));
        let unfenced = nats::stream_check::check(config, client, &tail).await?.or(unfenced);
        let mode = match (config.mode, &unfenced) {
            (config::Mode::Fenced, None) => Mode::Fenced,
            _ => Mode::Keyed,
        };
        Ok(Self { tail, mode, unfenced })
    }

    /// What decides which events take a sequence of the stream as it is now.
    async fn rules(&self, config: &Config) -> Result<i64, Error> {
        Ok(rules(config, self.mode, &self.tail.info().await?))
    }
}

/// A slot, or the right to have it made.
enum Took {
    Slot(Box<Taken>),
    Awaited(Box<Awaited>),
}

/// The slot is ours, unless another relay begins to read it first.
struct Taken {
    store: Store,
    target: Target,
    is_indexed: bool,
    slot: Slot,
}

impl Taken {
    async fn take(with: OpenWith<'_>, unfenced: Option<String>) -> Result<Took, Error> {
        let OpenWith { config, opening, client, .. } = with;
        let store = Store::watched(config, "tailpost", opening).await?;
        store.check_set_up(config).await?;
        let is_indexed = is_indexed(config, &store).await?;
        let target = Target::find(config, client, unfenced).await?;
        let (slot, store) = match Slot::find(config, &store, &target.tail).await? {
            Found::There(slot) => (slot, store),
            Found::Missing(new) => {
                let slot = new.awaited()?;
                match make(config, new, store).await? {
                    Made::Now(made) => {
                        let (slot, store) = *made;
                        store.unlock_slot(&config.slot).await?;
                        (slot, store)
                    }
                    Made::Later(making) => {
                        let rules = target.rules(config).await?;
                        let awaited = Awaited { target, rules, slot, making };
                        return Ok(Took::Awaited(Box::new(awaited)));
                    }
                }
            }
        };
        let History { system_id, timeline } = slot.open.history;
        store.note_epoch(system_id, timeline).await?;
        Ok(Took::Slot(Box::new(Self { store, target, is_indexed, slot })))
    }

    /// Begins to read the slot: from then on no other relay does.
    async fn stream(self, config: &Config) -> Result<Streaming, Error> {
        let Self { store, target, is_indexed, slot } = self;
        let rules = target.rules(config).await?;
        let (log, slot, state) = log_stream(config, &store, slot).await?;
        Ok(Streaming { store, target, rules, log, slot, state, is_indexed })
    }
}

/// PostgreSQL makes the slot, for us alone.
struct Awaited {
    target: Target,
    rules: i64,
    slot: OpenSlot,
    making: Making,
}

impl Awaited {
    /// What the former slot brought is marked. So every visible row without a mark is to be published:
    /// by a scan, which reads the stream's tail first.
    async fn know(self, config: &Config, opening: &Opening) -> Result<Known, Error> {
        let Self { target, rules, slot, making } = self;
        let tail = &target.tail;
        let store = Store::watched(config, "tailpost", opening).await?;
        let last_event = lost_end::mend(config, &store, tail, Lsn::ZERO).await?.event;
        let tried = store.tried(&config.slot).await?;
        let log_end = store.log_end().await?;
        let end = tail.newest_since(1, 1, slot.history.system_id).await?;
        info!(slot = config.slot, "publishing from the table until the slot is there");
        let last_event = LastEvent::later(end.last, last_event);
        let start = start(config, target.mode, end, (Lsn::ZERO, log_end));
        let start = LogStart {
            publishing: Publishing::new(Start { tried, ..start }),
            marking: marking(config, None, false, false),
            backfill: Backfill::without_slot(),
            replaying: Replaying::new(false),
            checkpoint: Checkpoint::new(Lsn::ZERO, config.shards.count()),
            awaits_slot: true,
            wal_limit: config.wal.limit,
            until: None, // the next session does what is to be done once
        };
        let rows = Rows::new(config.table.clone(), config.routing());
        let log = Log::Awaited(Box::new(AwaitedSlot::new(rows, making, opening.waits())));
        let news = News { unfenced: target.unfenced, ..News::default() };
        let tail = target.tail;
        Ok(Known { store, tail, rules, log, slot, start, news, last_event })
    }
}

/// The slot is read by us alone, so the stream's tail may be looked at.
struct Streaming {
    store: Store,
    target: Target,
    rules: i64,
    log: LogStream,
    slot: OpenSlot,
    /// What was written down of it.
    state: StateRow,
    is_indexed: bool,
}

impl Streaming {
    /// Reads what the stream has of what the slot will bring again.
    async fn know(self, config: &Config, once: bool) -> Result<Known, Error> {
        let Self { store, target, rules, log, slot, state, is_indexed } = self;
        let Target { tail, mode, unfenced } = target;
        let resolved_before = state.resolved_before(slot.confirmed);
        let lost = lost_end::mend(config, &store, &tail, resolved_before).await?;
        let is_gap_filled = state.is_gap_filled && !lost.now;
        let written = state.checkpoint.unwrap_or(Lsn::ZERO);
        let checkpoint = if lost.now { written.min(resolved_before) } else { written };
        let way = WayBack {
            resolved_before,
            system_id: slot.history.system_id,
            overtaken_max: config.window.events,
            at_least: 1,
            at_most: WAY_BACK_MAX,
        };
        let dead = newest_dead_letters(config, &store).await?;
        // `--once` is to find also what was unmarked by hand.
        let unmarked_by_hand = once && config.mark.by != MarkBy::Lean;
        let wants_whole = !is_gap_filled || unmarked_by_hand;
        let ranges = ScanRanges::new(is_indexed, wants_whole, state.scanned_ago);
        let scan_first = once
            || !is_gap_filled
            || config.on_park == OnPark::BlockKey
            // Asked after the dead letters were read: what is requeued meanwhile is among them.
            || store.has_requeued().await?;
        // Events from there on may be lost, and come again.
        let resolved = state.resolved.filter(|_| !lost.now);
        let (publishing, last, went_back) =
            publishing(config, mode, way, &tail, dead, &store, (resolved, rules)).await?;
        let start = LogStart {
            publishing,
            marking: marking(config, Some(&state), is_indexed, lost.unswept),
            backfill: Backfill::new(scan_first, ranges, !is_gap_filled, config.scan.interval),
            replaying: Replaying::new(!once && !config.needs_fence()),
            checkpoint: Checkpoint::new(checkpoint, config.shards.count()),
            awaits_slot: false,
            wal_limit: config.wal.limit,
            until: if once { Some(store.mark_the_end().await?) } else { None },
        };
        let news = News { unfenced, restores: lost.unswept && !is_gap_filled, went_back };
        let last_event = LastEvent::later(last, lost.event);
        let log = Log::Read(Box::new(log));
        Ok(Known { store, tail, rules, log, slot, start, news, last_event })
    }
}

/// What the stream has is known, so there is an engine to be built on it.
struct Known {
    store: Store,
    tail: TailReader,
    rules: i64,
    log: Log,
    slot: OpenSlot,
    start: LogStart,
    news: News,
    last_event: Option<LastEvent>,
}

impl Known {
    async fn open(self, with: OpenWith<'_>) -> Result<Opened, Error> {
        let OpenWith { config, client, link, .. } = with;
        let Self { store, tail, rules, log, slot, start, news, last_event } = self;
        let (stream, limits, history) = (&config.stream.name, tail.limits(), slot.history);
        let has_ids = !config.needs_fence();
        let attributes = match config.cloudevents.clone() {
            None => None,
            Some(names) => {
                let epoch = Some(store.number_epoch(history.system_id, history.timeline).await?);
                Some(Attributes { names, epoch })
            }
        };
        let (client, link) = (client.clone(), link.clone());
        let publisher = Publisher::new(client, stream, history, has_ids, attributes, limits, link);
        let (publisher, answers) = publisher.await?;
        let marks = Marks::connect(config, "tailpost marks").await?;
        let books = Arc::new(Books::of(store).await?);
        let rows = Store::brief(config, "tailpost rows").await?;
        let source = Replication {
            config: Arc::clone(config),
            slot,
            rules,
            log,
            tail: tail.clone(),
            books,
            rows: Arc::new(sql::Rows::of(rows).await?),
            marks: MarkStores::new(Arc::new(marks)),
            scanner: None,
            unconnected: Arc::default(),
            replay: None,
            history: HistoryWatch::new(),
            last_event,
        };
        Ok(Opened {
            source: Source::Log(Box::new(source)),
            engine: Engine::of_log(start),
            publisher,
            answers,
            tail,
            started: Instant::now(),
            news,
        })
    }
}

#[cfg(test)]
mod tests;
