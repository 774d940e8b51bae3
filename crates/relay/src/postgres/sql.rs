//! Every statement that the relay runs on the outbox and its companions.

mod attempts;
mod backlog;
pub mod claim;
mod former;
mod history;
mod index;
pub mod mark;
mod other_slots;
mod owed;
mod park;
mod replay_rows;
mod scan;
mod sequence;
mod session_stores;
mod state;
mod statements;
mod stream_lost;
pub mod sweep;
mod take_over;
mod unread;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use outbox::migrations::{Layout, Migration};
use outbox::{Column, Table};
use pgoutput::Lsn;
use tokio::sync::OnceCell;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{SimpleQueryMessage, Statement};
use uuid::Uuid;

pub use self::backlog::{Backlog, COUNT_MAX};
pub(crate) use self::history::MarkedRow;
pub use self::index::OutboxIndex;
pub(crate) use self::owed::Stuck;
pub(crate) use self::replay_rows::{ReplayedRow, TakenReplay};
pub(crate) use self::scan::Scanner;
pub(crate) use self::session_stores::{Books, Marks, Rows, Scan, SlotReader};
use self::statements::Statements;
use crate::config::{Config, MarkBy};
use crate::engine::{Resolved, Watermark};
use crate::error::Error;
use crate::postgres::answered::{ANSWER_MAX, answered};
use crate::postgres::columns;
use crate::postgres::connection::{Bound, Connection};
use crate::postgres::encoding;
use crate::postgres::harm;
use crate::postgres::opening::Opening;
use crate::postgres::publication::{self, Age, Standing};
pub(crate) use crate::postgres::rows::ScannedRow;
use crate::postgres::schema;
use crate::shards::{Shard, Shards};

pub use self::sequence::SequenceBehind;
pub use self::state::StateRow;
pub(crate) use self::state::oldest_running;
pub(crate) use self::stream_lost::Displaced;
pub(crate) use self::sweep::SweepCursor;
pub(crate) use self::unread::Unread;

/// What a partitioned outbox is partitioned by.
pub const INSERTED_AT: &str = "inserted_at";

/// How long a statement may take where nobody waits for more than a minute, in milliseconds.
const STATEMENT_MS_MAX: u32 = 55_000;

/// The latest migration without which no relay works.
const LATEST_NEEDED: i32 = 5;

/// A connection for statements, and their texts.
pub struct Store {
    connection: Connection,
    /// The outbox.
    pub table: Table,
    mark_by: MarkBy,
    /// Whose rows this is about; all rows if there is but one shard, or all are meant.
    shard: Option<Shard>,
    /// All of which one is ours.
    pub shards: Shards,
    sql: Statements,
    /// Prepared once: it runs for every few thousand events.
    mark: OnceCell<Statement>,
    mark_lately: OnceCell<Statement>,
    /// Whether the outbox had partitions by day when that was asked first.
    is_by_day: OnceCell<bool>,
    /// When the stream was created whose end is written down; that of any one if not set.
    stream_created: OnceLock<String>,
    /// When marks last met a row that was locked.
    met_lock: Mutex<Option<Instant>>,
    park: OnceCell<Statement>,
}

impl Deref for Store {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Store {
    /// Connects, and is called `name` in `pg_stat_activity`. The caller bounds each statement.
    pub async fn connect(config: &Config, name: &str) -> Result<Self, Error> {
        Self::bounded(config, name, |_| Bound::Caller).await
    }

    /// For statements that wait for no lock.
    pub async fn brief(config: &Config, name: &str) -> Result<Self, Error> {
        Self::bounded(config, name, |_| Bound::Answer(ANSWER_MAX)).await
    }

    /// For statements that may wait for others. The log says so.
    pub async fn patient(config: &Config, name: &str) -> Result<Self, Error> {
        Self::watched(config, name, &Opening::new(config)).await
    }

