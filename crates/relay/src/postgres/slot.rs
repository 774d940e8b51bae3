//! The replication slot: found, checked, created anew, started.

use std::collections::HashSet;
use std::time::Duration;

use pgoutput::Lsn;
use pgwire_replication::IdentifySystem;
use tokio::time::timeout;
use tracing::{error, warn};
use uuid::Uuid;

use super::encoding::AS_STORED;
use super::new_slot::NewSlot;
use super::open_slot::OpenSlot;
use super::sql::{StateRow, Store};
use super::walsender::{Replication, Walsender, number, text};
use crate::config::Config;
use crate::engine::{
    LOGGED_WHILE_SCAN_UNMARKED_MAX, SCANS_UNMARKED_MAX, SWEPT_AT_ONCE, SlotFound, SlotSeen,
    SweepRange, Sweeper, Tail,
};
use crate::error::Error;
use crate::nats::{SOUGHT_AT_ONCE, TailReader, WayBack};

/// How long a relay that fell silent keeps the slot from others: its host may be dead without
/// anybody having closed its connections. A relay that lives answers at once.
const GIVE_UP_SOON: &str = "SELECT set_config('wal_sender_timeout', '5s', false) FROM pg_settings
    WHERE CASE name WHEN 'wal_sender_timeout' THEN setting::int NOT BETWEEN 2000 AND 5000 END";

/// A slot whose start is known, on a session that has not started to stream.
///
/// What the slot brings is decided by the snapshot at its consistent point: exactly the rows whose
/// transaction is *not* visible in it. Everything else is the scanner's.
pub struct Slot {
    session: Replication,
    pub(crate) open: OpenSlot,
    /// The slot was created just now: what it does not bring has to be scanned for.
    pub created: bool,
}

impl Slot {
    /// Has a slot made that is missing.
    pub(crate) async fn make(new: NewSlot, config: &Config, store: &Store) -> Result<Self, Error> {
        let (session, open) = new.make(config, store).await?;
        Ok(Self { session, open, created: true })
    }

    /// As `find`. Waits until PostgreSQL has made a slot that is missing; `None` if that
    /// takes longer than `patience`.
    pub async fn prepare(
        config: &Config,
        store: &Store,
        tail: &TailReader,
        patience: Duration,
    ) -> Result<Option<Self>, Error> {
        match Self::find(config, store, tail).await? {
            Found::There(slot) => Ok(Some(slot)),
            Found::Missing(new) => {
                let made = timeout(patience, Self::make(new, config, store)).await;
                unlock(config, store, made.map_or(Ok(None), |made| made.map(Some))).await
            }
        }
    }

    /// Connects, and looks for a slot whose start is known: identity and position are read on the
    /// very session that will stream.
    ///
    /// One that is missing, lost or was left half created is to be made anew, and stays locked until
    /// then. What the old one brought is marked by now: the sweeper takes what its last watermark
    /// covers, the tail of the stream has the rest. So a lagging mark never makes the scanner publish
    /// a row again.
    ///
    /// # Errors
    ///
    /// [`Error::SlotBusy`] while another relay reads the slot, or has it made.
    pub(crate) async fn find(
        config: &Config,
        store: &Store,
        tail: &TailReader,
    ) -> Result<Found, Error> {
        let (mut session, identity) = Replication::connect(config).await?;
        session.query(GIVE_UP_SOON, "configure the session").await?;
        session.query(AS_STORED, "configure the session").await?;
        // A relay that waits for its slot to be made holds the lock for long.
        let seen = look(&mut session, &config.slot).await?;
        if seen.is_some_and(|it| it.is_active && it.elsewhere.is_none()) {
            return Err(Error::SlotBusy { slot: config.slot.clone() });
        }
        store.lock_slot(&config.slot).await?;
        match ensure(config, store, tail, session, identity).await {
            Ok(Found::Missing(new)) => Ok(Found::Missing(new)),
            other => unlock(config, store, other).await,
        }
    }

    /// Starts to stream from the slot's confirmed position. Returns also what is known and written
    /// down of the slot: from now on no other relay changes it.
    ///
    /// # Errors
    ///
    /// [`Error::SlotBusy`] while another relay reads the slot: that exclusion is PostgreSQL's.
    /// [`Error::Stalled`] if the slot was replaced since it was looked at. From now on it cannot be
    /// replaced.
    pub(crate) async fn start(
        self,
        store: &Store,
        slot: &str,
    ) -> Result<(Walsender, OpenSlot, StateRow), Error> {
        let Self { session, open, .. } = self;
        let walsender = session.start(slot).await?;
        let state = store.load_state(slot).await?;
        let state = state.filter(|it| it.start_snapshot.as_ref() == Some(&open.start_snapshot));
        let state = state.ok_or(Error::Stalled("the slot was created anew meanwhile"))?;
        Ok((walsender, open, state))
    }
}

