//! What both servers keep, whether a relay runs or not.

use jiff::{SignedDuration, Timestamp};
use outbox::{DROPPED, wire};
use relay::access::opening::SLOT_WAITS_FOR;
use relay::access::publication::{self, Standing};
use relay::access::{
    Backlog, COUNT_MAX, Connection, direct_get, standby_slots, stream_check, unless_unheard,
};
use relay::{Config, Destination, Error, MarkBy, Mode, RewindConfig};

use crate::dead_letters::Filter;
use crate::horizon;
use crate::maintain::{end, is_short};
use crate::report::{
    LostReport, OutboxReport, PartitionsStatus, RewindReport, ShardReport, SlotReport,
    StatusReport, StreamReport,
};
use crate::sql::{RewindReading, Store};

/// Looks at the slot, the outbox and the stream.
///
/// # Errors
///
/// If PostgreSQL cannot be reached or the outbox is not set up. What else is missing leaves the
/// report incomplete, and the report says why.
pub async fn inspect(config: &Config) -> Result<StatusReport, Error> {
    let store = Store::patient(config, "tailpost status").await?;
    store.be_asked().await?;
    match Box::pin(look(config, &store)).await {
        Err(error) if error.is_contention() => {
            let (holder, table) = store.exclusive_holder().await?.ok_or(error)?;
            let problem = format!("not all can be read: {holder} has locked {table}");
            let fix = "wait for the end of its transaction, or end it".into();
            Err(Error::Unusable { problem, fix })
        }
        // The outbox may be called otherwise by now.
        Err(error @ (Error::NotSetUp { .. } | Error::Sql { .. })) => {
            store.check_former().await.and(Err(error))
        }
        looked => looked,
    }
}

async fn look(config: &Config, store: &Store) -> Result<StatusReport, Error> {
    store.check_tables().await?;
    let (shards, backlog) = shards_with_backlogs(config).await?;
    let outbox = outbox(config, store, backlog).await?;
    let retention = store.retention_row().await?;
    let (partitions, warning) = partitions(store).await?;
    let mut report = StatusReport { outbox, retention, partitions, ..Default::default() };
    report.warnings.extend(warning);
    for checked in [store.check_shards(config).await, store.check_former().await] {
        match checked {
            Ok(()) => {}
            Err(Error::Unusable { problem, fix }) => {
                report.warnings.push(format!("{problem}: {fix}"));
            }
            Err(error) => report.warnings.push(relay::describe(&error)),
        }
    }
    let nats = config.nats.connect_watched("tailpost status").await;
    let nats = nats.map_err(|error| report.lacks(error.into())).ok();
    for (config, unpublished) in shards {
        let mut slot = slot(&config, store).await?;
        let rewind = rewind(&config, store).await?;
        warn_of_rewind(&config, rewind.as_ref(), &mut report.warnings);
        if let Some(slot) = &mut slot {
            slot.rewind = rewind;
        }
        let mut told = None;
        if let Some((nats, link)) = &nats {
            match unless_unheard(link, stream(&config, nats)).await {
                Ok(stream) => {
                    let lost = lost(&config, store).await?;
                    warn_of_lost(&config, lost.as_ref(), &mut report.warnings);
                    told = Some(StreamReport { lost, ..stream });
                }
                Err(error) => report.lacks(error),
            }
        }
        let polls = config.mode == Mode::Poll;
        if slot.is_none() && !polls && report.incomplete.is_none() {
            let missing = format!("replication slot \"{}\"", config.slot);
            report.incomplete = Some(Error::NotSetUp { missing });
        }
        warn_of_slot(&config, slot.as_ref(), &mut report);
        report.warnings.extend(ends_the_relay(&config, store).await?);
        if let Some(what) = standby_slots::held_back(store, &config.slot).await? {
            report.warnings.push(format!("PostgreSQL holds events back {what}"));
        }
        match config.shard() {
            None => (report.slot, report.stream) = (slot, told),
            Some(shard) => {
                let shard = shard.number;
                report.shards.push(ShardReport { shard, slot, unpublished, stream: told });
            }
        }
    }
    let holders = horizon::holders(store).await?;
    report.warnings.extend(holders.iter().map(|it| format!("{}: {}", it.said(), it.remedy().text)));
    warn_of_rows(&mut report);
    warn_of_retention(&mut report);
    Ok(report)
}

impl StatusReport {
    /// Something of the broker is missing.
    fn lacks(&mut self, error: Error) {
        self.warnings.push(format!("the broker: {}", relay::describe(&error)));
        self.incomplete = Some(error);
    }
}