    /// As [`patient`](Self::patient). `opening` says so as well.
    pub(crate) async fn watched(
        config: &Config,
        name: &str,
        opening: &Opening,
    ) -> Result<Self, Error> {
        let bound = |pid| Bound::Work { opening: opening.clone(), pid };
        Self::bounded(config, name, bound).await
    }

    /// One more connection, for statements that are bounded as this one's.
    pub async fn another(&self, config: &Config, name: &str) -> Result<Self, Error> {
        Self::bounded(config, name, |pid| self.bound().of(pid)).await
    }

    async fn bounded(
        config: &Config,
        name: &str,
        bound: impl FnOnce(i32) -> Bound,
    ) -> Result<Self, Error> {
        let client = config.postgres.session(name).await?;
        // What must not be forgotten is written through here: a dead letter stands for an event
        // that is not published. A database may have been told not to wait for its disk.
        // And plans are made for as many ids as there are: without knowing, the planner expects ten.
        // Rows that a policy hides would be neither published nor marked: an error instead.
        // Last, which process serves us.
        let sql = "SELECT set_config('synchronous_commit', 'on', false)
                   WHERE current_setting('synchronous_commit') = 'off';
                   SET plan_cache_mode = force_custom_plan;
                   SET row_security = off;
                   SELECT pg_backend_pid()";
        let doing = "configure the session";
        let configured = async { client.simple_query(sql).await.map_err(Error::sql(doing)) };
        let pid =
            answered(doing, configured).await?.iter().rev().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
                _ => None,
            });
        let pid = pid.ok_or(Error::Stalled("the server does not say which process serves us"))?;
        Ok(Self {
            connection: Connection::new(client, bound(pid)),
            table: config.table.clone(),
            mark_by: config.mark.by,
            shard: config.shard(),
            shards: config.shards,
            sql: Statements::new(config),
            mark: OnceCell::new(),
            mark_lately: OnceCell::new(),
            is_by_day: OnceCell::new(),
            stream_created: OnceLock::new(),
            met_lock: Mutex::default(),
            park: OnceCell::new(),
        })
    }

    /// From now on the caller bounds each statement.
    fn unbound(&mut self) {
        self.connection.unbound();
    }

    /// Applies the migrations that the database lacks, or something of them. Returns those.
    ///
    /// # Errors
    ///
    /// Also if something cannot be brought back: [`Error::Unusable`].
    pub async fn migrate(&mut self, layout: Layout) -> Result<Vec<Migration>, Error> {
        let lacks = schema::lacking(self, &self.table).await?;
        if let Some(misfit) = schema::misfit(&lacks) {
            return Err(misfit);
        }
        let from = lacks.iter().map(|it| it.version).min();
        // Before the text, which names these columns.
        let columns: Vec<_> = lacks.iter().filter_map(|it| it.statement.as_deref()).collect();
        let kept = schema::contents_kept(&lacks, &self.table, self.mark_by);
        let first: Vec<_> =
            columns.iter().copied().chain(kept.iter().map(String::as_str)).collect();
        let migrated = self.connection.migrate(&self.table, layout, from, &first.join("; ")).await;
        migrated.map_err(|error| match error.code() {
            Some(SqlState::NOT_NULL_VIOLATION) => Error::Unusable {
                problem: format!("columns are missing, and rows have no value for them: {}", columns.join("; ")),
                fix: "restore the table from a backup, or, if its rows may be lost, delete them, and run \
                      `tailpost setup`".into(),
            },
            _ => error,
        })
    }

    /// Whether a row that is gone may be that of a published event.
    pub fn marks_by_deleting(&self) -> bool {
        self.mark_by == MarkBy::Delete
    }

    /// Which rows of the outbox are this shard's, as a condition; `o` is what the table is called.
    pub fn owned_rows(&self, o: &str) -> String {
        mark::owned(&self.table, self.shard, o)
    }

    /// The same for dead letters, and for the audit of them.
    fn owned_letters(&self) -> String {
        let owns = |shard: Shard| shard.owns("aggregate_type", "aggregate_id");
        self.shard.map_or_else(|| "true".to_owned(), owns)
    }

    /// For marks: commits are not waited for, because their loss is harmless, and a lock on the
    /// table is not either, because the sweeper comes again. A few thousand rows are looked up by
    /// their ids, although the planner would rather read all of a table of millions. Rows without a
    /// mark are looked for every second: only a plain index scan remembers, in the index, which of
    /// its entries are dead. A bitmap scan visits all rows that were marked since the last vacuum.
    pub(crate) async fn yield_to_others(&self) -> Result<(), Error> {
        let mut sql = "SET synchronous_commit = off; SET lock_timeout = '2s';
                       SET enable_nestloop = off; SET enable_mergejoin = off;
                       SET enable_bitmapscan = off; SET jit = off;
                       SET plan_cache_mode = auto"
            .to_owned();
        // Without one of these the sweeper has to read it.
        if self.has_index_of_transactions().await? || self.has_index_of_unmarked().await? {
            sql += "; SET enable_seqscan = off";
        }
        self.batch_execute("configure the session", &sql).await
    }

    /// How long a statement waits for others' locks from now on; `None` is for ever. On the server,
    /// so that nothing waits there when nobody does here any more.
    pub async fn wait_for_locks(&self, timeout: Option<&str>) -> Result<(), Error> {
        let timeout = timeout.unwrap_or("0");
        // Nothing of what follows takes a minute unless something is wrong, and then nobody waits for
        // it here any more.
        let sql = format!(
            "SET lock_timeout = '{timeout}';
             SELECT set_config('statement_timeout', '{STATEMENT_MS_MAX}', false)
             WHERE current_setting('statement_timeout') = '0'"
        );
        self.batch_execute("configure the session", &sql).await
    }

    /// Writes down that the stream has these events, or that a route dropped them; already marked
    /// rows are left alone, locked ones waited for. Returns how many rows were marked here, and, but
    /// only where marks were deletions, their ids: afterwards nobody can tell which were there.
    async fn mark_waiting(
        &self,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<(u64, Option<HashSet<Uuid>>), Error> {
        let deletes = self.mark_by == MarkBy::Delete;
        if resolved.is_empty() {
            return Ok((0, deletes.then(HashSet::new)));
        }
        let (ids, seqs, lsns) = owed::columns(resolved);
        let parameters: [&(dyn ToSql + Sync); 4] = [&ids, &seqs, &lsns, &stream];
        let doing = "mark published rows";
        let is_by_day = self.is_by_day.get_or_try_init(|| self.is_partitioned_by_day());
        let lately = is_by_day.await?.then_some((&self.mark_lately, &self.sql.mark_lately, true));
        let (mut marked, mut deleted) = (0, deletes.then(HashSet::new));
        for (cell, sql, tells) in lately.into_iter().chain([(&self.mark, &self.sql.mark, deletes)])
        {
            let statement = cell.get_or_try_init(|| self.prepare(sql)).await?;
            marked += if tells {
                let rows = self.query(doing, statement, &parameters).await?;
                let ids: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
                let count = ids.len() as u64;
                if let Some(deleted) = &mut deleted {
                    deleted.extend(ids);
                }
                count
            } else {
                self.execute(doing, statement, &parameters).await?
            };
            if marked >= resolved.len() as u64 {
                break;
            }
        }
        Ok((marked, deleted))
    }

    /// Whether the outbox has partitions as `tailpost setup --partitioned` makes them: by when rows
    /// were inserted.
    pub async fn is_partitioned_by_day(&self) -> Result<bool, Error> {
        let sql = format!(
            "SELECT FROM pg_partitioned_table JOIN pg_attribute
                 ON attrelid = partrelid AND attnum = partattrs[0]
             WHERE partrelid = to_regclass($1) AND partstrat = 'r' AND partnatts = 1
                 AND attname = '{INSERTED_AT}' AND atttypid = 'timestamptz'::regtype"
        );
        let rows = self.query("look at the partitions", &sql, &[&self.table.quoted()]).await?;
        Ok(!rows.is_empty())
    }

    /// The type in which a dead letter keeps its payload.
    pub async fn dead_payload_type(&self) -> Result<u32, Error> {
        let dead = self.table.companion("outbox_dead_letter");
        let types = self.types(&dead).await?;
        types.get("payload").map(|it| it.oid).ok_or_else(|| Error::NotSetUp { missing: dead })
    }

    /// Gives dead letters' payloads the type that the outbox has, if it is another one. Says
    /// whether it was.
    pub async fn fit_dead_letters(&self) -> Result<bool, Error> {
        let Some(type_oid) = self.unfit_dead_letters().await? else { return Ok(false) };
        let dead = self.table.companion("outbox_dead_letter");
        let (from, name) = (self.dead_payload_type().await?, mark::type_name(type_oid));
        let using = match (from, type_oid) {
            (columns::BYTEA, _) => format!("convert_from(payload, 'UTF8')::{name}"),
            (_, columns::BYTEA) => "convert_to(payload::text, 'UTF8')".into(),
            _ => format!("payload::text::{name}"),
        };
        let sql = format!("ALTER TABLE {dead} ALTER COLUMN payload TYPE {name} USING {using}");
        self.batch_execute("change the dead letters", &sql).await?;
        Ok(true)
    }

    /// The outbox's type of payload, if dead letters could not keep it.
    async fn unfit_dead_letters(&self) -> Result<Option<u32>, Error> {
        let types = self.types(&self.table.quoted()).await?;
        let payload = types.get(self.table.columns().name(Column::Payload));
        let Some(payload) = payload.map(|it| mark::kept_as(it.oid)) else { return Ok(None) };
        Ok((mark::kept_as(self.dead_payload_type().await?) != payload).then_some(payload))
    }

    /// The snapshot first, then the log's end: what is visible in the one committed before the other.
    pub async fn observe(&self) -> Result<Watermark, Error> {
        let sql = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()";
        let row = self.query_one("take a snapshot", sql, &[]).await?;
        Ok(Watermark { snapshot: row.get(0), lsn: Lsn(row.get::<_, PgLsn>(1).into()) })
    }

    /// A record in the log that brings nothing but proves that the log still flows.
    pub(crate) async fn heartbeat(&self) -> Result<(), Error> {
        let sql = "SELECT pg_logical_emit_message(false, 'tailpost', '')";
        self.perform("write a heartbeat", sql, &[]).await
    }

    /// Where the log ends now, made sure to be followed by something, so that it can be reached.
    pub async fn mark_the_end(&self) -> Result<Lsn, Error> {
        let end = self.observe().await?.lsn;
        self.heartbeat().await?;
        Ok(end)
    }

    /// Whether `tailpost setup` was run: without the publication a slot can be started, but never
    /// read.
    pub async fn check_set_up(&self, config: &Config) -> Result<(), Error> {
        if let Err(unfit) = self.check_outbox().await {
            if matches!(unfit, Error::Table(_))
                || self.check_tables().await.is_ok() && harm::is_no_table(self, &self.table).await?
            {
                // The log keeps the shape in which rows were written, and the name under which; the
                // table is what can be mended.
                self.distrust_slot(&config.slot).await?;
            }
            return Err(unfit);
        }
        self.check_row_filters().await?;
        self.check_shards(config).await?;
        match self.check_publication(&config.publication, &config.slot).await {
            // The slot is about to be looked at.
            Err(Error::PublicationChanged { .. }) => Ok(()),
            checked => checked,
        }
    }

    /// Whether the tables are there, with all that a relay needs, and fit each other.
    pub(crate) async fn check_outbox(&self) -> Result<(), Error> {
        self.check_encoding().await?;
        self.check_former().await?;
        self.check_tables().await?;
        columns::check(&self.table, &self.types(&self.table.quoted()).await?)?;
        let mut lacks = schema::lacking(self, &self.table).await?;
        // Retention (4) says by itself what it lacks.
        lacks.retain(|it| it.is_needed && it.version <= LATEST_NEEDED && it.version != 4);
        if let Some(misfit) = schema::misfit(&lacks) {
            return Err(misfit);
        }
        if !lacks.is_empty() {
            let names: Vec<_> = lacks.iter().map(|it| it.what.as_str()).collect();
            return Err(Error::NotSetUp { missing: names.join(", ") });
        }
        if let Some(type_oid) = self.unfit_dead_letters().await? {
            let dead = self.table.companion("outbox_dead_letter");
            let name = mark::type_name(type_oid);
            return Err(Error::NotSetUp { missing: format!("column payload {name} in {dead}") });
        }
        Ok(())
    }

    /// Whether a relay reads the database's texts.
    pub async fn check_encoding(&self) -> Result<(), Error> {
        encoding::check(self).await.map(drop)
    }

    /// Whether all tables are there.
    pub async fn check_tables(&self) -> Result<(), Error> {
        // The first, and one of the latest.
        for table in ["tailpost_state", "tailpost_streams"] {
            self.check_table(table).await?;
        }
        Ok(())
    }

    /// That there is the companion of that name.
    pub async fn check_table(&self, name: &str) -> Result<(), Error> {
        let table = self.table.companion(name);
        match self.has_relation("look for the outbox", &table).await? {
            true => Ok(()),
            false => Err(Error::NotSetUp { missing: format!("table {table}") }),
        }
    }

    /// Makes sure that the log brings every row. If it does not, rows may have been committed that
    /// it never will: then the slot is not to be relied on any more, whatever becomes of the
    /// publication, so that the next session creates it anew and scans for the gap.
    ///
    /// # Errors
    ///
    /// [`Error::Unusable`], or [`Error::NotSetUp`] if there is none, or, once,
    /// [`Error::PublicationChanged`].
    pub async fn check_publication(&self, publication: &str, slot: &str) -> Result<(), Error> {
        let table = &self.table;
        let unfit = match publication::standing(self, table, publication, self.shard).await? {
            Standing::Fit => match publication::age(self, table, publication, slot).await? {
                Age::Known => return Ok(()),
                Age::Older(entries) => return self.note_publication(slot, entries).await,
                Age::Younger => Error::PublicationChanged { publication: publication.to_owned() },
            },
            Standing::Missing => Error::NotSetUp { missing: format!("publication {publication}") },
            Standing::Unfit(found) => found.refusal(publication),
        };
        self.distrust_slot(slot).await?;
        self.check_former().await?;
        Err(unfit)
    }
}

