//! Marks, and what becomes of them where somebody else has locked the rows.
//!
//! A row may be locked for as long as whoever did it likes. It is waited for a little; then the rows that
//! are free are marked, and the others are owed their marks: that is written down in `tailpost_owed`,
//! and from then on nobody who looks for rows without marks sees them, neither the scanner, which would
//! publish them again after a crash, nor the sweeper. So nothing but such a row itself waits for its lock.
//! The same becomes of a row whose mark or removal a trigger or a constraint refuses, with the reason.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use outbox::{Column, DROPPED, Table};
use pgoutput::Lsn;
use tokio_postgres::types::{PgLsn, ToSql};
use uuid::Uuid;

use super::mark::{NOT_MARKED, UNTAKEN};
use super::{Marks, Rows, Store};
use crate::config::MarkBy;
use crate::engine::{Resolved, ScanMarks, Verdict};
use crate::error::Error;

/// For so long after a lock was met rows that are locked are not waited for at all.
const WARY_FOR: Duration = Duration::from_secs(60);

/// Owed rows that are made up for by one statement.
const OWED_AT_ONCE: usize = 1_000;

/// Seconds after which a mark that was refused is tried again.
const REFUSED_AGAIN: u32 = 10;

const MARKING: &str = "mark published rows";

/// Rows without an id that are counted.
const UNIDENTIFIED_MAX: u32 = 10_000;

/// Rows that the relay cannot mark until others have released or changed them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stuck {
    /// Rows that are [owed](self) a mark, or their removal.
    pub(crate) owed: u64,
    /// Of these, those whose marks the database refuses, and why it refuses one of them.
    pub(crate) refused: Option<(u64, String)>,
    /// Rows without an id: nothing can be said of them, so nothing is done about them.
    pub(crate) unidentified: u64,
}

impl Store {
    /// Writes down that the stream has these events, or that a route dropped them; already marked
    /// rows are left alone, locked ones are owed their marks. Returns how many rows were marked
    /// here. Rows not visible yet, or gone, are no error: the sweeper finds the former.
    pub(crate) async fn mark(
        &self,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<ScanMarks, Error> {
        self.note_stored(stream, resolved).await?;
        let marked = self.unless_held_up(self.mark_waiting(stream, resolved)).await?;
        let rows = marked.map_or(0, |(rows, _)| rows);
        let is_done = rows >= resolved.len() as u64
            // A trigger that puts the former row back is counted as a mark.
            && (self.marks_by_deleting() || !self.is_any_unmarked(resolved).await?);
        if is_done {
            return Ok(ScanMarks { rows, owed: 0 });
        }
        // The others are locked, or refused, or gone: each of them is looked at.
        let (more, owed) = Box::pin(self.mark_free(&self.sql.mark_free, stream, resolved)).await?;
        let owed = owed.len() as u64;
        let marked = (rows + more.len() as u64).min(resolved.len() as u64 - owed);
        Ok(ScanMarks { rows: marked, owed })
    }

    /// What came of marking many rows by one statement. `None` if some are locked, or their marks are
    /// refused: then each is marked or owed its mark.
    async fn unless_held_up<T>(
        &self,
        marking: impl Future<Output = Result<T, Error>>,
    ) -> Result<Option<T>, Error> {
        if self.is_wary() {
            return Ok(None);
        }
        match marking.await {
            Err(error) if error.is_contention() => {
                self.beware();
                Ok(None)
            }
            Err(error) if error.may_be_about_a_row() => Ok(None),
            marked => marked.map(Some),
        }
    }

    /// Marks the rows that a verdict of the sweeper says are published. Returns how many were.
    pub(crate) async fn mark_verdict(&self, stream: &str, it: &Verdict) -> Result<u64, Error> {
        let marked = self.mark(stream, &it.resolved).await?;
        Ok(marked.rows + self.mark_on_trust(stream, &it.trusted).await?)
    }

    /// Marks rows whose sequences in the stream are unknown. Locked ones are owed their marks.
    async fn mark_on_trust(&self, stream: &str, ids: &[Uuid]) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let resolved: Vec<_> = ids.iter().map(|id| Resolved::somewhere(*id)).collect();
        let (marked, _) = Box::pin(self.mark_free(&self.sql.trust_free, stream, &resolved)).await?;
        Ok(marked.len() as u64)
    }

