//! The replication slot: found, checked, created anew, started.

use pgoutput::Lsn;
use pgwire_replication::{IdentifySystem, PgWireError, ReplicationClient};
use tracing::{info, warn};

use super::Rows;
use super::source::Source;
use super::store::{SWEPT_AT_ONCE, StateRow, Store, Watermark};
use crate::broker::{TailReader, WayBack};
use crate::config::Config;
use crate::core::{LOGGED_WHILE_SCAN_UNMARKED_MAX, Origin, Settled};
use crate::error::{Error, sqlstate};

/// Marks written at a time while an old slot's last events are looked up in the stream.
const MARKS_AT_ONCE: usize = 1_000;

/// A slot whose start is known, on a session that has not started to stream.
///
/// What the slot brings is decided by the snapshot at its consistent point: exactly the rows whose
/// transaction is *not* visible in it. Everything else is the scanner's.
pub(crate) struct Slot {
    session: ReplicationClient,
    pub(crate) system_id: u64,
    pub(crate) timeline: u32,
    /// What PostgreSQL may forget already; the slot brings nothing that ended before.
    confirmed: Lsn,
    pub(crate) start_snapshot: String,
    watermark: Option<Watermark>,
    /// The process that will read the slot for this session.
    pub(crate) reader: i32,
    /// The slot was created just now: what it does not bring has to be scanned for.
    pub(crate) created: bool,
}

#[derive(Debug)]
struct SlotRow {
    plugin: String,
    confirmed: Lsn,
    lost: bool,
    active: bool,
    /// Where it belongs, if not here.
    elsewhere: Option<String>,
    /// Surely not the one that was created here, which follows a failover from PostgreSQL 17 on.
    replaced: bool,
}

impl Slot {
    /// Connects, and makes sure of a slot whose start is known: identity and position are read on
    /// the very session that will stream.
    ///
    /// A slot that is missing, lost or was left half created is created anew. Before that, what the
    /// old one brought is marked: the sweeper takes what its last watermark covers, the tail of the
    /// stream has the rest. So a lagging mark never makes the scanner publish a row again.
    pub(crate) async fn prepare(
        config: &Config,
        store: &Store,
        tail: Option<&TailReader>,
    ) -> Result<Self, Error> {
        let target = config.postgres.replication_config(&config.slot, &config.publication)?;
        let mut session = ReplicationClient::connect_gated(target)
            .await
            .map_err(Error::replication("open a replication connection"))?;
        let doing = "identify the server";
        let identity = session.identify_system().await.map_err(Error::replication(doing))?;
        store.lock_slot(&config.slot).await?;
        let ensured = ensure(config, store, tail, &mut session, &identity).await;
        store.unlock_slot(&config.slot).await?;
        let (state, confirmed, created) = ensured?;
        let reader = single(&mut session, "SELECT pg_backend_pid()").await?;
        let start_snapshot = state.start_snapshot.ok_or_else(|| not_set_up("the slot's start"))?;
        Ok(Self {
            session,
            system_id: number(&identity.system_id)?,
            timeline: identity.timeline,
            confirmed,
            start_snapshot,
            watermark: state.watermark,
            reader: number(&reader)?,
            created,
        })
    }

    /// Everything that committed before this is resolved. The slot may say less after a crash of
    /// the server, which writes slots down only now and then; the watermark is in the log.
    pub(crate) fn resolved_before(&self) -> Lsn {
        self.watermark.as_ref().map_or(self.confirmed, |it| it.lsn.max(self.confirmed))
    }

    /// Starts to stream from the slot's confirmed position.
    ///
    /// # Errors
    ///
    /// [`Error::SlotBusy`] while another relay reads the slot: that exclusion is PostgreSQL's.
    /// [`Error::Stalled`] if it is not the slot any more that was looked at: from now on nobody can
    /// replace it, but until now somebody could.
    pub(crate) async fn start(
        mut self,
        rows: Rows,
        store: &Store,
        slot: &str,
    ) -> Result<Source, Error> {
        let started = async {
            self.session.start().await?;
            self.session.wait_started().await
        };
        started.await.map_err(|error| started_error(error, slot))?;
        let start_snapshot = store.load_state(slot).await?.and_then(|it| it.start_snapshot);
        if start_snapshot.as_ref() != Some(&self.start_snapshot) {
            return Err(Error::Stalled("the slot was created anew meanwhile"));
        }
        Ok(Source::new(self.session, rows))
    }
}

