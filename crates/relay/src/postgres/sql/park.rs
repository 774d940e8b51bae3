//! Into the dead-letter table, and out of it again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox::{Column, Table};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use super::mark::NOT_MARKED;
use super::{Rows, Scan, SlotReader, Store, mark};
use crate::engine::{Blocked, Dead, Resolved, RowOfDead};
use crate::error::Error;
use crate::postgres::rows::{Micros, REQUEUED_TXID};

/// The most that is kept of a reason.
const REASON_BYTES_MAX: usize = 8 * 1024;

/// More dead letters than this no relay leaves unconfirmed.
const DEAD_AGAIN_MAX: u32 = 100_000;

/// More blocked aggregates than this are an outage by another name: the relay stops.
const BLOCKED_MAX: usize = 100_000;

/// A row counts no further.
const ATTEMPTS_MAX: i32 = i32::MAX;

/// What ends that the table $1 keeps rows out: its constraint $2, or triggers.
const KEEPS_OUT: &str = "
    SELECT coalesce(
        (SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', $1::text, conname) FROM pg_constraint
         WHERE conrelid = to_regclass($1) AND conname = $2),
        string_agg(format('ALTER TABLE %s DISABLE TRIGGER %I', $1::text, tgname), '; '))
    FROM pg_trigger WHERE tgrelid = to_regclass($1) AND NOT tgisinternal AND tgenabled IN ('O', 'A')
        AND tgtype & 4 = 4";

impl Rows {
    /// Moves an event to the dead-letter table, durably. The row may not be visible yet: then the
    /// event's own columns make the dead letter, and the sweeper removes the row. A locked one is
    /// [owed](Self::mark_owed), as is one whose removal a trigger or a constraint refuses.
    ///
    /// # Errors
    ///
    /// [`Error::SlotBusy`] if `reader` does not read the slot any more, and [`Error::NoLetter`] if the
    /// dead letter is kept out: nothing is written then.
    pub(crate) async fn park(
        &self,
        dead: &Dead,
        reader: Option<&SlotReader>,
    ) -> Result<RowOfDead, Error> {
        let event = &dead.event;
        let occurred_at = Micros::from(event.occurred_at);
        let headers = event.headers.as_ref().map(|headers| String::from_utf8_lossy(headers));
        let parameters: [&(dyn ToSql + Sync); 19] = [
            &event.id,
            &&*event.aggregate_type,
            &&*event.aggregate_id,
            &&*event.event_type,
            &event.event_version,
            &&*event.payload,
            &occurred_at,
            &event.correlation_id,
            &event.causation_id,
            &headers,
            &fit(&dead.reason),
            &i32::try_from(dead.attempts).unwrap_or(i32::MAX),
            &dead.seq,
            &dead.blocks,
            &dead.blocked_by,
            &reader.map(|it| &*it.slot),
            &reader.map(|it| it.pid),
            &dead.has_row,
            &dead.is_requeued,
        ];
        let (doing, park) = ("park an event", self.prepare_park().await?);
        let row = match self.0.query_one(doing, park, &parameters).await {
            Err(error) if dead.has_row && error.may_be_about_a_row() => {
                let kept = mark::park(&self.0.table, self.0.dead_payload_type().await?, false);
                let row = match self.0.query_one(doing, &kept, &parameters).await {
                    Err(error) => return Err(self.refused(error).await?),
                    Ok(row) => row,
                };
                self.0.note_refusal(&[event.id], &error).await?;
                row
            }
            Err(error) => return Err(self.refused(error).await?),
            Ok(row) => row,
        };
        if let Some(reader) = reader
            && !row.get::<_, bool>(2)
        {
            return Err(Error::SlotBusy { slot: reader.slot.clone() });
        }
        if !row.get::<_, bool>(3) {
            let why = "a trigger of outbox_dead_letter keeps the dead letter out".to_owned();
            return Err(Error::NoLetter { why, fix: self.what_lets_letters_in(None).await? });
        }
        if !dead.has_row {
            return Ok(RowOfDead::Never);
        }
        Ok(match (row.get(0), row.get(1)) {
            (true, _) => RowOfDead::Removed,
            (_, true) => RowOfDead::Locked,
            _ => RowOfDead::Unseen,
        })
    }

    /// What is said of a letter that was not written: who refused it, if that is not about the table.
    async fn refused(&self, error: Error) -> Result<Error, Error> {
        let Some(why) = error.refusal().filter(|_| !error.is_contention()) else {
            return Ok(error);
        };
        let fix = self.what_lets_letters_in(error.constraint()).await?;
        Ok(Error::NoLetter { why: format!("the dead letter is kept out: {why}"), fix })
    }

