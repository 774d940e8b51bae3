//! Reads the facts about the outbox table and its companions.

use outbox::migrations::MIGRATIONS;
use outbox::{COMPANIONS, Column, Table};

use super::facts::{Contents, Known, Migrations, OutboxTable, Partitions};
use super::read_server::skip;
use crate::config::{Config, MarkBy};
use crate::error::Error;
use crate::operate::maintain::{end, is_short};
use crate::postgres::{Connection, Store, columns};

/// The table, and its partitions if it has some.
const TREE: &str = "(SELECT to_regclass($1)::oid AS oid
     UNION SELECT relid::oid FROM pg_partition_tree(to_regclass($1))) tree
     JOIN pg_class USING (oid) JOIN pg_namespace n ON n.oid = relnamespace";

const LOOKING: &str = "look at the outbox";

pub(super) async fn table(connection: &Connection, config: &Config) -> Known<OutboxTable> {
    let read = look_at_table(connection, config).await;
    let mut facts = read.map_err(|error| skip(&error))?;
    facts.migrations = migrations(connection, &config.table).await.ok();
    Ok(facts)
}

async fn look_at_table(connection: &Connection, config: &Config) -> Result<OutboxTable, Error> {
    let (table, quoted) = (&config.table, config.table.quoted());
    let mut facts = OutboxTable::default();
    if !connection.has_relation(LOOKING, &quoted).await? {
        return Ok(facts);
    }
    facts.exists = true;
    storage(connection, &quoted, &mut facts).await?;
    indexes(connection, table, &mut facts).await?;
    facts.triggers = triggers(connection, &quoted, config.mark.by).await?;
    facts.lacks = lacks(connection, table).await?;
    let types = connection.types(&quoted).await?;
    facts.unfit = columns::check(table, &types).err().map(|it| crate::describe(&it));
    Ok(facts)
}

async fn storage(
    connection: &Connection,
    quoted: &str,
    facts: &mut OutboxTable,
) -> Result<(), Error> {
    let list = |condition: &str| {
        format!("array_agg(format('%I.%I', nspname, relname)) FILTER (WHERE {condition})")
    };
    let sql = format!(
        "SELECT {}, {}, bool_and(pg_has_role(relowner, 'USAGE')), min(pg_get_userbyid(relowner)::text),
             bool_and(has_schema_privilege(relnamespace, 'CREATE')) FROM {TREE}",
        list("relpersistence = 'u'"),
        list("reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off']"),
    );
    let row = connection.query_one(LOOKING, &sql, &[&quoted]).await?;
    facts.unlogged = row.get::<_, Option<_>>(0).unwrap_or_default();
    facts.unvacuumed = row.get::<_, Option<_>>(1).unwrap_or_default();
    (facts.is_owner, facts.owner, facts.may_create) = (row.get(2), row.get(3), row.get(4));
    Ok(())
}

async fn indexes(
    connection: &Connection,
    table: &Table,
    facts: &mut OutboxTable,
) -> Result<(), Error> {
    let sql = "SELECT relname::text, format('%I.%I', n.nspname, relname), indisvalid
               FROM pg_index JOIN pg_class c ON c.oid = indexrelid
               JOIN pg_namespace n ON n.oid = relnamespace
               WHERE indrelid = to_regclass($1)";
    let rows = connection.query(LOOKING, sql, &[&table.quoted()]).await?;
    for row in &rows {
        let (name, quoted, is_valid): (String, String, bool) = (row.get(0), row.get(1), row.get(2));
        match name.as_str() {
            _ if !is_valid => facts.invalid_indexes.push(quoted),
            "idx_outbox_unpublished" => facts.has_unmarked_index = true,
            "idx_outbox_txid" => facts.has_transactions_index = true,
            "idx_outbox_unpublished_seq" => facts.has_poll_index = true,
            _ => {}
        }
    }
    let letters = table.companion("outbox_dead_letter");
    let sql = "SELECT format('%I.%I', nspname, relname) FROM pg_class c
               JOIN pg_namespace n ON n.oid = relnamespace
               WHERE c.oid IN (to_regclass($1), to_regclass($2)) AND row_security_active(c.oid)";
    let rows = connection.query(LOOKING, sql, &[&table.quoted(), &letters]).await?;
    facts.policed = rows.iter().map(|row| row.get(0)).collect();
    Ok(())
}

/// Those that fire when a row is marked, on any column that a mark writes.
async fn triggers(connection: &Connection, quoted: &str, by: MarkBy) -> Result<Vec<String>, Error> {
    let event: i16 = match by {
        MarkBy::Row => 16,
        MarkBy::Delete => 8,
        MarkBy::Lean => return Ok(Vec::new()),
    };
    let sql = "SELECT format('%I', tgname) FROM pg_trigger
               WHERE tgrelid = to_regclass($1) AND NOT tgisinternal AND tgenabled IN ('O', 'A')
                   AND tgtype & $2 <> 0
                   AND (tgattr = '' OR EXISTS (
                       SELECT FROM pg_attribute WHERE attrelid = tgrelid AND attnum = ANY(tgattr)
                           AND attname IN ('published_at', 'stream', 'stream_seq', 'commit_lsn')))
               ORDER BY 1";
    let rows = connection.query(LOOKING, sql, &[&quoted, &event]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn lacks(
    connection: &Connection,
    table: &Table,
) -> Result<Vec<(String, Vec<String>)>, Error> {
    // The relay only reads the record of migrations.
    let companions = COMPANIONS.into_iter().filter(|it| *it != "tailpost_migrations");
    let names: Vec<&str> = std::iter::once(table.name()).chain(companions).collect();
    let sql = "SELECT format('%I.%I', nspname, relname), lacking
               FROM unnest($2::text[]) WITH ORDINALITY AS wanted (name, place)
               JOIN pg_namespace ON nspname = $1
               JOIN pg_class c ON relnamespace = pg_namespace.oid AND relname = name,
               LATERAL (SELECT ARRAY(
                   SELECT privilege
                   FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
                   WHERE (relkind <> 'v' OR privilege = 'SELECT') AND NOT has_table_privilege(c.oid, privilege)) AS lacking) l
               WHERE lacking <> '{}' ORDER BY place";
    let rows = connection.query(LOOKING, sql, &[&table.schema(), &names]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
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
    let other_shards = match store.check_shards(config).await {
        Err(Error::Unusable { problem, fix }) => Some((problem, fix)),
        checked => {
            checked?;
            None
        }
    };
    let needless_indexes = store.needless_indexes(config).await?;
    Ok(Contents { needless_indexes, largest_payload, partitions, retention, other_shards })
}

async fn partitions(store: &Store) -> Result<Option<Partitions>, Error> {
    let Some(partitions) = store.day_partitions().await? else { return Ok(None) };
    let now = store.clock().await?;
    let until = end(partitions.covered_from(now));
    let is_short = until.is_some_and(|until| is_short(until, now));
    let until = until.map_or_else(|| "for ever".to_owned(), |it| format!("until {it}"));
    Ok(Some(Partitions { until, is_short }))
}