    /// Marks the rows that are not locked, and waits for no lock. The others, and those whose marks the
    /// database refuses, are owed them. Returns the marked ones and the owed ones.
    async fn mark_free(
        &self,
        sql: &str,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<(HashSet<Uuid>, HashSet<Uuid>), Error> {
        let (mut marked, mut owed) = (HashSet::new(), HashSet::new());
        // A trigger or a constraint may be against a mark: then the halves are tried by themselves.
        let (mut pieces, mut is_tried) = (vec![resolved], false);
        while let Some(piece) = pieces.pop() {
            if piece.is_empty() {
                continue;
            }
            match self.with_resolved(sql, stream, piece).await {
                Ok(rows) => {
                    for row in rows {
                        let into = if row.get(1) { &mut owed } else { &mut marked };
                        into.insert(row.get(0));
                    }
                }
                Err(error) if error.may_be_about_a_row() => {
                    if !std::mem::replace(&mut is_tried, true) {
                        // Without rows, what is left is about the statement.
                        self.with_resolved(sql, stream, &[]).await?;
                    }
                    if piece.len() > 1 {
                        let (one, other) = piece.split_at(piece.len() / 2);
                        pieces.extend([other, one]);
                    } else {
                        self.with_resolved(&owe(&self.table), stream, piece).await?;
                        let ids: Vec<_> = piece.iter().map(|it| it.id).collect();
                        self.note_refusal(&ids, &error).await?;
                        owed.extend(ids);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok((marked, owed))
    }

    pub(super) async fn note_refusal(&self, owed: &[Uuid], error: &Error) -> Result<(), Error> {
        let owes = self.table.companion("tailpost_owed");
        let sql = format!(
            "UPDATE {owes} SET reason = $2, owed_at = clock_timestamp() WHERE id = ANY($1)"
        );
        let reason = reason(error);
        self.perform("write down why a mark is refused", &sql, &[&owed, &reason]).await
    }

    async fn with_resolved(
        &self,
        sql: &str,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let (ids, seqs, lsns) = columns(resolved);
        let parameters: [&(dyn ToSql + Sync); 4] = [&ids, &seqs, &lsns, &stream];
        self.query(MARKING, sql, &parameters).await
    }

    /// How many rows are owed a mark or their removal. Of how many of them the database refuses that,
    /// and why it refuses one of them.
    pub async fn owed(&self) -> Result<(u64, Option<(u64, String)>), Error> {
        let sql = format!(
            "SELECT count(*), count(reason), max(reason) FROM {}",
            self.table.companion("tailpost_owed")
        );
        let row = self.query_one("count the rows without marks", &sql, &[]).await?;
        let count = |at| row.get::<_, i64>(at).cast_unsigned();
        Ok((count(0), row.get::<_, Option<String>>(2).map(|why| (count(1), why))))
    }

    /// Counts rows without an id, up to a limit. Ids are looked up all the time, so an index leads there.
    pub async fn unidentified(&self) -> Result<u64, Error> {
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql = format!(
            "SELECT count(*) FROM (
                 SELECT FROM {outbox} o WHERE {id} IS NULL AND {NOT_MARKED} AND {owned}
                 LIMIT {UNIDENTIFIED_MAX}) unidentified",
            owned = self.owned_rows("o")
        );
        let row = self.query_one("look for rows without an id", &sql, &[]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    fn is_wary(&self) -> bool {
        let met = self.met_lock.lock().unwrap_or_else(PoisonError::into_inner);
        met.is_some_and(|at| at.elapsed() < WARY_FOR)
    }

    fn beware(&self) {
        let mut met = self.met_lock.lock().unwrap_or_else(PoisonError::into_inner);
        *met = Some(Instant::now());
    }
}

impl Marks {
    /// As [`mark`](Self::mark). Also returns the events that have no marked row: it is gone, or was
    /// not visible. That it may be visible by now does not matter: it has no mark.
    pub(crate) async fn mark_and_miss(
        &self,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<(u64, Vec<Resolved>), Error> {
        self.0.note_stored(stream, resolved).await?;
        let marked = self.0.unless_held_up(self.0.mark_waiting(stream, resolved)).await?;
        let (rows, mut there) = match marked {
            Some((rows, _)) if rows == resolved.len() as u64 => return Ok((rows, Vec::new())),
            Some((rows, deleted)) => (rows, deleted.unwrap_or_default()),
            // What is owed counts as marked: `mark_owed` marks it when it is free.
            None => {
                let sql = &self.0.sql.mark_free;
                let (marked, owed) = Box::pin(self.0.mark_free(sql, stream, resolved)).await?;
                ((marked.len() + owed.len()) as u64, &marked | &owed)
            }
        };
        if !self.0.marks_by_deleting() {
            there.extend(self.0.marked(resolved).await?);
        }
        let missed = resolved.iter().filter(|it| !there.contains(&it.id)).copied().collect();
        Ok((rows, missed))
    }
}

impl Rows {
    /// Marks what is owed and not locked any more. Returns how much is still owed, and which rows have
    /// no id.
    pub(crate) async fn mark_owed(&self) -> Result<Stuck, Error> {
        let (table, owed) = (&self.0.table, self.0.table.companion("tailpost_owed"));
        let sql = format!("SELECT EXISTS (SELECT FROM {owed})");
        let doing = "make up for marks";
        let row = self.0.query_one(doing, &sql, &[]).await?;
        let (mut left, mut refused) = (0, None);
        if row.get(0) {
            let due = format!(
                "SELECT id FROM {owed} WHERE reason IS NULL
                     OR owed_at < clock_timestamp() - make_interval(secs => {REFUSED_AGAIN})
                 ORDER BY owed_at LIMIT {OWED_AT_ONCE}"
            );
            let due = self.0.query(doing, &due, &[]).await?;
            let due: Vec<Uuid> = due.iter().map(|row| row.get(0)).collect();
            self.mark_due(&mark_owed(table, self.0.mark_by), &due).await?;
            (left, refused) = self.0.owed().await?;
        }
        Ok(Stuck { owed: left, refused, unidentified: self.0.unidentified().await? })
    }

    /// Each refusal is written down for the row that it is about.
    async fn mark_due(&self, sql: &str, due: &[Uuid]) -> Result<(), Error> {
        let mut pieces = vec![due];
        while let Some(piece) = pieces.pop() {
            match self.0.execute("make up for marks", sql, &[&piece]).await {
                Err(error) if error.may_be_about_a_row() && piece.len() > 1 => {
                    let (one, other) = piece.split_at(piece.len() / 2);
                    pieces.extend([other, one]);
                }
                Err(error) if error.may_be_about_a_row() => {
                    self.0.note_refusal(piece, &error).await?;
                }
                done => drop(done?),
            }
        }
        Ok(())
    }
}

fn reason(error: &Error) -> String {
    let code = || error.code().map_or_else(String::new, |it| format!("SQLSTATE {}", it.code()));
    error.refusal().unwrap_or_else(code)
}

/// Ids, places in the stream, and positions in the log, for `unnest`.
pub(super) fn columns(resolved: &[Resolved]) -> (Vec<Uuid>, Vec<Option<i64>>, Vec<Option<PgLsn>>) {
    let ids = resolved.iter().map(|it| it.id).collect();
    let seqs = resolved.iter().map(|it| it.seq.map(u64::cast_signed)).collect();
    let lsn = |it: &Resolved| (it.commit_lsn > Lsn::ZERO).then(|| PgLsn::from(it.commit_lsn.0));
    (ids, seqs, resolved.iter().map(lsn).collect())
}

/// As the one statement that marks rows, but waits for no row, and says which were marked and which
/// are owed their marks. It costs a lock for each row. With `on_trust`, the stream has events also of
/// which the place is not known.
pub(super) fn mark_free(table: &Table, by: MarkBy, on_trust: bool) -> String {
    let (outbox, id) = (table.quoted(), table.column(Column::Id));
    let owed = table.companion("tailpost_owed");
    let (lock, mark, taken) = match by {
        MarkBy::Row | MarkBy::Lean => {
            let mark = format!("UPDATE {outbox} o SET {} FROM resolved u", marks());
            ("NO KEY UPDATE", mark, "o.published_at IS NOT NULL")
        }
        MarkBy::Delete => ("UPDATE", format!("DELETE FROM {outbox} o USING resolved u"), "true"),
    };
    format!(
        "WITH resolved AS (
             SELECT id, stream_seq, commit_lsn,
                 CASE WHEN {on_trust} OR stream_seq IS NOT NULL THEN $4::text END AS stream
             FROM unnest($1::uuid[], $2::bigint[], $3::pg_lsn[]) AS u (id, stream_seq, commit_lsn)
         ), there AS MATERIALIZED (
             SELECT o.{id} AS id FROM {outbox} o WHERE o.{id} = ANY($1) AND {NOT_MARKED}
         ), free AS MATERIALIZED (
             SELECT o.{id} AS id FROM {outbox} o WHERE o.{id} = ANY($1) AND {NOT_MARKED}
             FOR {lock} SKIP LOCKED
         ), done AS (
             {mark} WHERE o.{id} = u.id AND o.{id} = ANY (ARRAY(SELECT id FROM free))
                 AND {NOT_MARKED}
             RETURNING o.{id} AS id, {taken} AS is_taken
         ), marked AS (SELECT id FROM done WHERE is_taken), owed AS (
             INSERT INTO {owed} (id, stream, stream_seq, commit_lsn, reason)
             SELECT u.id, u.stream, u.stream_seq, u.commit_lsn,
                 CASE WHEN u.id IN (SELECT id FROM free) THEN '{UNTAKEN}' END
             FROM resolved u
             WHERE u.id IN (SELECT id FROM there) AND u.id NOT IN (SELECT id FROM marked)
             ON CONFLICT (id) DO UPDATE SET owed_at = excluded.owed_at, reason = excluded.reason
             RETURNING id
         )
         SELECT id, false FROM marked UNION ALL SELECT id, true FROM owed"
    )
}

/// What a mark sets, from a row `u` that says where the event is.
fn marks() -> String {
    format!(
        "published_at = clock_timestamp(), stream_seq = u.stream_seq, commit_lsn = u.commit_lsn,
         stream = u.stream, publish_error = CASE WHEN u.stream IS NULL THEN '{DROPPED}' END,
         next_attempt_at = NULL"
    )
}

fn owe(table: &Table) -> String {
    format!(
        "INSERT INTO {} (id, stream, stream_seq, commit_lsn)
         SELECT id, CASE WHEN seq IS NOT NULL THEN $4::text END, seq, lsn
         FROM unnest($1::uuid[], $2::bigint[], $3::pg_lsn[]) AS u (id, seq, lsn)
         ON CONFLICT (id) DO NOTHING RETURNING id",
        table.companion("tailpost_owed")
    )
}

/// Marks or removes the rows that were locked and are not any more. The record of a row is locked with
/// it: whoever requeues its event meanwhile takes the record away.
fn mark_owed(table: &Table, by: MarkBy) -> String {
    let (outbox, id) = (table.quoted(), table.column(Column::Id));
    let owed = table.companion("tailpost_owed");
    let (mark, removed) = match by {
        MarkBy::Row | MarkBy::Lean => (
            format!(
                "UPDATE {outbox} o SET {} FROM due u WHERE o.{id} = u.id AND NOT u.parked
                 RETURNING o.{id}, o.published_at IS NOT NULL",
                marks()
            ),
            "u.parked",
        ),
        MarkBy::Delete => ("SELECT NULL::uuid, true WHERE false".to_owned(), "true"),
    };
    format!(
        "WITH due AS MATERIALIZED (
             SELECT w.* FROM {owed} w JOIN {outbox} o ON o.{id} = w.id WHERE {NOT_MARKED}
                 AND w.id = ANY($1)
             FOR UPDATE OF o, w SKIP LOCKED
         ), marked (id, is_taken) AS (
             {mark}
         ), removed (id) AS (
             DELETE FROM {outbox} o USING due u WHERE o.{id} = u.id AND {removed} RETURNING o.{id}
         ), done AS (
             SELECT id FROM marked WHERE is_taken UNION ALL SELECT id FROM removed
         ), untaken AS (
             UPDATE {owed} w SET reason = '{UNTAKEN}', owed_at = clock_timestamp()
             WHERE w.id IN (SELECT id FROM due) AND w.id NOT IN (SELECT id FROM done)
         )
         DELETE FROM {owed} w WHERE w.id IN (SELECT id FROM done)
             OR NOT EXISTS (SELECT FROM {outbox} o WHERE o.{id} = w.id AND {NOT_MARKED})"
    )
}