    async fn what_lets_letters_in(&self, constraint: Option<&str>) -> Result<String, Error> {
        let dead = self.0.table.companion("outbox_dead_letter");
        let doing = "look at what keeps dead letters out";
        let row = self.0.query_one(doing, KEEPS_OUT, &[&dead, &constraint]).await?;
        // A letter that somebody wrote just now is found the next time.
        let statement = row.get::<_, Option<String>>(0);
        Ok(statement.map_or_else(|| "see `tailpost doctor`".to_owned(), |it| format!("run `{it}`")))
    }

    /// Needed once, and by those who count on the order of several.
    pub(crate) async fn prepare_park(&self) -> Result<&Statement, Error> {
        let prepare = async || {
            let sql = mark::park(&self.0.table, self.0.dead_payload_type().await?, true);
            self.0.prepare(&sql).await
        };
        self.0.park.get_or_try_init(prepare).await
    }

    /// Writes down that an event could not be published, why, and when it is tried again. A row that
    /// is not visible yet is left alone.
    pub(crate) async fn note_failure(
        &self,
        id: Uuid,
        reason: &str,
        pause: Duration,
    ) -> Result<(), Error> {
        let reason = fit(reason);
        let sql = format!(
            "UPDATE {outbox} o SET publish_attempts =
                     least(greatest(coalesce(publish_attempts, 0), 0), {ATTEMPTS_MAX} - 1) + 1,
                 publish_error = $2,
                 next_attempt_at = clock_timestamp() + make_interval(secs => $3), txid = {transaction}
             WHERE {id} = ANY (ARRAY(
                 SELECT {id} FROM {outbox} WHERE {id} = $1 AND {NOT_MARKED}
                 FOR NO KEY UPDATE SKIP LOCKED))",
            // A new version of the row would not tell any more.
            transaction = mark::transaction("o"),
            outbox = self.0.table.quoted(),
            id = self.0.table.column(Column::Id)
        );
        let doing = "write down a failed attempt";
        self.0.perform(doing, &sql, &[&id, &reason, &pause.as_secs_f64()]).await
    }

    /// Writes down that a requeued event had been stored before, and so was not published again.
    pub(crate) async fn note_found(&self, found: &[Resolved]) -> Result<(), Error> {
        let ids: Vec<Uuid> = found.iter().map(|it| it.id).collect();
        let seqs: Vec<Option<i64>> = found.iter().map(|it| it.seq.map(u64::cast_signed)).collect();
        let doing = "write down what the stream had already";
        let audit = self.0.table.companion("outbox_dead_letter_audit");
        let sql = format!(
            "INSERT INTO {audit} (action, event_id, aggregate_type, aggregate_id, event_type, actor,
                 via, why)
             SELECT DISTINCT ON (a.event_id) 'found', a.event_id, a.aggregate_type, a.aggregate_id,
                 a.event_type, 'tailpost', 'relay',
                 'the stream had it already, as sequence ' || f.seq || ': not published again'
             FROM unnest($1::uuid[], $2::bigint[]) AS f (id, seq)
             JOIN {audit} a ON a.event_id = f.id AND a.action IN ('requeue', 'release')"
        );
        self.0.perform(doing, &sql, &[&ids, &seqs]).await
    }
}

impl Store {
    /// Events whose first rows the log may bring again although nothing is to become of these: those
    /// that were parked last, and those that were requeued last. A row that came back is the
    /// scanner's until it is marked. One that was inserted since is not.
    pub(crate) async fn newest_dead_letters(&self) -> Result<HashSet<Uuid>, Error> {
        let sql = format!(
            "SELECT id FROM {dead} WHERE {owned} ORDER BY dead_at DESC LIMIT {DEAD_AGAIN_MAX}",
            owned = self.owned_letters(),
            dead = self.table.companion("outbox_dead_letter"),
        );
        let rows = self.query("read dead letters", &sql, &[]).await?;
        let mut dead = self.newest_requeued().await?;
        dead.extend(rows.iter().map(|row| row.get::<_, Uuid>(0)));
        Ok(dead)
    }

