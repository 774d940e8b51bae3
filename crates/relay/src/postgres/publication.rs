//! What the log brings is decided by the publication, at the time of each commit.

use outbox::{Column, Table};

use crate::error::Error;
use crate::postgres::columns::Misfit;
use crate::postgres::not_logged::{self, Unfit};
use crate::postgres::{Connection, harm};
use crate::shards::Shard;

/// The first server whose publications have row filters.
pub(crate) const FILTERS_SINCE: i32 = 150_000;

/// What makes a publication bring a shard's rows and no others. The columns' names stand alone, as a
/// row filter wants them.
pub fn filter(table: &Table, shard: Shard) -> String {
    shard.owns(&table.column(Column::AggregateType), &table.column(Column::AggregateId))
}

/// A filter without what PostgreSQL writes in one way or another: parentheses, spaces, quotes, the
/// case of letters, and casts, which within the expression change no value.
fn bare(filter: &str) -> String {
    let kept = filter.chars().filter(|it| !it.is_whitespace() && !"()\"'".contains(*it));
    let text: String = kept.flat_map(char::to_lowercase).collect();
    ["::text", "::bigint", "::charactervarying"].iter().fold(text, |text, it| text.replace(it, ""))
}

/// What there is of a publication.
pub enum Standing {
    /// There is none.
    Missing,
    /// It brings each insert of the outbox.
    Fit,
    /// It does not.
    Unfit(Unfit),
}

/// The same, for those who report it.
pub async fn standing(
    connection: &Connection,
    table: &Table,
    publication: &str,
    shard: Option<Shard>,
) -> Result<Standing, Error> {
    if let Some(harm) = harm::find(connection, table).await? {
        let Misfit { problem: reason, statement: Some(statement) } = harm else {
            return Err(harm.into());
        };
        return Ok(Standing::Unfit(Unfit { reason, statement }));
    }
    // By way of JSON, since PostgreSQL 14 knows neither row filters nor lists of columns.
    let row = connection
        .query_opt(
            "look at the publication",
            "SELECT p.pubinsert AND NOT (p.pubupdate OR p.pubdelete OR p.pubtruncate),
                    p.pubviaroot,
                    t.tablename IS NOT NULL,
                    to_jsonb(t)->>'rowfilter',
                    EXISTS (SELECT FROM pg_publication_rel r
                            WHERE r.prpubid = p.oid AND r.prrelid = to_regclass($4)
                              AND to_jsonb(r)->>'prattrs' IS NOT NULL)
             FROM pg_publication p
             LEFT JOIN pg_publication_tables t
                 ON t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3
             WHERE p.pubname = $1",
            &[&publication, &table.schema(), &table.name(), &table.quoted()],
        )
        .await?;
    let Some(row) = row else { return Ok(Standing::Missing) };
    let (inserts_only, via_root, has_table): (bool, bool, bool) =
        (row.get(0), row.get(1), row.get(2));
    let wanted = shard.map(|shard| filter(table, shard));
    let (filtered, lists_columns): (Option<String>, bool) = (row.get(3), row.get(4));
    let is_filtered_otherwise = filtered.as_deref().map(bare) != wanted.as_deref().map(bare);
    let taken = match &wanted {
        None => table.quoted(),
        Some(filter) => format!("{} WHERE {filter}", table.quoted()),
    };
    let (reason, change) = match () {
        () if !has_table => ("it does not publish the outbox table", format!("ADD TABLE {taken}")),
        () if is_filtered_otherwise && shard.is_some() => (
            "it does not publish the rows of its shard and no others",
            format!("SET TABLE {taken}"),
        ),
        () if is_filtered_otherwise => {
            ("it publishes only some of the rows", format!("SET TABLE {taken}"))
        }
        () if lists_columns => {
            ("it publishes only some of the columns", format!("SET TABLE {taken}"))
        }
        () if !inserts_only => {
            ("it must publish inserts and nothing else", "SET (publish = 'insert')".to_owned())
        }
        () if !via_root => (
            "it must publish partitions as their root",
            "SET (publish_via_partition_root = true)".to_owned(),
        ),
        () => {
            let found = not_logged::find(connection, table, publication).await?;
            return Ok(found.map_or(Standing::Fit, Standing::Unfit));
        }
    };
    let statement = format!("ALTER PUBLICATION {publication} {change}");
    Ok(Standing::Unfit(Unfit { reason: reason.to_owned(), statement }))
}