fn started_error(error: PgWireError, slot: &str) -> Error {
    match sqlstate(&error).as_deref() {
        Some("55006") => Error::SlotBusy { slot: slot.to_owned() },
        _ => Error::Replication { doing: "start replication", source: error },
    }
}

/// Finds a usable slot or creates one. Says where it is, and whether it is new.
async fn ensure(
    config: &Config,
    store: &Store,
    tail: Option<&TailReader>,
    session: &mut ReplicationClient,
    identity: &IdentifySystem,
) -> Result<(StateRow, Lsn, bool), Error> {
    let found = look(session, &config.slot).await?;
    let state = store.load_state(&config.slot).await?;
    match usable(config, identity, found, state)? {
        Found::Usable(state, confirmed) => Ok((state, confirmed, false)),
        Found::Unusable { drop, state } => {
            if let Some(old) = &state {
                finish_epoch(config, store, tail, identity, old).await?;
            }
            if drop {
                store.drop_slot(&config.slot).await?;
            }
            let (state, confirmed) =
                create(config, store, session, identity, state.as_ref()).await?;
            Ok((state, confirmed, true))
        }
    }
}

enum Found {
    Usable(StateRow, Lsn),
    Unusable { drop: bool, state: Option<StateRow> },
}

fn usable(
    config: &Config,
    identity: &IdentifySystem,
    found: Option<SlotRow>,
    state: Option<StateRow>,
) -> Result<Found, Error> {
    let slot = &config.slot;
    let Some(row) = found else {
        if state.is_some() {
            warn!(slot, "the replication slot is gone: creating it anew, scanning for the gap");
        }
        return Ok(Found::Unusable { drop: false, state });
    };
    if let Some(database) = row.elsewhere {
        return Err(Error::SlotElsewhere { slot: slot.clone(), database });
    }
    if row.active {
        return Err(Error::SlotBusy { slot: slot.clone() });
    }
    if row.plugin != "pgoutput" {
        return Err(Error::SlotForeign { slot: slot.clone() });
    }
    let Some(state) = state else {
        return Err(Error::SlotForeign { slot: slot.clone() });
    };
    if row.lost {
        warn!(slot, "PostgreSQL gave the slot's log up: creating it anew, scanning for the gap");
    } else if state.system_identifier != identity.system_id {
        warn!(slot, "the database was copied from another cluster: creating the slot anew");
    } else if row.replaced {
        warn!(slot, "somebody replaced the slot: creating it anew, scanning for the gap");
    } else if !state.is_trusted {
        warn!(
            slot,
            "the log lacks rows of the table: creating the slot anew, scanning for the gap"
        );
    } else if state.start_snapshot.is_some() {
        return Ok(Found::Usable(state, row.confirmed));
    }
    Ok(Found::Unusable { drop: true, state: Some(state) })
}

/// Marks what the old slot brought and the stream has.
async fn finish_epoch(
    config: &Config,
    store: &Store,
    tail: Option<&TailReader>,
    identity: &IdentifySystem,
    old: &StateRow,
) -> Result<(), Error> {
    if old.system_identifier != identity.system_id {
        store.renumber().await?; // positions and snapshots of another cluster say nothing here
        return Ok(());
    }
    let stream = &config.stream.name;
    if let (Some(start), Some(watermark)) = (&old.start_snapshot, &old.watermark) {
        while store.sweep(stream, start, &watermark.snapshot).await? == SWEPT_AT_ONCE {}
    }
    let Some(tail) = tail else { return Ok(()) };
    let way = WayBack {
        resolved_before: old.watermark.as_ref().map_or(Lsn::ZERO, |it| it.lsn),
        system_id: number(&identity.system_id)?,
        overtaken_max: config.window.events,
        at_least: scan_reach(config),
    };
    let stored = tail.back_to(way).await?.messages;
    let settled: Vec<Settled> = stored
        .iter()
        .filter_map(|message| {
            Some(Settled {
                id: message.id?,
                seq: Some(message.seq),
                origin: Origin::Scan,
                commit_lsn: Lsn::ZERO,
                commit_time_micros: 0,
                acked: false,
            })
        })
        .collect();
    for batch in settled.chunks(MARKS_AT_ONCE) {
        store.mark(stream, batch).await?;
    }
    Ok(())
}

