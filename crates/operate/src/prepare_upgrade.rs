//! What has to be over before PostgreSQL is upgraded, and what to do then.

use std::time::{Duration, Instant};

use pgoutput::Lsn;
use relay::{Config, Error, Mode, RewindConfig};
use serde::Serialize;
use tokio::time::sleep;

use super::upgrade_steps::{UpgradeStep, steps};
use crate::sql::Store;
use crate::waiting;

const LOOKING: &str = "look for what an upgrade would interrupt";

/// Between two looks at whether everything is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether PostgreSQL can be upgraded now without anything being lost or published twice.
#[derive(Debug, Clone, Default, Serialize)]
pub struct UpgradeReport {
    /// Nothing is open.
    pub ready: bool,
    /// The major version of the server.
    pub server: u32,
    /// How far the log is read, for each shard; none with `relay.mode = "poll"`.
    pub slots: Vec<UpgradeSlot>,
    /// What has to be over before, each with what ends it.
    pub open: Vec<String>,
    /// What is good to know.
    pub notes: Vec<String>,
    /// What to do, in this order.
    pub next: Vec<UpgradeStep>,
    /// Something is open only because the time was over.
    #[serde(skip)]
    pub timed_out: bool,
}

/// How far a slot is.
#[derive(Debug, Clone, Serialize)]
pub struct UpgradeSlot {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub exists: bool,
    /// Whether a relay reads it.
    pub active: bool,
    /// Of the events that were committed when the command began, how many are not published and
    /// marked: 10,000 if there are more.
    pub unpublished: u64,
    /// The log's end when the command began.
    pub wal_end: String,
    /// Up to where everything is confirmed.
    pub confirmed_flush_lsn: Option<String>,
    /// Whether that is where the log ended when the command began.
    pub is_confirmed: bool,
}

/// Waits until what is committed by now is published, marked and confirmed, for `patience` at most,
/// and looks for what an upgrade would interrupt. Changes nothing. Producers may go on, unless their
/// events are in the log alone.
///
/// # Errors
///
/// If PostgreSQL refuses or cannot be reached, or `tailpost setup` was not run.
pub async fn prepare_upgrade(config: &Config, patience: Duration) -> Result<UpgradeReport, Error> {
    let until = Instant::now() + patience;
    let store = Store::patient(config, "tailpost slot").await?;
    store.check_tables().await?;
    let end = store.log_end().await?;
    let mut report = UpgradeReport { server: version(&store).await?, ..Default::default() };
    for shard in config.each_shard() {
        drain(&shard, end, until, &mut report).await?;
    }
    let open = interrupted(config, &store).await?;
    report.timed_out &= open.is_empty();
    report.open.extend(open);
    let notes = notes(config, &store, report.server).await?;
    report.notes.extend(notes);
    report.ready = report.open.is_empty();
    report.next = steps(config, report.server);
    Ok(report)
}

/// Waits for what a shard has to do.
async fn drain(
    config: &Config,
    end: Lsn,
    until: Instant,
    report: &mut UpgradeReport,
) -> Result<(), Error> {
    let slot = &config.slot;
    let store = Store::brief(config, "tailpost slot").await?;
    let left = || until.saturating_duration_since(Instant::now());
    let reader = store.slot_reader(slot).await?;
    let polls = config.mode == Mode::Poll;
    // Without a relay there is no progress to wait for.
    let patience = if reader.is_some() || polls { left() } else { Duration::ZERO };
    let unpublished = waiting::for_everything(config, patience).await?;
    if unpublished > 0 {
        let events = if unpublished == 1 { "event is" } else { "events are" };
        report.timed_out |= reader.is_some() || polls;
        report.open.push(match (polls, reader) {
            (false, None) => format!(
                "{unpublished} {events} not published, and no relay reads slot {slot}: run \
                 `tailpost relay --once`"
            ),
            _ => format!(
                "{unpublished} {events} not published: `tailpost status` says what holds events up; \
                 --timeout waits longer"
            ),
        });
    }
    if polls {
        return Ok(());
    }
    let (mut is_confirmed, mut is_filled);
    loop {
        is_confirmed = store.is_confirmed(slot, end).await?;
        let state = store.load_state(slot).await?;
        is_filled = state.is_none_or(|it| it.is_gap_filled);
        if (is_confirmed && is_filled) || reader.is_none() || left().is_zero() {
            break;
        }
        sleep(LOOK_EVERY.min(left())).await;
    }
    let progress = store.slot_progress(slot).await?;
    if reader.is_some() && !is_confirmed && unpublished == 0 {
        report.timed_out = true;
        report.open.push(format!(
            "slot {slot} is not confirmed up to {end}, where the log ended: --timeout waits longer"
        ));
    }
    if progress.is_some() && !is_filled && unpublished == 0 {
        report.timed_out |= reader.is_some();
        report.open.push(format!(
            "the table is not scanned yet for what slot {slot} could not bring: run `tailpost relay`"
        ));
    }
    report.slots.push(UpgradeSlot {
        name: slot.clone(),
        exists: progress.is_some(),
        active: reader.is_some(),
        unpublished,
        wal_end: end.to_string(),
        confirmed_flush_lsn: progress.map(|it| it.confirmed.to_string()),
        is_confirmed,
    });
    Ok(())
}

