//! Who keeps PostgreSQL from removing old versions of rows.
//!
//! Each version of a marked row that is kept is read again by whoever looks for rows without a mark.

use outbox::quote;
use relay::Error;
use relay::access::Connection;
use serde::Deserialize;

use crate::checks::Remedy;

/// What begins a warning: an age in seconds, or transactions that began since. Slots and standbys have
/// no age.
const OLD_SECONDS: f64 = 300.0;
const OLD_TRANSACTIONS: i64 = 1_000_000;

/// Of more, those that are mended first hide the others.
const SHOWN_MAX: i64 = 3;

/// The oldest first, of those that count in this database. A transaction of another database counts
/// once it has written: a new slot waits for it. A slot's `catalog_xmin` keeps no rows of the outbox,
/// VACUUM keeps none, and what `hot_standby_feedback` sends is the slot's where a standby has one.
const HOLDERS: &str = "
    SELECT * FROM (
        SELECT CASE WHEN a.datname IS NULL AND r.pid IS NOT NULL THEN 'standby' ELSE 'session' END
                AS kind, pid,
            coalesce(a.application_name, '') AS name, a.backend_xid IS NOT NULL AS has_written,
            coalesce(a.datname = current_database(), true) AS is_here, a.datname AS database,
            extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
            greatest(age(a.backend_xid), age(a.backend_xmin))::bigint AS transactions
        FROM pg_stat_activity a LEFT JOIN pg_stat_replication r USING (pid)
        WHERE pid <> pg_backend_pid()
            AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
            AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
        UNION ALL
        SELECT 'prepared', NULL, gid, true, database = current_database(), database,
            extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
        FROM pg_prepared_xacts
        UNION ALL
        SELECT 'slot', active_pid, slot_name, false, true, NULL, NULL, age(xmin)
        FROM pg_replication_slots
    ) AS holder
    WHERE transactions IS NOT NULL AND (is_here OR has_written)
        AND (seconds >= $1 OR transactions >= $2)
    ORDER BY is_here DESC, transactions DESC, seconds DESC NULLS LAST, name LIMIT $3";

/// Somebody who does for long.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Holder {
    pub(crate) kind: Kind,
    /// Of a slot, its reader; `None` if it is prepared.
    pub(crate) pid: Option<i32>,
    /// The application, slot or standby, or the name of the prepared transaction.
    pub(crate) name: String,
    pub(crate) has_written: bool,
    /// Whether that holds in this database.
    pub(crate) is_here: bool,
    pub(crate) database: Option<String>,
    pub(crate) seconds: Option<f64>,
    /// So many began since.
    pub(crate) transactions: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Session,
    Prepared,
    Slot,
    Standby,
}

pub(crate) async fn holders(connection: &Connection) -> Result<Vec<Holder>, Error> {
    let parameters = [&OLD_SECONDS as _, &OLD_TRANSACTIONS as _, &SHOWN_MAX as _];
    connection.read("look who keeps old rows", HOLDERS, &parameters).await
}

impl Holder {
    /// Who it is, since when, and what it does.
    pub(crate) fn said(&self) -> String {
        let Self { kind, pid, name, has_written, is_here, seconds, transactions, .. } = self;
        let process = pid.map(|pid| format!("process {pid}"));
        let process = process.as_deref().unwrap_or("nobody");
        let age = seconds.map(|it| format!(" for {it:.0} s")).unwrap_or_default();
        let who = match kind {
            Kind::Session => format!("{process} ({name}) has a transaction open{age}"),
            Kind::Prepared => format!("transaction {name} is prepared{age}"),
            Kind::Slot => {
                format!("replication slot {name}, which {process} reads, has an old xmin")
            }
            Kind::Standby => {
                format!("standby {name} ({process}) has an old xmin by hot_standby_feedback")
            }
        };
        let keeps = "vacuum removes no rows, and each look for marked rows reads them again";
        let does = match (has_written, is_here) {
            (true, true) => format!("a new slot waits for it, {keeps}"),
            (true, false) => "a new slot waits for it".to_owned(),
            (false, _) => keeps.to_owned(),
        };
        format!("{who}, {transactions} transactions ago: {does}")
    }

    /// What ends it.
    pub(crate) fn remedy(&self) -> Remedy {
        let Self { kind, pid, name, .. } = self;
        let literal = format!("'{}'", name.replace('\'', "''"));
        let on_standby = "on the standby, end the query that needs the rows (pg_stat_activity), or \
                          set hot_standby_feedback = off";
        if *kind == Kind::Session && name.starts_with("tailpost") {
            return Remedy::advice("wait for its end: it is Tailpost's own, and reads the table");
        }
        match (kind, pid) {
            (Kind::Session, Some(pid)) => {
                Remedy::sql(format!("SELECT pg_terminate_backend({pid})"))
                    .with_caution("look first what it does: its transaction is undone")
            }
            (Kind::Prepared | Kind::Session, _) => {
                let database = quote(self.database.as_deref().unwrap_or_default());
                Remedy::sql(format!("ROLLBACK PREPARED {literal}")).with_caution(format!(
                    "in database {database}; ask its coordinator first: where others have committed \
                     it has to be COMMIT PREPARED"
                ))
            }
            (Kind::Slot, None) => {
                Remedy::sql(format!("SELECT pg_drop_replication_slot({literal})"))
                    .with_caution("if a standby comes back without it, it may have to be made anew")
            }
            (Kind::Slot, Some(_)) | (Kind::Standby, _) => Remedy::advice(on_standby),
        }
    }
}