/// How many of the stream's newest messages surely hold every row that was scanned and published,
/// but not marked.
pub(crate) fn scan_reach(config: &Config) -> u64 {
    (config.scan.batch + LOGGED_WHILE_SCAN_UNMARKED_MAX + 2 * config.window.events) as u64
}

async fn create(
    config: &Config,
    store: &Store,
    session: &mut ReplicationClient,
    identity: &IdentifySystem,
    old: Option<&StateRow>,
) -> Result<(StateRow, Lsn), Error> {
    let slot = &config.slot;
    let timeline = i32::try_from(identity.timeline).unwrap_or(i32::MAX);
    store.announce_epoch(slot, &identity.system_id, timeline).await?;
    info!(slot, "creating the replication slot (waits for running transactions)");
    let version: u32 =
        number(&single(session, "SELECT current_setting('server_version_num')").await?)?;
    let doing = "create the replication slot";
    query(session, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", doing).await?;
    let options = match version {
        170_000.. => "(SNAPSHOT 'use', FAILOVER)",
        150_000.. => "(SNAPSHOT 'use')",
        _ => "USE_SNAPSHOT",
    };
    let sql = format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput {options}");
    let rows = query(session, &sql, doing).await?;
    let consistent_point = rows.first().and_then(|row| text(row.get(1)?.as_ref()));
    let snapshot = single(session, "SELECT pg_current_snapshot()").await?;
    query(session, "COMMIT", doing).await?;
    let start: Lsn = consistent_point
        .and_then(|point| point.parse().ok())
        .ok_or(Error::Stalled("the server did not say where the new slot begins"))?;
    store.begin_epoch(slot, &identity.system_id, timeline, &snapshot, start).await?;
    let epoch = old.map_or(0, |old| old.epoch) + 1;
    info!(slot, %start, epoch, "created the replication slot");
    let state = StateRow {
        system_identifier: identity.system_id.clone(),
        start_snapshot: Some(snapshot),
        epoch,
        is_trusted: true,
        watermark: None,
    };
    Ok((state, start))
}

async fn look(session: &mut ReplicationClient, slot: &str) -> Result<Option<SlotRow>, Error> {
    let sql = format!(
        "SELECT plugin, confirmed_flush_lsn, coalesce(wal_status = 'lost', false), active,
                nullif(database, current_database()),
                coalesce(to_jsonb(slot)->>'failover' = 'false', false)
         FROM pg_replication_slots slot WHERE slot_name = '{slot}'"
    );
    let rows = query(session, &sql, "look at the replication slot").await?;
    Ok(rows.first().map(|row| {
        let column = |at: usize| row.get(at).and_then(|value| text(value.as_ref()));
        let confirmed = column(1).and_then(|lsn| lsn.parse().ok());
        SlotRow {
            plugin: column(0).unwrap_or_default(),
            // Without a confirmed position the slot never became consistent.
            lost: column(2).as_deref() == Some("t") || confirmed.is_none(),
            confirmed: confirmed.unwrap_or_default(),
            active: column(3).as_deref() == Some("t"),
            elsewhere: column(4),
            replaced: column(5).as_deref() == Some("t"),
        }
    }))
}

async fn query(
    session: &mut ReplicationClient,
    sql: &str,
    doing: &'static str,
) -> Result<Vec<pgwire_replication::QueryRow>, Error> {
    session.simple_query(sql).await.map_err(Error::replication(doing))
}

async fn single(session: &mut ReplicationClient, sql: &str) -> Result<String, Error> {
    let rows = query(session, sql, "ask the server").await?;
    let value = rows.first().and_then(|row| text(row.first()?.as_ref()));
    value.ok_or(Error::Stalled("the server gave no answer"))
}

fn text(value: Option<&bytes::Bytes>) -> Option<String> {
    value.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, Error> {
    text.parse().map_err(|_| Error::Stalled("the server's answer is no number"))
}

fn not_set_up(missing: &str) -> Error {
    Error::NotSetUp { missing: missing.to_owned() }
}