/// Which cluster this is.
///
/// # Errors
///
/// If the server refuses or cannot be reached.
pub async fn system_identifier(config: &Config) -> Result<String, Error> {
    Ok(Replication::connect(config).await?.1.system_id)
}

/// A slot, as it was found.
pub(crate) enum Found {
    There(Slot),
    Missing(NewSlot),
}

async fn unlock<T>(config: &Config, store: &Store, done: Result<T, Error>) -> Result<T, Error> {
    if let Err(silent @ Error::Silent { .. }) = done {
        return Err(silent); // the lock ends with the connection
    }
    store.unlock_slot(&config.slot).await?;
    done
}

/// Finds a usable slot, or says that one is to be made, and does what comes before that.
async fn ensure(
    config: &Config,
    store: &Store,
    tail: &TailReader,
    mut session: Replication,
    identity: IdentifySystem,
) -> Result<Found, Error> {
    let slot = &config.slot;
    let seen = look(&mut session, slot).await?;
    let state = store.load_state(slot).await?;
    let known = state.as_ref().map(|it| it.known(&identity.system_id));
    match SlotFound::of(seen.as_ref(), known.as_ref()) {
        SlotFound::Ours { start_snapshot, confirmed } => {
            let open = OpenSlot::new(&session, &identity, start_snapshot, confirmed)?;
            Ok(Found::There(Slot { session, open, created: false }))
        }
        SlotFound::Busy => Err(Error::SlotBusy { slot: slot.clone() }),
        SlotFound::Elsewhere(database) => Err(Error::Unusable {
            problem: format!("replication slot \"{slot}\" belongs to database \"{database}\""),
            fix: "configure another name as postgres.slot: all databases of a cluster share them"
                .into(),
        }),
        SlotFound::NotOurs => Err(Error::Unusable {
            problem: match other_plugin(&mut session, slot).await? {
                Some(plugin) => format!("replication slot \"{slot}\" has {plugin}"),
                None => format!("tailpost_state has no row of replication slot \"{slot}\""),
            },
            fix: format!(
                "drop it with `SELECT pg_drop_replication_slot('{slot}')` and run `tailpost \
                 setup`, or configure another name as postgres.slot"
            ),
        }),
        SlotFound::Anew { drop, reason } => {
            match &state {
                Some(old) => {
                    tell_of_loss(config, old, reason);
                    finish_epoch(config, store, Some(tail), &identity.system_id, old).await?;
                }
                None => take_over_without_state(store).await?,
            }
            if drop {
                store.drop_slot(slot).await?;
            }
            NewSlot::announce(config, store, session, identity, reason).await.map(Found::Missing)
        }
    }
}

fn tell_of_loss(config: &Config, state: &StateRow, reason: &str) {
    let slot = &config.slot;
    warn!(slot, "{reason}: creating it anew, scanning for the gap");
    if state.takes_messages {
        let resolved = state.resolved.map_or(Lsn::ZERO, |it| it.place.commit_lsn);
        error!(
            slot,
            %resolved,
            "events of outbox_emit_wal that committed since then may be lost with the slot: no row \
             has them; look in the application for what it emitted, and emit it once more"
        );
    }
}

/// Marks what the old slot brought and the stream has.
///
/// # Errors
///
/// If a server refuses or cannot be reached.
pub async fn finish_epoch(
    config: &Config,
    store: &Store,
    tail: Option<&TailReader>,
    system_id: &str,
    old: &StateRow,
) -> Result<(), Error> {
    let epoch = Epoch { config, store, tail, old };
    if old.system_identifier != system_id {
        // Snapshots of another cluster say nothing of rows that were written here, but what the stream
        // has it has, under the positions of that cluster.
        if let (Some(tail), Ok(former)) = (tail, number(&old.system_identifier)) {
            epoch.mark_read_back(tail, former).await?;
        }
        store.renumber().await?;
        return store.catch_up_sequences().await;
    }
    let mut sweeper = Sweeper::new();
    sweeper.read(&[], false);
    if let Some(tail) = tail {
        let (stored, is_whole) = epoch.mark_read_back(tail, number(system_id)?).await?;
        sweeper.read(&stored.stored, is_whole && old.swept.is_some());
    }
    epoch.sweep_all(sweeper).await
}

/// The time of a slot that is gone, or goes.
struct Epoch<'a> {
    config: &'a Config,
    store: &'a Store,
    tail: Option<&'a TailReader>,
    old: &'a StateRow,
}