/// Why a relay ends, and ends again, that reads the log.
async fn ends_the_relay(config: &Config, store: &Store) -> Result<Option<String>, Error> {
    if config.mode == Mode::Poll {
        return Ok(None);
    }
    let (table, publication) = (&config.table, &config.publication);
    let standing = publication::standing(store, table, publication, config.shard()).await?;
    let Standing::Unfit(it) = standing else { return Ok(None) };
    Ok(Some(format!(
        "publication \"{publication}\" cannot be used: {}: run `{}`",
        it.reason, it.statement
    )))
}

/// The configuration of each shard, with what of it is not published; and that of all together.
async fn shards_with_backlogs(config: &Config) -> Result<(Vec<(Config, u64)>, Backlog), Error> {
    let mut all = Backlog::default();
    let mut shards = Vec::new();
    for config in config.each_shard() {
        let store = Store::patient(&config, "tailpost status").await?;
        store.be_asked().await?;
        let Backlog { rows, oldest_seconds, .. } = store.backlog(&config.slot).await?;
        all.rows += rows;
        all.oldest_seconds = all.oldest_seconds.into_iter().chain(oldest_seconds).reduce(f64::max);
        shards.push((config, rows.unsigned_abs()));
    }
    Ok((shards, all))
}

fn warn_of_slot(config: &Config, slot: Option<&SlotReport>, report: &mut StatusReport) {
    let warnings = &mut report.warnings;
    // Of several, each is named.
    let name = &config.slot;
    let the_slot =
        if config.shard().is_some() { format!("slot {name}") } else { "the slot".into() };
    match slot {
        None if config.mode == Mode::Poll => {}
        None => warnings
            .push(format!("replication slot \"{name}\" does not exist: run `tailpost setup`")),
        Some(slot) if slot.wal_status.as_deref() == Some("lost") => {
            let reason = slot.invalidation_reason.as_deref();
            let reason = reason.map(|it| format!(" ({it})")).unwrap_or_default();
            warnings.push(format!(
                "{the_slot}'s log is lost{reason}: a relay creates the slot anew and scans for the gap"
            ));
        }
        Some(slot) if slot.wal_status.as_deref() == Some("unreserved") => warnings.push(format!(
            "{the_slot} keeps more of the log than max_slot_wal_keep_size: it is lost at the next \
             checkpoint"
        )),
        Some(SlotReport { waits_for: Some(who), .. }) => warnings.push(format!(
            "PostgreSQL makes {the_slot} wait for {who}: until that ends the relay publishes from the \
             table what is visible"
        )),
        Some(slot) if !slot.active => report.unread.push(the_slot.clone()),
        Some(_) => {}
    }
    if let (Some(slot), Some(limit)) = (slot, config.wal.limit)
        && slot.retained_bytes >= limit
    {
        warnings.push(format!("{the_slot} keeps more of the log than relay.wal_limit"));
    }
}

/// `None` if there is no rewind slot, and is to be none.
async fn rewind(config: &Config, store: &Store) -> Result<Option<RewindReport>, Error> {
    let name = RewindConfig::slot(&config.slot);
    let is_wanted = config.rewind.retain.is_some() && config.mode != Mode::Poll;
    let reading = store.rewind_slot(&config.slot, &name).await?;
    if !is_wanted && reading.slot.is_none() {
        return Ok(None);
    }
    let RewindReading { slot, notes, .. } = reading;
    let from = slot.as_ref().and_then(|it| it.from);
    let age = |at: Timestamp| Timestamp::now().duration_since(at).as_secs_f64().max(0.0);
    Ok(Some(RewindReport {
        name,
        exists: slot.is_some(),
        is_wanted,
        from_lsn: slot.as_ref().map(|it| it.confirmed.to_string()),
        from,
        from_seconds: from.map(age),
        retained_bytes: slot.as_ref().map_or(0, |it| it.retained_bytes),
        extra_bytes: slot.as_ref().map_or(0, |it| it.extra_bytes),
        wal_status: slot.and_then(|it| it.wal_status),
        notes,
    }))
}

fn warn_of_rewind(config: &Config, rewind: Option<&RewindReport>, warnings: &mut Vec<String>) {
    let Some(rewind) = rewind else { return };
    let name = &rewind.name;
    if let Some(why) = &rewind.notes.failure {
        warnings.push(format!("rewind slot {name} cannot be kept: {why}"));
    } else if !rewind.is_wanted {
        warnings.push(format!(
            "rewind slot {name} keeps the log although rewind.retain is off: a relay drops it when it \
             starts, and `tailpost slot drop` does"
        ));
    } else if !rewind.exists {
        warnings.push(format!("rewind slot {name} does not exist: a relay makes it"));
    } else if matches!(rewind.wal_status.as_deref(), Some("unreserved" | "lost")) {
        warnings.push(format!(
            "rewind slot {name} keeps more of the log than max_slot_wal_keep_size: a relay makes it \
             anew, and what it kept is gone"
        ));
    }
    if let (Some(retain), Some(max)) = (config.rewind.retain, rewind.notes.keep_max_bytes)
        && rewind.is_wanted
        && retain >= max
    {
        warnings.push(format!(
            "rewind.retain is not less than max_slot_wal_keep_size: PostgreSQL gives rewind slot {name} \
             up again and again, with all that it keeps. Lower the one or raise the other"
        ));
    }
    if let (Some(replay), Some(limit)) = (rewind.notes.held_by, config.wal.limit)
        && rewind.retained_bytes >= limit
    {
        warnings.push(format!(
            "replay {replay} keeps rewind slot {name} from moving, and that keeps more of the log than \
             relay.wal_limit: let the replay end, or cancel it"
        ));
    }
}

