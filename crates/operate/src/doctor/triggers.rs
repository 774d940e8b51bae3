//! What others put before Tailpost's own tables: a trigger that answers NULL, or a rule, keeps a row out
//! without an error.

use tokio_postgres::Row;

use crate::checks::{Judged, Remedy, error, ok, warning};

/// Of the tables $2 in the schema $1 and of their partitions: the name of each that there is, whether it
/// is known to lose what is written, and the statement that takes it away. A rule is, and a trigger whose
/// function says that it drops dead letters. What a partition has from its table counts once.
pub(super) const BEFORE_ROWS: &str = r"
    WITH ours AS (
        SELECT part.oid, c.relname, format('%I.%I', its.nspname, part.relname) AS name
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_class part ON part.oid = c.oid
                OR part.oid IN (SELECT relid FROM pg_partition_tree(c.oid))
            JOIN pg_namespace its ON its.oid = part.relnamespace
        WHERE n.nspname = $1 AND c.relname = ANY ($2)
    )
    SELECT format('trigger %I of %s', tgname, name),
        tgtype & 4 = 4 AND relname LIKE '%dead_letter' AND prosrc ~* '\mreturn\s+(null|old)\M',
        format('ALTER TABLE %s DISABLE TRIGGER %I', name, tgname)
    FROM pg_trigger JOIN ours ON ours.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid
    WHERE tgtype & 3 = 3 AND NOT tgisinternal AND tgparentid = 0 AND tgenabled IN ('O', 'A')
    UNION ALL
    SELECT format('rule %I of %s', rulename, name), true,
        format('DROP RULE %I ON %s', rulename, name)
    FROM pg_rewrite JOIN ours ON ours.oid = ev_class
    WHERE is_instead AND ev_type <> '1' AND ev_enabled IN ('O', 'A')
    ORDER BY 1";

/// A trigger or a rule.
#[derive(Debug, Clone)]
pub(crate) struct BeforeRows {
    pub(super) name: String,
    pub(super) loses: bool,
    pub(super) statement: String,
}

pub(super) fn before_rows(rows: &[Row]) -> Vec<BeforeRows> {
    let read =
        |row: &Row| BeforeRows { name: row.get(0), loses: row.get(1), statement: row.get(2) };
    rows.iter().map(read).collect()
}

pub(super) fn judge_before_rows(found: &[BeforeRows]) -> Judged {
    if found.is_empty() {
        return ok("none");
    }
    let names: Vec<_> = found.iter().map(|it| it.name.as_str()).collect();
    let evidence = format!("{}: what Tailpost writes there may be lost", names.join(", "));
    let remedies = found.iter().map(|it| Remedy::sql(it.statement.clone()));
    if found.iter().any(|it| it.loses) {
        error(evidence, remedies)
    } else {
        warning(evidence, remedies)
    }
}
