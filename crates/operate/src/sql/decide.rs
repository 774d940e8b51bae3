//! What operators do with dead letters.

use jiff::Timestamp;
use outbox::Column;
use relay::access::mark;
use relay::{Error, Shard, Shards};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::Store;
use crate::dead_letters::outbox_letters::{DeadLetter, LetterPlace};
use crate::dead_letters::{Actor, Aggregate, AuditEntry, Filter, Group, group_letters};

/// The filter's parameters are always $1 to $5.
const MATCHES: &str = "discarded_at IS NULL
    AND ($1::text[] IS NULL
         OR (aggregate_type, aggregate_id) IN (SELECT * FROM unnest($1::text[], $2::text[])))
    AND ($3::text IS NULL OR event_type = $3)
    AND ($4::text IS NULL OR position(lower($4) IN lower(reason)) > 0)
    AND ($5::timestamptz IS NULL OR dead_at >= $5)";

fn shown(shards: Shards) -> String {
    let shard = match shards.count() {
        1 => "NULL::bigint".to_owned(),
        of => Shard::of_row(of, "aggregate_type", "aggregate_id"),
    };
    format!(
        "id, aggregate_type, aggregate_id, event_type, event_version, occurred_at, dead_at, reason,
         publish_attempts, blocks, blocked_by, discarded_at, {shard}, coalesce(seq, 0)"
    )
}

/// A filter as parameters.
struct Parameters<'a> {
    aggregate_types: Option<Vec<String>>,
    aggregate_ids: Option<Vec<String>>,
    filter: &'a Filter,
}

impl<'a> Parameters<'a> {
    fn of(filter: &'a Filter) -> Self {
        let (aggregate_types, aggregate_ids) =
            filter.aggregate.as_ref().map(Aggregate::readings).unzip();
        Self { aggregate_types, aggregate_ids, filter }
    }

    fn with<'b>(&'b self, more: &[&'b (dyn ToSql + Sync)]) -> Vec<&'b (dyn ToSql + Sync)> {
        let mut all: Vec<&'b (dyn ToSql + Sync)> = vec![
            &self.aggregate_types,
            &self.aggregate_ids,
            &self.filter.event_type,
            &self.filter.reason,
            &self.filter.since,
        ];
        all.extend_from_slice(more);
        all
    }
}

impl Store {
    /// The newest first, at most `limit`.
    pub(crate) async fn dead_letters(
        &self,
        filter: &Filter,
        after: Option<LetterPlace>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        let sql = format!(
            "SELECT {} FROM {} WHERE {MATCHES}
                 AND ($7::timestamptz IS NULL OR (dead_at, coalesce(seq, 0), id) < ($7, $8, $9))
             ORDER BY dead_at DESC, coalesce(seq, 0) DESC, id DESC LIMIT $6",
            shown(self.shards),
            self.dead()
        );
        let limit = i64::from(limit);
        let parameters = Parameters::of(filter);
        let time = after.map(|it| it.0);
        let (seq, id) = after.map_or((0, Uuid::nil()), |it| (it.1, it.2));
        let parameters = parameters.with(&[&limit, &time, &seq, &id]);
        let rows = self.query("list dead letters", &sql, &parameters).await?;
        Ok(rows.iter().map(dead_letter).collect())
    }

    /// Failures by kind, the most frequent first.
    pub(crate) async fn dead_letter_groups(&self, filter: &Filter) -> Result<Vec<Group>, Error> {
        let these = format!("FROM {} WHERE {MATCHES}", self.dead());
        let sql = group_letters("aggregate_type || ':' || aggregate_id", &these);
        let parameters = Parameters::of(filter);
        self.read("group dead letters", &sql, &parameters.with(&[])).await
    }

    /// How many there are, and how old the oldest is, in seconds.
    pub(crate) async fn count_dead_letters(
        &self,
        filter: &Filter,
    ) -> Result<(u64, Option<f64>), Error> {
        let sql = format!(
            "SELECT count(*), extract(epoch FROM clock_timestamp() - min(dead_at))::float8
             FROM {} WHERE {MATCHES}",
            self.dead()
        );
        let parameters = Parameters::of(filter);
        let row = self.query_one("count dead letters", &sql, &parameters.with(&[])).await?;
        Ok((row.get::<_, i64>(0).cast_unsigned(), row.get(1)))
    }