impl Epoch<'_> {
    /// Marks what the stream has from behind the last watermark on. Returns that, and whether it is all.
    async fn mark_read_back(
        &self,
        tail: &TailReader,
        system_id: u64,
    ) -> Result<(Tail, bool), Error> {
        let Self { config, store, old, .. } = *self;
        let since = old.swept.as_ref().or(old.watermark.as_ref());
        let way = WayBack {
            resolved_before: since.map_or(Lsn::ZERO, |it| it.lsn),
            system_id,
            overtaken_max: config.window.events,
            at_least: scan_reach(config),
            // However much was published since the last watermark, or is not marked: whatever is not
            // found here is published again.
            at_most: u64::MAX,
        };
        let (read, is_whole) = tail.all_back_to(way).await?;
        store.mark_stored(&config.stream.name, &read.stored).await?;
        Ok((read, is_whole))
    }

    /// Marks what the last watermark covers. What the log never brought is left for the scan.
    async fn sweep_all(&self, mut sweeper: Sweeper) -> Result<(), Error> {
        let Self { config, store, tail, old } = *self;
        let stream = &config.stream.name;
        let (Some(start), Some(watermark)) = (&old.start_snapshot, &old.watermark) else {
            return Ok(());
        };
        store.sweep_dead(start, watermark).await?;
        // What was swept before and is unmarked now is not published: the scanner finds it.
        let is_indexed = store.has_index_of_transactions().await?;
        let range = if is_indexed { SweepRange::SinceSwept } else { SweepRange::Whole };
        // While the look is open, no other session may queue behind one that waits for its lock.
        store.wait_for_locks(Some("5s")).await?;
        loop {
            let looker = store.another(config, "tailpost sweeper").await?;
            let mut look = looker.look(start, watermark, old.swept.as_ref(), range).await?;
            let mut unlogged = Vec::new();
            let is_last = loop {
                let rows = look.batch().await?;
                // Nothing is on its way any more: there is no next watermark to wait for.
                let verdict = sweeper.judge_finally(&rows);
                store.mark_verdict(stream, &verdict).await?;
                unlogged.extend(verdict.unlogged);
                if rows.len() < SWEPT_AT_ONCE {
                    break true;
                }
                if unlogged.len() >= SOUGHT_AT_ONCE {
                    break false;
                }
            };
            drop(look);
            if let Some(tail) = tail {
                let sought = unlogged.iter().copied().collect();
                let found = tail.find(sought).await?;
                store.mark_stored(stream, &found).await?;
                let found: HashSet<Uuid> = found.iter().map(|it| it.id).collect();
                unlogged.retain(|id| !found.contains(id));
            }
            for batch in unlogged.chunks(SWEPT_AT_ONCE) {
                store.leave_to_the_scanner(batch).await?;
            }
            if is_last {
                return store.wait_for_locks(None).await;
            }
        }
    }
}

async fn take_over_without_state(store: &Store) -> Result<(), Error> {
    if store.renumber_future().await? {
        store.catch_up_sequences().await?;
    }
    Ok(())
}

/// How many of the stream's newest messages surely hold every row that was scanned and published,
/// but not marked.
pub(crate) fn scan_reach(config: &Config) -> u64 {
    (SCANS_UNMARKED_MAX * config.scan.batch
        + LOGGED_WHILE_SCAN_UNMARKED_MAX
        + 2 * config.window.events) as u64
}

/// The plugin that a slot has in place of the one that the relay reads.
async fn other_plugin(session: &mut Replication, slot: &str) -> Result<Option<String>, Error> {
    let sql = format!(
        "SELECT coalesce('the output plugin ' || plugin, 'no output plugin: it is physical')
         FROM pg_replication_slots WHERE slot_name = '{slot}' AND plugin IS DISTINCT FROM 'pgoutput'"
    );
    let rows = session.query(&sql, "look at the replication slot").await?;
    Ok(rows.first().and_then(|row| row.first().and_then(|value| text(value.as_ref()))))
}

async fn look(session: &mut Replication, slot: &str) -> Result<Option<SlotSeen>, Error> {
    let sql = format!(
        "SELECT plugin, confirmed_flush_lsn, coalesce(wal_status = 'lost', false), active,
                nullif(database, current_database()),
                coalesce(to_jsonb(slot)->>'failover' = 'false', false)
         FROM pg_replication_slots slot WHERE slot_name = '{slot}'"
    );
    let rows = session.query(&sql, "look at the replication slot").await?;
    Ok(rows.first().map(|row| {
        let column = |at: usize| row.get(at).and_then(|value| text(value.as_ref()));
        let is = |at: usize| column(at).as_deref() == Some("t");
        SlotSeen {
            is_pgoutput: column(0).as_deref() == Some("pgoutput"),
            confirmed: column(1).and_then(|lsn| lsn.parse().ok()),
            is_lost: is(2),
            is_active: is(3),
            elsewhere: column(4),
            is_replaced: is(5),
        }
    }))
}