    /// Those of them that were requeued.
    pub(crate) async fn newest_requeued(&self) -> Result<HashSet<Uuid>, Error> {
        let sql = format!(
            "SELECT event_id FROM (
                 SELECT event_id FROM {audit} WHERE action IN ('requeue', 'release') AND {owned}
                 ORDER BY id DESC LIMIT {DEAD_AGAIN_MAX}) requeued
             WHERE NOT EXISTS (
                 SELECT FROM {outbox} o WHERE o.{id} = event_id AND {NOT_MARKED}
                     AND o.txid IS DISTINCT FROM '{REQUEUED_TXID}'::xid8)",
            owned = self.owned_letters(),
            id = self.table.column(Column::Id),
            audit = self.table.companion("outbox_dead_letter_audit"),
            outbox = self.table.quoted(),
        );
        let rows = self.query("read dead letters", &sql, &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Whether requeued events wait for the scanner. What the log says of them it must not say first.
    pub(crate) async fn has_requeued(&self) -> Result<bool, Error> {
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {audit} JOIN {outbox} o ON o.{id} = event_id
                 WHERE action IN ('requeue', 'release') AND {NOT_MARKED} AND {owned})",
            owned = self.owned_rows("o"),
            id = self.table.column(Column::Id),
            audit = self.table.companion("outbox_dead_letter_audit"),
            outbox = self.table.quoted(),
        );
        Ok(self.query_one("look for requeued events", &sql, &[]).await?.get(0))
    }

    /// Puts what a CTE named `back` holds, whole rows of the dead-letter table, back into the outbox,
    /// for the scanner. The event's first row may still be there, if it was not visible when it was
    /// parked: it becomes what the dead letter is now.
    pub async fn put_back(&self) -> Result<String, Error> {
        let (table, outbox) = (&self.table, self.table.quoted());
        let sql = "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
                 WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
                     AND attgenerated = ''";
        let rows = self.query("look at the table's columns", sql, &[&outbox]).await?;
        let types: HashMap<String, String> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let (mut names, mut values, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        let has_unique_id = self.has_unique_id().await?;
        for column in Column::ALL {
            // Dead letters have the documented names.
            let dead = format!("back.{}", column.documented_name());
            let Some(wanted) = types.get(table.columns().name(column)) else { continue };
            let name = table.column(column);
            let value = match (column, wanted.as_str()) {
                (Column::Payload, "bytea") => dead,
                (Column::OccurredAt, wanted) if wanted.ends_with("without time zone") => {
                    format!("{dead} AT TIME ZONE 'UTC'")
                }
                (Column::OccurredAt, _) => dead,
                // As it was, if it was no JSON.
                (Column::Headers, wanted) if !wanted.starts_with("json") => format!(
                    "CASE jsonb_typeof({dead}) WHEN 'string' THEN {dead} #>> '{{}}'
                         ELSE {dead}::text END::{wanted}"
                ),
                (_, wanted) => format!("{dead}::text::{wanted}"),
            };
            if column != Column::Id {
                let changed = if has_unique_id { &format!("excluded.{name}") } else { &value };
                changes.push(format!("{name} = {changed}"));
            }
            names.push(name);
            values.push(value);
        }
        let id = table.column(Column::Id);
        let name = outbox.replace('\'', "''");
        let (names, values) = (names.join(", "), values.join(", "));
        let insert = format!(
            "INSERT INTO {outbox} AS o ({names}, seq, txid)
             SELECT {values}, coalesce(back.seq, nextval(pg_get_serial_sequence('{name}', 'seq'))),
                 '{REQUEUED_TXID}'::xid8
             FROM back"
        );
        let renewed = format!(
            "{}, publish_attempts = 0, publish_error = NULL,
                 next_attempt_at = NULL, txid = '{REQUEUED_TXID}'::xid8",
            changes.join(", ")
        );
        let put = if has_unique_id {
            format!(
                "{insert} ORDER BY seq
                 ON CONFLICT ({id}) DO UPDATE SET {renewed}
                     WHERE o.published_at IS NULL"
            )
        } else {
            // Nothing says that ids are unique: a partitioned table's key has other columns, too.
            format!(
                "UPDATE {outbox} o SET {renewed}
                 FROM back WHERE o.{id} = back.id AND o.published_at IS NULL
             ), added AS (
                 {insert} WHERE NOT EXISTS (SELECT FROM {outbox} o WHERE o.{id} = back.id)
                 ORDER BY seq"
            )
        };
        let owed = table.companion("tailpost_owed");
        Ok(format!(
            "{put}
             ), no_more_owed AS (
                 DELETE FROM {owed} WHERE id IN (SELECT id FROM back)"
        ))
    }

    /// Whether the table lets no id come twice.
    async fn has_unique_id(&self) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (
                SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
                WHERE indrelid = to_regclass($1) AND indisunique AND indisvalid
                    AND indnkeyatts = 1 AND indpred IS NULL AND attname::text = $2)";
        let (outbox, id) = (self.table.quoted(), self.table.columns().name(Column::Id));
        Ok(self.query_one("look at the table's keys", sql, &[&outbox, &id]).await?.get(0))
    }
}

