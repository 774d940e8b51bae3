//! What the log brings is decided by the publication, at the time of each commit.

use outbox::Table;
use tokio_postgres::Client;

use crate::error::Error;

/// Whether the publication exists.
///
/// # Errors
///
/// [`Error::Publication`] if it exists and would bring too little or too much.
pub(crate) async fn exists(
    client: &Client,
    table: &Table,
    publication: &str,
) -> Result<bool, Error> {
    // By way of JSON, since PostgreSQL 14 knows neither row filters nor their column.
    let row = client
        .query_opt(
            "SELECT p.pubinsert AND NOT (p.pubupdate OR p.pubdelete OR p.pubtruncate),
                    p.pubviaroot,
                    t.tablename IS NOT NULL,
                    to_jsonb(t)->>'rowfilter' IS NOT NULL
             FROM pg_publication p
             LEFT JOIN pg_publication_tables t
                 ON t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3
             WHERE p.pubname = $1",
            &[&publication, &table.schema(), &table.name()],
        )
        .await
        .map_err(Error::sql("look at the publication"))?;
    let Some(row) = row else { return Ok(false) };
    let (inserts_only, via_root, has_table, is_filtered): (bool, bool, bool, bool) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    let table = table.quoted();
    let (reason, change) = match () {
        () if !has_table => ("it does not publish the outbox table", format!("ADD TABLE {table}")),
        () if is_filtered => ("it publishes only some of the rows", format!("SET TABLE {table}")),
        () if !inserts_only => {
            ("it must publish inserts and nothing else", "SET (publish = 'insert')".to_owned())
        }
        () if !via_root => (
            "it must publish partitions as their root",
            "SET (publish_via_partition_root = true)".to_owned(),
        ),
        () => return Ok(true),
    };
    Err(Error::Publication {
        publication: publication.to_owned(),
        reason: reason.to_owned(),
        fix: format!("run `ALTER PUBLICATION {publication} {change}`"),
    })
}