fn warn_of_rows(report: &mut StatusReport) {
    let OutboxReport { dead_letters, unidentified, owed, marks_refused, .. } = report.outbox;
    if dead_letters > 0 {
        let s = if dead_letters == 1 { "" } else { "s" };
        report.warnings.push(format!(
            "{dead_letters} dead letter{s}: `tailpost outbox dlq list` shows them, `tailpost outbox \
             dlq requeue` publishes them after all"
        ));
    }
    if let Some(why) = &report.outbox.mark_refusal {
        let rows = if marks_refused == 1 { "row" } else { "rows" };
        report.warnings.push(format!(
            "{marks_refused} {rows} of published or parked events cannot be marked or removed: {why}. \
             Change the trigger or the constraint; a relay tries again every 10 s"
        ));
    }
    if unidentified > 0 {
        let rows = if unidentified == 1 { "row has" } else { "rows have" };
        report.warnings.push(format!(
            "{unidentified} {rows} no id and cannot be published: give each an id, or delete it"
        ));
    }
    if owed > 0 {
        let s = if owed == 1 { "" } else { "s" };
        report.warnings.push(format!(
            "{owed} row{s} of published or parked events wait for a lock: a relay marks or removes \
             them when they are free; see pg_locks for who has them"
        ));
    }
}

/// The partitions, if there are some by day, and what an operator should do about them.
async fn partitions(store: &Store) -> Result<(Option<PartitionsStatus>, Option<String>), Error> {
    let Some(partitions) = store.day_partitions().await? else { return Ok((None, None)) };
    let now = store.clock().await?;
    let until = end(partitions.covered_from(now));
    let warning = until.filter(|until| is_short(*until, now)).map(|until| {
        format!(
            "partitions exist only until {until}, and inserts fail from then on: run `tailpost \
             maintain`, and see that a relay runs"
        )
    });
    let status = PartitionsStatus {
        count: partitions.all().len() as u64,
        until: until.map(|it| it.to_string()),
        horizon_seconds: until.map(|it| it.duration_since(now).as_secs_f64()),
    };
    Ok((Some(status), warning))
}

fn warn_of_retention(report: &mut StatusReport) {
    let Some(failure) = report.retention.as_ref().and_then(|it| it.failure.clone()) else { return };
    report.warnings.push(format!(
        "old rows could not be deleted: {failure}. `tailpost maintain` tries again at once"
    ));
}

async fn slot(config: &Config, store: &Store) -> Result<Option<SlotReport>, Error> {
    let time = "to_char(%I AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
    let sql = format!(
        "SELECT slot_name AS name, active, wal_status, confirmed_flush_lsn,
                pg_current_wal_lsn() AS current_lsn,
                greatest(pg_current_wal_lsn() - confirmed_flush_lsn, 0)::bigint AS lag_bytes,
                greatest(pg_current_wal_lsn() - restart_lsn, 0)::bigint AS retained_bytes,
                safe_wal_size AS safe_wal_bytes,
                to_jsonb(s)->>'invalidation_reason' AS invalidation_reason,
                {SLOT_WAITS_FOR}->>'who' AS waits_for,
                epoch_reason AS created_because, {created_at} AS created_at, gap_rows,
                {filled_at} AS gap_filled_at
         FROM pg_replication_slots s LEFT JOIN {state} state ON slot = slot_name
         WHERE slot_name = $1",
        created_at = time.replace("%I", "epoch_at"),
        filled_at = time.replace("%I", "gap_filled_at"),
        state = config.table.companion("tailpost_state"),
    );
    Ok(store.read("look at the slot", &sql, &[&config.slot]).await?.pop())
}

/// How long a loss is warned of whose messages were all published again.
const WARNED_FOR: SignedDuration = SignedDuration::from_hours(24);

/// `None` if the stream was never found to lack what it had acknowledged.
pub(crate) async fn lost(
    config: &Config,
    connection: &Connection,
) -> Result<Option<LostReport>, Error> {
    let sql = format!(
        "SELECT lost_at AS at, lost AS messages, lost_rows AS rows,
             EXISTS (SELECT FROM {} WHERE slot = $2 AND gap_filled_at IS NULL
                 AND lost_at > epoch_at) AS restores
         FROM {} WHERE stream = $1 AND lost_at IS NOT NULL",
        config.table.companion("tailpost_state"),
        config.table.companion("tailpost_streams")
    );
    let (doing, stream) = ("look what the stream has lost", &config.stream.name);
    Ok(connection.read(doing, &sql, &[stream, &config.slot]).await?.pop())
}