impl Scan {
    /// Gives the scanner those dead letters that only waited for others, where nothing is left to
    /// wait for. Another shard's are left to it: only who holds its log may do that.
    pub(crate) async fn release(&self) -> Result<u64, Error> {
        let (put_back, owned) = (self.0.put_back().await?, self.0.owned_letters());
        let dead = self.0.table.companion("outbox_dead_letter");
        let audit = self.0.table.companion("outbox_dead_letter_audit");
        let sql = format!(
            "WITH back AS (
             DELETE FROM {dead} WHERE id = ANY (ARRAY(
                 SELECT d.id FROM {dead} d WHERE {free} AND {owned} FOR UPDATE SKIP LOCKED))
             RETURNING *
         ), put AS ({put_back}),
         noted AS (
             INSERT INTO {audit} (action, event_id, aggregate_type, aggregate_id, event_type, actor,
                 via, reason)
             SELECT 'release', id, aggregate_type, aggregate_id, event_type, 'tailpost', 'relay',
                 reason FROM back
         )
         SELECT count(*) FROM back",
            free = waits_for_nothing(&self.0.table),
        );
        let released: i64 = self.0.query_one("release waiting events", &sql, &[]).await?.get(0);
        Ok(released.cast_unsigned())
    }

    /// Whether there is something to [release](Self::release). Part of an open scan: if so, the scan
    /// would find what was requeued a moment ago, and take its aggregate for blocked.
    pub(crate) async fn has_to_release(&self) -> Result<bool, Error> {
        let (dead, owned) = (self.0.table.companion("outbox_dead_letter"), self.0.owned_letters());
        let free = waits_for_nothing(&self.0.table);
        let sql = format!("SELECT EXISTS (SELECT FROM {dead} d WHERE {free} AND {owned})");
        Ok(self.0.query_one("look for waiting events", &sql, &[]).await?.get(0))
    }

    /// The aggregates whose events wait. Part of an open scan: what that finds does not wait.
    pub(crate) async fn blocked(&self) -> Result<Vec<Blocked>, Error> {
        let sql = format!(
            "SELECT DISTINCT ON (aggregate_type, aggregate_id)
                 aggregate_type, aggregate_id, coalesce(blocked_by, id)
             FROM {} WHERE blocks AND discarded_at IS NULL AND {}
             ORDER BY aggregate_type, aggregate_id, blocked_by IS NOT NULL, seq
             LIMIT {}",
            self.0.table.companion("outbox_dead_letter"),
            self.0.owned_letters(),
            BLOCKED_MAX + 1
        );
        let rows = self.0.query("look for blocked aggregates", &sql, &[]).await?;
        if rows.len() > BLOCKED_MAX {
            return Err(Error::Refused(format!(
                "more than {BLOCKED_MAX} aggregates are blocked by dead letters; mend them with \
                 `tailpost outbox dlq`, or set relay.on_park = \"skip\""
            )));
        }
        let blocked = |row: &Row| Blocked {
            aggregate_type: row.get(0),
            aggregate_id: row.get(1),
            by: row.get(2),
        };
        Ok(rows.iter().map(blocked).collect())
    }
}

/// What fits into a reason.
fn fit(reason: &str) -> String {
    let mut reason = reason.replace('\0', "\u{fffd}");
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    reason
}

/// A dead letter `d` that only waited for others, of which none is left.
fn waits_for_nothing(table: &Table) -> String {
    format!(
        "d.blocked_by IS NOT NULL AND d.discarded_at IS NULL AND d.blocks AND NOT EXISTS (
             SELECT FROM {} head
             WHERE head.aggregate_type = d.aggregate_type AND head.aggregate_id = d.aggregate_id
                 AND head.blocks AND head.blocked_by IS NULL AND head.discarded_at IS NULL)",
        table.companion("outbox_dead_letter")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters_and_has_no_zeros() {
        let long = format!("x{}", "€".repeat(REASON_BYTES_MAX));
        let kept = fit(&long);
        assert!(long.starts_with(&kept));
        assert!(kept.len() <= REASON_BYTES_MAX && kept.len() > REASON_BYTES_MAX - '€'.len_utf8());
        assert_eq!(fit("a\0b"), "a\u{fffd}b");
        assert_eq!(REASON_BYTES_MAX, 8 * 1024);
    }
}