/// What would not go on afterwards, or not as it was, and what `pg_upgrade` refuses.
async fn interrupted(config: &Config, store: &Store) -> Result<Vec<String>, Error> {
    let sql = format!(
        "SELECT 'replay ' || id || ' is ' || status
             || ': let it end, or run `tailpost replays cancel ' || id || '`'
         FROM {replays} WHERE status IN ('asked', 'running', 'paused')
         UNION ALL
         SELECT 'a replay reads the log through slot ' || slot_name || ': let it end'
         FROM pg_replication_slots
         WHERE temporary AND database = current_database() AND slot_name LIKE 'tailpost%'
         UNION ALL
         SELECT count(*) || ' rows of published or parked events wait for a lock: see pg_locks'
         FROM {owed} HAVING count(*) > 0
         UNION ALL
         SELECT 'pg_upgrade refuses prepared transactions, and there is ' || gid
             || ': COMMIT PREPARED or ROLLBACK PREPARED'
         FROM pg_prepared_xacts",
        replays = config.table.companion("tailpost_replays"),
        owed = config.table.companion("tailpost_owed"),
    );
    texts(store, &sql).await
}

/// What is no obstacle.
async fn notes(config: &Config, store: &Store, server: u32) -> Result<Vec<String>, Error> {
    let mut notes = Vec::new();
    let of_shard = |it: Config| [RewindConfig::slot(&it.slot), it.slot];
    let own: Vec<_> = config.each_shard().into_iter().flat_map(of_shard).collect();
    let others = "SELECT slot_name::text FROM pg_replication_slots
                  WHERE slot_type = 'logical' AND NOT temporary ORDER BY 1";
    let others = texts(store, others).await?;
    for other in others.iter().filter(|it| !own.contains(it)) {
        notes.push(if server < 17 {
            format!("slot {other} is not Tailpost's: it stays behind, as all logical slots before 17")
        } else {
            format!(
                "slot {other} is not Tailpost's: pg_upgrade refuses while anything is left in its log"
            )
        });
    }
    notes.push(if config.wal.messages {
        "stop the producers of outbox_emit_wal first: no table has such events, and `tailpost slot \
         drop` refuses while the slot has some"
            .into()
    } else {
        "producers may go on until PostgreSQL stops: what they commit is in the table, and is \
         published from there"
            .into()
    });
    if config.each_shard().len() > 1 {
        notes.push(
            "PostgreSQL may hash an aggregate to another shard afterwards: to keep its events in \
             order, stop producers before the relays, as docs/modes.md#several-shards says"
                .into(),
        );
    }
    Ok(notes)
}

async fn texts(store: &Store, sql: &str) -> Result<Vec<String>, Error> {
    let rows = store.query(LOOKING, sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn version(store: &Store) -> Result<u32, Error> {
    let sql = "SELECT current_setting('server_version_num')::int / 10000";
    let row = store.query_one(LOOKING, sql, &[]).await?;
    Ok(row.get::<_, i32>(0).unsigned_abs())
}
