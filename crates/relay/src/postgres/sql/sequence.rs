//! The sequence that numbers the outbox's rows, where somebody restarted or restored it: rows that come
//! then are numbered below those that wait.

use outbox::Column;
use tracing::warn;

use super::{Store, mark};
use crate::describe;
use crate::error::Error;

const DOING: &str = "look at the sequence of rows";

/// A sequence that is behind rows that wait.
#[derive(Debug, Clone)]
pub struct SequenceBehind {
    /// Its name, quoted.
    sequence: String,
    /// The last number that it gave.
    pub given: i64,
    /// The last number of a row that waits.
    pub last: i64,
    /// What sets it forward.
    pub statement: String,
}

impl Store {
    /// Whether rows that come are numbered below rows that wait. A role that may not read the sequence
    /// learns nothing.
    pub async fn sequence_behind(&self) -> Result<Option<SequenceBehind>, Error> {
        let outbox = self.table.quoted();
        // PostgreSQL before 18 refuses the function to those who may not read the sequence.
        let sql = format!(
            "SELECT sequence, given, last FROM (
                 SELECT sequence, last,
                     CASE WHEN has_sequence_privilege(sequence, 'USAGE, SELECT')
                          THEN coalesce(pg_sequence_last_value(sequence::regclass), 0) END AS given
                 FROM (SELECT max(seq)::bigint AS last FROM {outbox} WHERE published_at IS NULL) AS rows,
                     (SELECT pg_get_serial_sequence($1, 'seq') AS sequence) AS found) AS it
             WHERE given < last"
        );
        let row = self.query_opt(DOING, &sql, &[&outbox]).await?;
        Ok(row.map(|row| SequenceBehind {
            sequence: row.get(0),
            given: row.get(1),
            last: row.get(2),
            statement: format!(
                "SELECT setval(pg_get_serial_sequence('{}', 'seq'), max(seq)) FROM {outbox}",
                outbox.replace('\'', "''")
            ),
        }))
    }

    /// Where rows are published by their numbers: sets the sequence forward, and numbers what came since
    /// it went back behind what waited before. That are the rows of later transactions than the row with
    /// the highest number has.
    pub(crate) async fn number_behind_those_that_wait(&self) -> Result<(), Error> {
        let Some(behind) = self.sequence_behind().await? else { return Ok(()) };
        let SequenceBehind { sequence, given, last, statement } = behind;
        let sequence = sequence.replace('\'', "''");
        // Statements that are sent together are one transaction.
        let sql = format!(
            "SELECT setval('{sequence}', {last});
             UPDATE {outbox} o SET seq = numbered.place FROM (
                 SELECT id, nextval('{sequence}') AS place FROM (
                     SELECT o.{id} AS id FROM {outbox} o
                     WHERE published_at IS NULL AND seq <= {given} AND {transaction} > (
                         SELECT {newest} FROM {outbox} n -- PostgreSQL 14 has no max(xid8)
                         WHERE published_at IS NULL AND seq = {last} ORDER BY 1 DESC LIMIT 1)
                     ORDER BY seq FOR UPDATE SKIP LOCKED) AS since) AS numbered
             WHERE o.{id} = numbered.id",
            outbox = self.table.quoted(),
            id = self.table.column(Column::Id),
            transaction = mark::transaction("o"),
            newest = mark::transaction("n"),
        );
        match self.batch_execute("number rows", &sql).await {
            Ok(()) => warn!(
                given,
                last,
                "the outbox's sequence went back: rows that came since follow those that waited"
            ),
            Err(error) if error.code().is_none() => return Err(error),
            Err(error) => warn!(
                given,
                last,
                error = describe(&error),
                "the outbox's sequence went back: rows that come overtake those that wait. Run {statement}"
            ),
        }
        Ok(())
    }
}