impl Marks {
    /// Stores a watermark that has been reached, and one below which everything is marked. Returns
    /// the number of the transaction that did.
    ///
    /// Where rows have no marks, the watermark says from then on of every row of the log that it
    /// covers, and of every one that an earlier one covered, that it is published.
    ///
    /// # Errors
    ///
    /// Also, where rows have no marks, if the slot is another one by now than that which began at
    /// `start_snapshot`.
    pub(crate) async fn store_watermark(
        &self,
        slot: &str,
        start_snapshot: &str,
        watermark: &Watermark,
        swept: Option<&Watermark>,
    ) -> Result<u64, Error> {
        let (doing, snapshot, sql) = ("store the watermark", &watermark.snapshot, &self.0.sql);
        let lsn = PgLsn::from(watermark.lsn.0);
        let (swept, swept_lsn) = swept.map(|it| (&*it.snapshot, PgLsn::from(it.lsn.0))).unzip();
        let row = if self.0.mark_by == MarkBy::Lean {
            let parameters: [&(dyn ToSql + Sync); 4] = [&slot, &start_snapshot, snapshot, &lsn];
            self.0.query_opt(doing, &sql.published_to, &parameters).await?
        } else {
            let parameters: [&(dyn ToSql + Sync); 5] = [&slot, snapshot, &lsn, &swept, &swept_lsn];
            self.0.query_opt(doing, &sql.watermark, &parameters).await?
        };
        let transaction = row.and_then(|row| row.get::<_, String>(0).parse().ok());
        transaction.ok_or(Error::Stalled("the slot's state is gone"))
    }
}