/// Whether the publication, or that it publishes the table, was changed since the slot was created.
/// Then rows may have been committed meanwhile that the log does not bring, however it looks now.
///
/// False while nobody relies on the slot anyway, and in another cluster than that of the slot, where
/// it is made anew.
pub async fn age(
    connection: &Connection,
    table: &Table,
    publication: &str,
    slot: &str,
) -> Result<Age, Error> {
    // The transaction that made the outbox a partition gave it another entry and let no row by.
    // A row's xmin is the low half of the transaction's number: the latest that it can mean. After
    // 2^32 transactions that is another one, so what was found older once stays so.
    let sql = format!(
        "WITH entry AS MATERIALIZED (
             SELECT p.oid, p.xmin::text::bigint AS low FROM pg_publication p WHERE p.pubname = $2
             UNION ALL
             SELECT r.oid, r.xmin::text::bigint FROM pg_publication_rel r
             JOIN pg_publication p ON p.oid = r.prpubid
             WHERE p.pubname = $2 AND r.prrelid = $3::text::regclass
         ), entries AS (
             SELECT string_agg(oid || ':' || low, ' ' ORDER BY oid) AS seen FROM entry
         )
         SELECT seen, seen = to_jsonb(state)->>'publication_seen', EXISTS (
             SELECT FROM entry,
                 CAST(pg_snapshot_xmax(pg_current_snapshot())::text AS bigint) AS upcoming,
                 LATERAL (SELECT upcoming - mod(upcoming - low, 1::bigint << 32) AS xid) AS writer
             WHERE state.start_lsn IS NOT NULL AND writer.xid > 2
                 AND state.system_identifier =
                     (SELECT system_identifier::text FROM pg_control_system())
                 AND to_jsonb(state)->>'partitioned_txid' IS DISTINCT FROM writer.xid::text
                 AND NOT pg_visible_in_snapshot(writer.xid::text::xid8, state.start_snapshot))
         FROM entries LEFT JOIN {state} AS state ON slot = $1",
        state = table.companion("tailpost_state")
    );
    let (doing, outbox) = ("look at the publication's age", table.quoted());
    let row = connection.query_one(doing, &sql, &[&slot, &publication, &outbox]).await?;
    Ok(match (row.get::<_, Option<bool>>(1), row.get(2)) {
        (Some(true), _) => Age::Known,
        (_, true) => Age::Younger,
        (_, false) => Age::Older(row.get(0)),
    })
}

/// Whether a publication is as old as it has to be.
pub enum Age {
    /// As it was when it was found older.
    Known,
    /// Older than the slot, as far as can be told now; its entries.
    Older(Option<String>),
    /// Rows may have been committed that the slot does not bring.
    Younger,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_recognized_as_the_server_writes_it() {
        let ours = filter(&Table::default(), Shard { number: 2, of: 4 });
        let theirs = "(((hashtextextended((COALESCE((aggregate_id)::text, ''::text) COLLATE \"C\"), \
            hashtextextended((COALESCE(aggregate_type, ''::text) COLLATE \"C\"), '0'::bigint)) & \
            '9223372036854775807'::bigint) % '4'::bigint) = '2'::bigint)";
        assert_eq!(bare(&ours), bare(theirs));
        assert_ne!(bare(&ours), bare(&theirs.replace("'4'", "'5'")));
        assert_ne!(bare(&ours), bare(&theirs.replace("'2'", "'3'")));
    }
}
