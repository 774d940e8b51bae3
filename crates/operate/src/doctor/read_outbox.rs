//! Reads the facts about the outbox table and its companions.

use std::iter;

use outbox::migrations::MIGRATIONS;
use outbox::{COMPANIONS, Column, Table};
use relay::access::{Connection, columns, harm, schema};
use relay::{Config, Error, MarkBy};
use tokio_postgres::types::ToSql;

use super::facts::{Contents, Known, Migrations, OutboxTable, Partitions};
use super::locks::{LOCKS, Lock, locks as read_locks};
use super::read_server::skip;
use super::triggers::{BEFORE_ROWS, before_rows};
use crate::maintain::{end, is_short};
use crate::sql::Store;

/// The facts about the outbox $1 and its dead letters $2. Of the tables $4 in the schema $3 what the
/// role lacks; of the triggers (`pg_trigger.tgtype`) those for UPDATE, on any column that a mark writes, and
/// for DELETE, as parked rows are deleted in any mode, with the keys that keep a row. A mark names the
/// outbox, so of a partition only triggers for each row fire. What it has from its table counts once.
const TABLE: &str = "
    WITH tree AS (
        SELECT c.*, format('%I.%I', nspname, relname) AS name
        FROM (SELECT to_regclass($1)::oid AS oid
              UNION SELECT relid::oid FROM pg_partition_tree(to_regclass($1))) AS part
        JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = relnamespace
    ), indexes AS (
        SELECT relname, format('%I.%I', nspname, relname) AS name, indisvalid
        FROM pg_index JOIN pg_class c ON c.oid = indexrelid
        JOIN pg_namespace n ON n.oid = relnamespace WHERE indrelid = to_regclass($1)
    ), valid AS (SELECT array_agg(relname::text) AS names FROM indexes WHERE indisvalid)
    SELECT true AS exists,
        ARRAY(SELECT name FROM tree WHERE relpersistence = 'u') AS unlogged,
        ARRAY(SELECT name FROM tree
              WHERE reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'])
            AS unvacuumed,
        (SELECT min(pg_get_userbyid(relowner)::text) FROM tree) AS owner,
        (SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM tree) AS is_owner,
        (SELECT bool_and(has_schema_privilege(relnamespace, 'CREATE')) FROM tree) AS may_create,
        ARRAY(SELECT name FROM indexes WHERE NOT indisvalid) AS invalid_indexes,
        coalesce('idx_outbox_unpublished' = ANY (names), false) AS has_unmarked_index,
        coalesce('idx_outbox_txid' = ANY (names), false) AS has_transactions_index,
        coalesce('idx_outbox_unpublished_seq' = ANY (names), false) AS has_poll_index,
        ARRAY(SELECT format('%I.%I', nspname, relname) FROM pg_class c
              JOIN pg_namespace n ON n.oid = relnamespace
              WHERE c.oid IN (to_regclass($1), to_regclass($2)) AND row_security_active(c.oid))
            AS policed,
        (SELECT coalesce(jsonb_agg(jsonb_build_array(name || ' of ' || of,
                    format('ALTER TABLE %s %s %s', of, action, name)) ORDER BY action, of, name), '[]')
         FROM (
             SELECT tree.name AS of, format('%I', tgname) AS name, 'DISABLE TRIGGER' AS action
             FROM pg_trigger t JOIN tree ON tree.oid = tgrelid
             WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')
                 AND tgtype & 24 <> 0
                 AND (tgrelid = to_regclass($1) OR tgtype & 1 = 1)
                 AND NOT EXISTS (SELECT FROM pg_trigger above
                     WHERE above.oid = t.tgparentid AND above.tgenabled IN ('O', 'A'))
                 AND (tgattr = '' OR tgtype & 8 = 8 OR EXISTS (
                     SELECT FROM pg_attribute WHERE attrelid = tgrelid AND attnum = ANY(tgattr)
                         AND attname IN ('published_at', 'stream', 'stream_seq', 'commit_lsn')))
             UNION
             SELECT format('%I.%I', nspname, relname), format('%I', conname), 'DROP CONSTRAINT'
             FROM pg_constraint JOIN pg_class c ON c.oid = conrelid
             JOIN pg_namespace n ON n.oid = relnamespace WHERE contype = 'f' AND confrelid = to_regclass($1)
                 AND confdeltype IN ('a', 'r') AND conparentid = 0
         ) AS fired (of, name, action)) AS triggers,
        (SELECT coalesce(jsonb_agg(jsonb_build_array(format('%I.%I', nspname, relname), lacking)
                                   ORDER BY place), '[]')
         FROM unnest($4::text[]) WITH ORDINALITY AS wanted (name, place)
         JOIN pg_namespace ON nspname = $3
         JOIN pg_class c ON relnamespace = pg_namespace.oid AND relname = name,
         LATERAL (SELECT ARRAY(
             SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
             WHERE (relkind <> 'v' OR privilege = 'SELECT')
                 AND NOT has_table_privilege(c.oid, privilege)) AS lacking) AS l
         WHERE lacking <> '{}') AS lacks
    FROM valid WHERE to_regclass($1) IS NOT NULL";

pub(super) async fn table(connection: &Connection, config: &Config) -> Known<OutboxTable> {
    let read = look_at_table(connection, config).await;
    let mut facts = read.map_err(|error| skip(&error))?;
    facts.lost = schema::lacking(connection, &config.table).await.map_err(|error| skip(&error))?;
    facts.migrations = migrations(connection, &config.table).await.ok();
    let parameters: [&(dyn ToSql + Sync); 2] = [&config.table.schema(), &COMPANIONS.as_slice()];
    let rows = connection.query("look for triggers", BEFORE_ROWS, &parameters).await;
    facts.before_rows = before_rows(&rows.map_err(|error| skip(&error))?);
    Ok(facts)
}

/// Who holds the outbox or one of its companions.
pub(super) async fn locks(connection: &Connection, table: &Table) -> Result<Vec<Lock>, Error> {
    let names: Vec<&str> = iter::once(table.name()).chain(COMPANIONS).collect();
    let parameters: [&(dyn ToSql + Sync); 2] = [&table.schema(), &names];
    Ok(read_locks(&connection.query("look for locks", LOCKS, &parameters).await?))
}

async fn look_at_table(connection: &Connection, config: &Config) -> Result<OutboxTable, Error> {
    let (table, quoted) = (&config.table, config.table.quoted());
    // The relay only reads the record of migrations.
    let companions = COMPANIONS.into_iter().filter(|it| *it != "tailpost_migrations");
    let names: Vec<&str> = iter::once(table.name()).chain(companions).collect();
    let (letters, schema) = (table.companion("outbox_dead_letter"), table.schema());
    let parameters: [&(dyn ToSql + Sync); 4] = [&quoted, &letters, &schema, &names];
    let mut facts: OutboxTable =
        connection.read("look at the outbox", TABLE, &parameters).await?.pop().unwrap_or_default();
    let types = connection.types(&quoted).await?;
    facts.unfit = harm::find(connection, table).await?.or(columns::check(table, &types).err());
    Ok(facts)
}

async fn migrations(connection: &Connection, table: &Table) -> Result<Migrations, Error> {
    let doing = "read the record of migrations";
    let record = table.companion("tailpost_migrations");
    let rows = match connection.has_relation(doing, &record).await? {
        true => {
            let sql = format!("SELECT version, checksum, outbox_table FROM {record}");
            connection.query(doing, &sql, &[]).await?
        }
        false => Vec::new(),
    };
    let mut standing = Migrations { applied: rows.len(), ..Migrations::default() };
    for row in &rows {
        let (version, checksum, of): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
        let known = MIGRATIONS.iter().find(|it| it.version == version);
        if of != table.to_string() {
            standing.problem = Some(format!("the schema belongs to the outbox {of}"));
        } else if known.is_none() {
            standing.newer.push(version);
        } else if known.is_some_and(|it| it.checksum() != checksum) {
            standing.problem = Some(format!("migration {version} was applied with another text"));
        }
    }
    let is_pending = |version: i32| !rows.iter().any(|row| row.get::<_, i32>(0) == version);
    let pending = MIGRATIONS.iter().filter(|it| is_pending(it.version));
    standing.pending = pending.map(|it| format!("{:04}_{}", it.version, it.name)).collect();
    Ok(standing)
}

/// Of the next thousand rows.
async fn largest_payload(connection: &Connection, table: &Table) -> Result<Option<i64>, Error> {
    let sql = format!(
        "SELECT max(octet_length(payload::text))::bigint
         FROM (SELECT {} AS payload FROM {} WHERE published_at IS NULL LIMIT 1000) AS next",
        table.column(Column::Payload),
        table.quoted()
    );
    let row = connection.query_one("look for large rows", &sql, &[]).await?;
    Ok(row.get(0))
}

/// What the store knows how to ask, and what rows say.
pub(super) async fn contents(
    connection: &Connection,
    store: &Store,
    config: &Config,
) -> Result<Contents, Error> {
    let largest_payload = largest_payload(connection, &config.table).await?;
    let partitions = partitions(store).await?;
    let retention = store.retention_row().await?;
    let other_shards = refusal(store.check_shards(config).await)?;
    let former = former(store).await?;
    let needless_indexes = store.needless_indexes(config).await?;
    // Without marks on rows, or with many that wait, it may take too long; then nobody knows.
    let sequence = match config.mark.by {
        MarkBy::Row => store.sequence_behind().await.unwrap_or_default(),
        MarkBy::Delete | MarkBy::Lean => None,
    };
    Ok(Contents {
        needless_indexes,
        largest_payload,
        sequence,
        partitions,
        retention,
        other_shards,
        former,
    })
}

/// What is wrong with a table that was the outbox, and what mends it.
pub(super) async fn former(store: &Store) -> Result<Option<(String, String)>, Error> {
    refusal(store.check_former().await)
}

/// What is wrong, and what mends it.
fn refusal(checked: Result<(), Error>) -> Result<Option<(String, String)>, Error> {
    match checked {
        Ok(()) => Ok(None),
        Err(Error::Unusable { problem, fix }) => Ok(Some((problem, fix))),
        Err(error) => Err(error),
    }
}

async fn partitions(store: &Store) -> Result<Option<Partitions>, Error> {
    let Some(partitions) = store.day_partitions().await? else { return Ok(None) };
    let now = store.clock().await?;
    let until = end(partitions.covered_from(now));
    let is_short = until.is_some_and(|until| is_short(until, now));
    let until = until.map_or_else(|| "for ever".to_owned(), |it| format!("until {it}"));
    Ok(Some(Partitions { until, is_short }))
}