    /// Types and ids of the aggregates of those that match, if the filter names one.
    pub(crate) async fn dead_aggregates(
        &self,
        filter: &Filter,
    ) -> Result<Vec<(String, String)>, Error> {
        if filter.aggregate.is_none() {
            return Ok(vec![]);
        }
        let sql = format!(
            "SELECT DISTINCT aggregate_type, aggregate_id FROM {} WHERE {MATCHES} ORDER BY 1, 2",
            self.dead()
        );
        let parameters = Parameters::of(filter);
        let rows = self.query("tell aggregates apart", &sql, &parameters.with(&[])).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Ids in the order in which they are to be requeued: those that died until `until`, behind the
    /// place `after`.
    pub(crate) async fn dead_letter_ids(
        &self,
        filter: &Filter,
        until: Timestamp,
        after: (i64, Uuid),
        limit: u32,
    ) -> Result<Vec<(i64, Uuid)>, Error> {
        let sql = format!(
            "SELECT coalesce(seq, 0), id FROM {} WHERE {MATCHES} AND dead_at <= $6
                 AND (coalesce(seq, 0), id) > ($7, $8)
             ORDER BY coalesce(seq, 0), id LIMIT $9",
            self.dead()
        );
        let (seq, id, limit) = (after.0, after.1, i64::from(limit));
        let parameters = Parameters::of(filter);
        let rows = self
            .query("find dead letters", &sql, &parameters.with(&[&until, &seq, &id, &limit]))
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    pub(crate) async fn dead_letter(&self, id: Uuid) -> Result<Option<DeadLetter>, Error> {
        let sql = format!("SELECT {} FROM {} WHERE id = $1", shown(self.shards), self.dead());
        Ok(self.query_opt("read a dead letter", &sql, &[&id]).await?.as_ref().map(dead_letter))
    }

    /// Headers and payload.
    pub(crate) async fn carried(
        &self,
        id: Uuid,
    ) -> Result<Option<(Option<serde_json::Value>, Vec<u8>)>, Error> {
        let payload = self.payload_bytes().await?;
        let sql = format!("SELECT headers::jsonb, {payload} FROM {} WHERE id = $1", self.dead());
        let row = self.query_opt("read a dead letter", &sql, &[&id]).await?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }

    /// The payload as the broker gets it.
    async fn payload_bytes(&self) -> Result<&'static str, Error> {
        Ok(match mark::type_name(self.dead_payload_type().await?) {
            "bytea" => "payload",
            _ => "convert_to(payload::text, 'UTF8')",
        })
    }

    /// How long its payload is, and how many events wait for it.
    pub(crate) async fn weight(&self, id: Uuid) -> Result<Option<(i32, i64)>, Error> {
        let (payload, dead) = (self.payload_bytes().await?, self.dead());
        let sql = format!(
            "SELECT length({payload}), (SELECT count(*) FROM {dead} AS d WHERE blocked_by = $1
                 AND blocks AND discarded_at IS NULL AND d.aggregate_id = it.aggregate_id)
             FROM {dead} AS it WHERE id = $1"
        );
        let row = self.query_opt("weigh a dead letter", &sql, &[&id]).await?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }

    /// Whether the outbox has the event, and if it is published, since when and where.
    pub(crate) async fn outbox_row(
        &self,
        id: Uuid,
    ) -> Result<Option<(Option<Timestamp>, Option<String>, Option<i64>)>, Error> {
        let sql = format!(
            "SELECT published_at, stream, stream_seq FROM {} WHERE {} = $1",
            self.table.quoted(),
            self.table.column(Column::Id)
        );
        let row = self.query_opt("look for the event in the outbox", &sql, &[&id]).await?;
        Ok(row.map(|row| (row.get(0), row.get(1), row.get(2))))
    }

    pub(crate) async fn audit_entries(&self, id: Uuid) -> Result<Vec<AuditEntry>, Error> {
        let sql = format!(
            "SELECT at, action, actor, via, why, reason, old_payload IS NOT NULL AS payload_replaced
             FROM {}
             WHERE event_id = $1 ORDER BY id",
            self.audit()
        );
        self.read("read what was done", &sql, &[&id]).await
    }