impl LostReport {
    /// What became of it.
    pub(crate) fn said(&self, stream: &str) -> String {
        let Self { at, messages, rows, .. } = self;
        format!(
            "stream {stream} came back at {at} without {messages} messages that it had acknowledged: \
             {rows} rows are published again"
        )
    }

    /// So many messages no row tells of.
    pub(crate) fn unanswered(&self) -> u64 {
        self.messages.saturating_sub(self.rows)
    }

    /// Publishes again what the log has from before the loss. How far the stream went back nobody
    /// knows by now.
    pub(crate) fn replay(&self) -> String {
        format!("tailpost replay --source wal --until {}", self.at)
    }

    /// Ends the warning.
    pub(crate) fn answer(&self, config: &Config) -> String {
        let stream = config.stream.name.replace('\'', "''");
        let streams = config.table.companion("tailpost_streams");
        format!("UPDATE {streams} SET lost_rows = lost WHERE stream = '{stream}'")
    }
}

/// The message says what was done, and what is left to do.
fn warn_of_lost(config: &Config, lost: Option<&LostReport>, warnings: &mut Vec<String>) {
    let Some(lost) = lost else { return };
    let said = lost.said(&config.stream.name);
    match lost.unanswered() {
        0 if Timestamp::now().duration_since(lost.at) >= WARNED_FOR => {}
        0 => warnings.push(said),
        rest => warnings.push(format!(
            "{said}, and no row tells of the other {rest}: `{}` publishes again all that rewind.retain \
             has kept of the log, and consumers skip what they have processed. Once that is done: {}",
            lost.replay(),
            lost.answer(config),
        )),
    }
}

async fn outbox(config: &Config, store: &Store, backlog: Backlog) -> Result<OutboxReport, Error> {
    let (table, dead) = (config.table.quoted(), config.table.companion("outbox_dead_letter"));
    let drops = config.routes.iter().any(|it| it.destination == Destination::Drop);
    // Not counted without need: no index leads there. Only a mark on the row tells.
    let dropped = if drops && config.mark.by == MarkBy::Row {
        format!(
            "SELECT count(*) FROM (SELECT FROM {table} WHERE publish_error = '{DROPPED}'
                                   LIMIT {COUNT_MAX}) dropped"
        )
    } else {
        "NULL::bigint".into()
    };
    let sql = format!(
        "SELECT (SELECT reason FROM {dead} WHERE discarded_at IS NULL
                 ORDER BY dead_at DESC LIMIT 1),
                ({dropped}),
                (SELECT count(DISTINCT (aggregate_type, aggregate_id)) FROM {dead}
                 WHERE blocks AND discarded_at IS NULL)"
    );
    let row = store.query_one("look at the outbox", &sql, &[]).await?;
    let unidentified = store.unidentified().await?;
    let (owed, refused) = store.owed().await?;
    let (marks_refused, mark_refusal) = refused.unzip();
    let (dead_letters, oldest_dead_letter_seconds) =
        store.count_dead_letters(&Filter::default()).await?;
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(OutboxReport {
        table: config.table.to_string(),
        unpublished: count(backlog.rows),
        unpublished_is_capped: backlog.rows >= COUNT_MAX,
        dropped: row.get::<_, Option<i64>>(1).map(count),
        unidentified,
        owed: owed - marks_refused.unwrap_or(0),
        marks_refused: marks_refused.unwrap_or(0),
        mark_refusal,
        oldest_unpublished_seconds: backlog.oldest_seconds,
        dead_letters,
        latest_dead_letter_reason: row.get(0),
        blocked_aggregates: count(row.get(2)),
        oldest_dead_letter_seconds,
        dead_letter_reasons: store.dead_letter_groups(&Filter::default()).await?,
    })
}

async fn stream(config: &Config, client: &async_nats::Client) -> Result<StreamReport, Error> {
    let name = &config.stream.name;
    let stream = stream_check::look(client, name).await?;
    let info = stream.cached_info();
    let last = direct_get::read(client, name, info.state.last_sequence).await.ok();
    let position = last.and_then(|answer| {
        let message = answer.message().ok()??;
        message.headers().text(wire::header::POSITION).map(str::to_owned)
    });
    Ok(StreamReport {
        name: name.clone(),
        messages: info.state.messages,
        bytes: info.state.bytes,
        last_sequence: info.state.last_sequence,
        last_position: position,
        lost: None,
        replicas: info.config.num_replicas,
    })
}
