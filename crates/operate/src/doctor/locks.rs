//! Who holds a lock that Tailpost waits for.

use std::collections::BTreeSet;

use tokio_postgres::Row;

use crate::checks::{Judged, Remedy, error, ok, warning};

/// Locks on the tables $2 in the schema $1 that keep others from writing there. Those of moments are of
/// nobody's concern; where the role may not see since when they are held, they count.
pub(super) const LOCKS: &str = "
    SELECT DISTINCT format('%I.%I', nspname, relname), pid, coalesce(application_name, ''),
        mode = 'AccessExclusiveLock', extract(epoch FROM clock_timestamp() - xact_start)::float8
    FROM pg_locks l JOIN pg_class c ON c.oid = relation JOIN pg_namespace n ON n.oid = relnamespace
    LEFT JOIN pg_stat_activity AS a USING (pid)
    WHERE nspname = $1 AND relname = ANY ($2) AND granted AND pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock')
        AND xact_start > clock_timestamp() - interval '5 s' IS NOT TRUE
    ORDER BY 1, 2";

#[derive(Debug, Clone)]
pub(crate) struct Lock {
    table: String,
    /// The process; `None` for a transaction that is prepared.
    pid: Option<i32>,
    name: String,
    /// Whether others cannot read either.
    pub(super) is_exclusive: bool,
    /// How old its transaction is, if the role may know.
    seconds: Option<f64>,
}

impl Lock {
    pub(super) fn said(&self) -> String {
        let who = match self.pid {
            Some(pid) => format!("process {pid} ({})", self.name),
            None => "a transaction that is prepared".to_owned(),
        };
        let age = self.seconds.map(|it| format!(" for {it:.0} s")).unwrap_or_default();
        format!("{who} has locked {}{age}", self.table)
    }
}

pub(super) fn locks(rows: &[Row]) -> Vec<Lock> {
    let read = |row: &Row| Lock {
        table: row.get(0),
        pid: row.get(1),
        name: row.get(2),
        is_exclusive: row.get(3),
        seconds: row.get(4),
    };
    rows.iter().map(read).collect()
}

pub(super) fn judge_locks(found: &[Lock]) -> Judged {
    let evidence = found.iter().map(Lock::said).collect::<Vec<_>>().join(", ");
    let pids: BTreeSet<i32> = found.iter().filter_map(|it| it.pid).collect();
    let end = |pid: i32| {
        Remedy::sql(format!("SELECT pg_terminate_backend({pid})"))
            .with_caution("look first what it does: its transaction is undone")
    };
    if found.is_empty() {
        ok("none for long")
    } else if found.iter().any(|it| it.is_exclusive) {
        error(evidence, pids.into_iter().map(end))
    } else {
        warning(evidence, pids.into_iter().map(end))
    }
}