    /// Moves a dead letter, as it was seen, back into the outbox, where the scanner finds it. Says
    /// whether it was there to be moved.
    pub(crate) async fn requeue(
        &self,
        id: Uuid,
        payload: Option<&str>,
        dead_at: Option<Timestamp>,
        actor: &Actor,
    ) -> Result<bool, Error> {
        let (dead, put_back) = (self.dead(), self.put_back().await?);
        let type_oid = self.dead_payload_type().await?;
        let new = match mark::type_name(type_oid) {
            "bytea" => "convert_to($2::text, 'UTF8')".to_owned(),
            name => format!("$2::text::{name}"),
        };
        let sql = format!(
            "WITH old AS (
                 DELETE FROM {dead} WHERE id = $1 AND discarded_at IS NULL AND {AS_SEEN}
                 RETURNING *
             ), back AS (
                 SELECT {columns}, coalesce({new}, payload) AS payload FROM old
             ), put AS ({put_back}),
             noted AS ({noted})
             SELECT count(*) FROM old",
            columns = COLUMNS_BUT_PAYLOAD,
            noted = self.note(
                "requeue",
                &format!("CASE WHEN $2::text IS NOT NULL THEN {} END", kept_text(type_oid))
            ),
        );
        let (Actor { name, via, .. }, why) = (actor, actor.why());
        let parameters: [&(dyn ToSql + Sync); 6] = [&id, &payload, name, via, &why, &dead_at];
        let row = self.query_one(REQUEUING, &sql, &parameters).await;
        Ok(row.map_err(no_json)?.get::<_, i64>(0) > 0)
    }

    /// Moves all dead letters of an aggregate back into the outbox, in one step. Says how many.
    pub(crate) async fn requeue_aggregate(
        &self,
        (kind, id): &(String, String),
        actor: &Actor,
    ) -> Result<u64, Error> {
        let sql = format!(
            "WITH back AS (
                 DELETE FROM {dead} WHERE aggregate_type = $1 AND aggregate_id = $2
                     AND discarded_at IS NULL
                 RETURNING *
             ), old AS (SELECT * FROM back),
             put AS ({put_back}),
             noted AS ({noted})
             SELECT count(*) FROM back",
            dead = self.dead(),
            put_back = self.put_back().await?,
            noted = self.note("requeue", "NULL"),
        );
        let (Actor { name, via, .. }, why) = (actor, actor.why());
        let row = self.query_one(REQUEUING, &sql, &[kind, id, name, via, &why]).await;
        Ok(row.map_err(no_json)?.get::<_, i64>(0).cast_unsigned())
    }

    /// Takes a dead letter off the list; its row stays until it is purged. Says whether it was there.
    pub(crate) async fn discard(
        &self,
        id: Uuid,
        dead_at: Option<Timestamp>,
        actor: &Actor,
    ) -> Result<bool, Error> {
        let sql = format!(
            "WITH old AS (
                 UPDATE {dead} SET discarded_at = clock_timestamp()
                 WHERE id = $1 AND discarded_at IS NULL AND $2::text IS NULL AND {AS_SEEN}
                 RETURNING *
             ), noted AS ({noted})
             SELECT count(*) FROM old",
            dead = self.dead(),
            noted = self.note("discard", "NULL"),
        );
        let (Actor { name, via, .. }, why) = (actor, actor.why());
        let doing = "discard a dead letter";
        let parameters: [&(dyn ToSql + Sync); 6] = [&id, &None::<&str>, name, via, &why, &dead_at];
        let row = self.query_one(doing, &sql, &parameters).await?;
        Ok(row.get::<_, i64>(0) > 0)
    }

    /// Records that a dead letter's payload is read.
    pub(crate) async fn note_reading(&self, id: Uuid, actor: &Actor) -> Result<(), Error> {
        let sql = format!(
            "WITH old AS (SELECT * FROM {} WHERE id = $1 AND $2::text IS NULL) {}",
            self.dead(),
            self.note("read", "NULL")
        );
        let (Actor { name, via, .. }, why) = (actor, actor.why());
        self.perform("note a reading", &sql, &[&id, &None::<&str>, name, via, &why]).await
    }

    /// Writes down what is done to the rows of the CTE `old`, by parameters 3 to 5.
    fn note(&self, action: &str, old_payload: &str) -> String {
        format!(
            "INSERT INTO {} (action, event_id, aggregate_type, aggregate_id, event_type, actor,
                 via, why, reason, old_payload)
             SELECT '{action}', id, aggregate_type, aggregate_id, event_type, $3, $4, $5, reason,
                 {old_payload} FROM old",
            self.audit()
        )
    }

    fn dead(&self) -> String {
        self.table.companion("outbox_dead_letter")
    }

    fn audit(&self) -> String {
        self.table.companion("outbox_dead_letter_audit")
    }
}

/// A letter that died again since somebody saw it is another one.
const AS_SEEN: &str = "($6::timestamptz IS NULL OR dead_at = $6)";

const REQUEUING: &str = "requeue a dead letter";

const COLUMNS_BUT_PAYLOAD: &str = "id, aggregate_type, aggregate_id, event_type, event_version,
    occurred_at, correlation_id, causation_id, headers, seq";

/// A dead letter's payload as text, whatever it is kept as; bytes that are none are escaped.
fn kept_text(type_oid: u32) -> &'static str {
    match mark::type_name(type_oid) {
        "bytea" => "encode(payload, 'escape')",
        _ => "payload::text",
    }
}

fn no_json(error: Error) -> Error {
    if let Error::Sql { source, .. } = &error
        && let Some(refused) = source.as_db_error()
        && refused.code().code().starts_with("22")
    {
        return Error::Conflict(format!("the payload is no JSON: {}", refused.message()));
    }
    error
}

fn dead_letter(row: &Row) -> DeadLetter {
    DeadLetter {
        id: row.get(0),
        aggregate_type: row.get(1),
        aggregate_id: row.get(2),
        event_type: row.get(3),
        event_version: row.get(4),
        occurred_at: row.get(5),
        dead_at: row.get(6),
        reason: row.get(7),
        attempts: row.get(8),
        blocks: row.get(9),
        blocked_by: row.get(10),
        discarded_at: row.get(11),
        shard: row.get(12),
        seq: row.get(13),
    }
}
