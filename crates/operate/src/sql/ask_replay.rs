//! What is asked of replays, and what operators decide about them.

use std::pin::pin;

use futures_util::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use outbox::{Column, DROPPED};
use relay::access::mark;
use relay::{Error, ReplaySelection, ReplaySource};
use tokio_postgres::types::{PgLsn, ToSql};
use uuid::Uuid;

use super::Store;
use crate::replays::{ReplayDecision, ReplayEntry, ReplayRequest, SourceHolds, Unreplayed};

const COUNTING: &str = "count what is to be replayed";
const ASKING: &str = "ask for a replay";
const LISTING: &str = "list replays";

/// How long a plan, or a list of what to replay, may take: as long as it is waited for.
const AT_LEISURE: &str = "SET statement_timeout = 0; SET lock_timeout = '5s'";

/// Events that are listed by one statement.
const LISTED_AT_ONCE: usize = 5_000;

/// What the table has of a selection.
#[derive(Debug, Clone)]
pub(crate) struct TableHolds {
    /// Published rows that are meant.
    pub(crate) events: u64,
    /// Rows that would be, if their positions were known, or were this cluster's.
    pub(crate) without_position: u64,
    /// When the oldest published row was published.
    pub(crate) from: Option<Timestamp>,
}

/// The parameters of a selection, in the order of their numbers.
struct Parameters {
    from_lsn: Option<PgLsn>,
    to_lsn: Option<PgLsn>,
    event_type: Option<String>,
    aggregate: (Option<String>, Option<String>),
}

impl Parameters {
    fn new(of: &ReplaySelection) -> Self {
        let lsn = |it: Option<pgoutput::Lsn>| it.map(|it| PgLsn::from(it.0));
        Self {
            from_lsn: lsn(of.from_lsn),
            to_lsn: lsn(of.to_lsn),
            event_type: of.event_type.as_ref().map(relay::Glob::like),
            aggregate: of.aggregate.clone().unzip(),
        }
    }

    fn all<'a>(&'a self, of: &'a ReplaySelection) -> [&'a (dyn ToSql + Sync); 8] {
        let (of_type, id) = (&self.aggregate.0, &self.aggregate.1);
        let Self { from_lsn, to_lsn, event_type, .. } = self;
        [from_lsn, to_lsn, &of.since, &of.until, &of.events, of_type, id, event_type]
    }
}

impl Store {
    /// Whether a row, called `o`, is published, and all but its position is as the selection says.
    fn is_meant(&self) -> String {
        let column = |column| format!("o.{}", self.table.column(column));
        let published = "coalesce(o.published_at, o_time.at)";
        format!(
            "(o.published_at IS NOT NULL AND o.stream IS NOT NULL
                 OR o.published_at IS NULL AND NOT ({not_published}))
             AND coalesce(o.publish_error, '') <> '{DROPPED}' AND {id} IS NOT NULL AND {owned}
             AND ($3::timestamptz IS NULL OR {published} >= $3)
             AND ($4::timestamptz IS NULL OR {published} < $4)
             AND (cardinality($5::uuid[]) = 0 OR {id} = ANY ($5))
             AND ($6::text IS NULL OR {of_type}::text || ':' || {of}::text = $6 || ':' || $7::text)
             AND ($8::text IS NULL OR {event_type}::text COLLATE \"C\" LIKE $8)",
            not_published = mark::not_published(&self.table, "o"),
            owned = self.owned_rows("o"),
            id = column(Column::Id),
            of_type = column(Column::AggregateType),
            of = column(Column::AggregateId),
            event_type = column(Column::EventType),
        )
    }

    /// The outbox, each row with a time for one that has no mark.
    async fn rows_with_times(&self) -> Result<String, Error> {
        let outbox = self.table.quoted();
        let types = self.types(&outbox).await?;
        let name = self.table.columns().name(Column::OccurredAt);
        let at = match types.get(name) {
            Some(_) => format!("o.{}::timestamptz", self.table.column(Column::OccurredAt)),
            None => "'-infinity'::timestamptz".to_owned(),
        };
        Ok(format!("{outbox} o CROSS JOIN LATERAL (SELECT {at} AS at) AS o_time"))
    }

    /// Whether the position of a row, called `o`, is one of this cluster's log. A row that was marked
    /// before this cluster took the table over has another cluster's.
    fn has_position(&self) -> String {
        format!(
            "(o.commit_lsn IS NOT NULL AND o.published_at >= coalesce((
                 SELECT min(own.began_at) FROM {epochs} own
                 WHERE own.system_identifier = (
                         SELECT system_identifier FROM {epochs} ORDER BY began_at DESC LIMIT 1)
                     AND EXISTS (SELECT FROM {epochs} former
                                 WHERE former.system_identifier <> own.system_identifier
                                     AND former.began_at <= own.began_at)
             ), '-infinity'))",
            epochs = self.table.companion("tailpost_epochs")
        )
    }

    /// What the table has of a selection.
    pub(crate) async fn table_holds(&self, of: &ReplaySelection) -> Result<TableHolds, Error> {
        let in_log = "($1::pg_lsn IS NULL OR o.commit_lsn >= $1)
                      AND ($2::pg_lsn IS NULL OR o.commit_lsn <= $2)";
        let needs = of.from_lsn.is_some() || of.to_lsn.is_some();
        let sql = format!(
            "SELECT count(*) FILTER (WHERE meant AND (NOT {needs} OR has_position AND in_log)),
                 count(*) FILTER (WHERE meant AND {needs} AND NOT has_position),
                 min(published_at)
             FROM (SELECT {is_meant} AS meant, {has_position} AS has_position, {in_log} AS in_log,
                       o.published_at FROM {rows}) AS judged",
            is_meant = self.is_meant(),
            has_position = self.has_position(),
            rows = self.rows_with_times().await?,
        );
        // A pool has its own bound: nothing else ends a statement whose request is gone.
        if !self.client().is_pooled() {
            self.batch_execute(COUNTING, AT_LEISURE).await?;
        }
        let parameters = Parameters::new(of);
        let row = self.query_one(COUNTING, &sql, &parameters.all(of)).await?;
        let count = |at| row.get::<_, i64>(at).max(0).cast_unsigned();
        Ok(TableHolds { events: count(0), without_position: count(1), from: row.get(2) })
    }

    /// Writes a replay down, for the relay of `slot`, with what it is to publish. No relay takes it up
    /// before its list is complete; until then rows are kept for it, as for any other.
    ///
    /// The order is that of the commits. Rows whose position is unknown were published from the
    /// table: they come behind everything that was inserted before them.
    pub(crate) async fn ask_replay(
        &self,
        writer: &Self,
        slot: &str,
        stream: &str,
        source: &SourceHolds,
        request: &ReplayRequest,
    ) -> Result<Uuid, Error> {
        let id = Uuid::new_v4();
        let replays = self.table.companion("tailpost_replays");
        self.batch_execute(ASKING, AT_LEISURE).await?;
        let (first, last) = (source.places.0.cast_signed(), source.places.1.cast_signed());
        let log_from = source.from_lsn.map(|it| PgLsn::from(it.0));
        let of = &request.selection;
        let parameters = Parameters::new(of);
        let sql = format!(
            "INSERT INTO {replays} (from_lsn, to_lsn, since, until, event_ids, aggregate_type,
                 aggregate_id, event_type, id, slot, source, stream, subject_prefix, per_second,
                 asked_by, reason, first_place, last_place, log_from)
             VALUES ($1, $2, $3, $4, nullif($5::uuid[], '{{}}'), $6, $7, $8, $9, $10, $11, $12, $13,
                 $14, $15, $16, $17, $18, $19)"
        );
        let event_type = of.event_type.as_ref().map(ToString::to_string);
        let (name, prefix) = (source.source, &request.subject_prefix);
        let per_second = request.per_second.and_then(|it| i32::try_from(it).ok());
        let mut values = parameters.all(of).to_vec();
        values[7] = &event_type;
        values.extend([&id as &(dyn ToSql + Sync), &slot, &name, &stream, prefix, &per_second]);
        values.extend([&request.by as &(dyn ToSql + Sync), &request.reason, &first, &last]);
        values.push(&log_from);
        writer.perform(ASKING, &sql, &values).await?;
        if name == ReplaySource::Table.name()
            && let Err(error) = self.list_events(writer, id, of).await
        {
            // The error says more. Who is killed instead leaves a replay that has to be cancelled.
            let _ = writer.decide_replay(id, ReplayDecision::Cancel, &request.by, None).await;
            while writer.forget_listed(id).await.unwrap_or(false) {}
            return Err(error);
        }
        Ok(id)
    }

    /// Lists what is meant, as the table is at one moment, and counts it. In many transactions: the
    /// walsender reads each as a whole, and has nothing for others meanwhile.
    async fn list_events(
        &self,
        writer: &Self,
        id: Uuid,
        of: &ReplaySelection,
    ) -> Result<(), Error> {
        let parameters = Parameters::new(of);
        let meant = self.meant_events().await?;
        let rows = self.query_raw(ASKING, &meant, parameters.all(of)).await?;
        let mut rows = pin!(rows.try_chunks(LISTED_AT_ONCE));
        let insert = format!(
            "INSERT INTO {} (replay, place, event, commit_lsn, ordinal)
             SELECT $1, $2 + place, event, lsn, ordinal
             FROM unnest($3::uuid[], $4::pg_lsn[], $5::int[])
                 WITH ORDINALITY AS u (event, lsn, ordinal, place)",
            self.table.companion("tailpost_replay_events")
        );
        let mut listed: i64 = 0;
        while let Some(chunk) = rows.next().await {
            let chunk = chunk.map_err(|error| Error::sql(ASKING)(error.1))?;
            let events: Vec<Uuid> = chunk.iter().map(|row| row.get(0)).collect();
            let lsns: Vec<Option<PgLsn>> = chunk.iter().map(|row| row.get(1)).collect();
            let ordinals: Vec<Option<i32>> = chunk.iter().map(|row| row.get(2)).collect();
            let values: [&(dyn ToSql + Sync); 5] = [&id, &listed, &events, &lsns, &ordinals];
            writer.perform(ASKING, &insert, &values).await?;
            listed += i64::try_from(events.len()).unwrap_or(0);
        }
        let complete = format!(
            "UPDATE {} SET events = $2, last_place = $2 WHERE id = $1",
            self.table.companion("tailpost_replays")
        );
        writer.perform(ASKING, &complete, &[&id, &listed]).await
    }

    /// Selects what is meant, in its order.
    async fn meant_events(&self) -> Result<String, Error> {
        Ok(format!(
            "SELECT id, lsn, ordinal::int FROM (
                 SELECT o.{id} AS id, o.seq, meant.lsn, meant.is_meant,
                     CASE WHEN meant.lsn IS NOT NULL THEN row_number() OVER
                         (PARTITION BY meant.lsn ORDER BY o.seq) - 1 END AS ordinal,
                     coalesce(meant.lsn, max(meant.lsn) OVER (ORDER BY o.seq
                         ROWS UNBOUNDED PRECEDING)) AS after
                 FROM {rows} CROSS JOIN LATERAL (
                     SELECT CASE WHEN {has_position} THEN o.commit_lsn END AS lsn,
                         {is_meant} AS is_meant) AS meant
             ) AS rows
             WHERE is_meant
                 AND ($1::pg_lsn IS NULL OR lsn >= $1) AND ($2::pg_lsn IS NULL OR lsn <= $2)
             ORDER BY after NULLS FIRST, seq",
            id = self.table.column(Column::Id),
            rows = self.rows_with_times().await?,
            has_position = self.has_position(),
            is_meant = self.is_meant(),
        ))
    }

    /// The replays of all slots, the newest first, at most `limit`; or one of them.
    pub(crate) async fn replays(
        &self,
        id: Option<Uuid>,
        after: Option<(Timestamp, Uuid)>,
        limit: u32,
    ) -> Result<Vec<ReplayEntry>, Error> {
        let sql = format!(
            "SELECT id, slot, stream, status, source, from_lsn::text, to_lsn::text, since::text,
                 until::text, coalesce(event_ids, '{{}}') AS event_ids, aggregate_type,
                 aggregate_id, event_type, subject_prefix, waits_for, per_second, asked_by, reason,
                 asked_at::text, asked_at AS asked, started_at::text, noted_at::text,
                 ended_at::text, decisions, events, first_place, last_place, place, published,
                 (SELECT count(*) FROM {listed} l WHERE l.replay = r.id AND l.problem IS NOT NULL)
                     AS failed,
                 EXISTS (SELECT FROM pg_replication_slots s
                         WHERE s.slot_name = r.slot AND s.active) AS has_relay
             FROM {replays} r
             WHERE ($1::uuid IS NULL OR r.id = $1)
                 AND ($3::timestamptz IS NULL OR (r.asked_at, r.id) < ($3, $4::uuid))
             ORDER BY r.asked_at DESC, r.id DESC LIMIT $2",
            replays = self.table.companion("tailpost_replays"),
            listed = self.table.companion("tailpost_replay_events"),
        );
        let (time, place) = after.unzip();
        self.read(LISTING, &sql, &[&id, &i64::from(limit), &time, &place]).await
    }

    /// Whether anything was ever replayed.
    pub(crate) async fn has_replayed(&self) -> Result<bool, Error> {
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {} WHERE started_at IS NOT NULL)",
            self.table.companion("tailpost_replays")
        );
        Ok(self.query_one(LISTING, &sql, &[]).await?.get(0))
    }

    /// What a replay could not publish, in its order.
    pub(crate) async fn unreplayed(&self, id: Uuid, limit: u32) -> Result<Vec<Unreplayed>, Error> {
        let sql = format!(
            "SELECT event, problem AS reason FROM {} WHERE replay = $1 AND problem IS NOT NULL
             ORDER BY place LIMIT $2",
            self.table.companion("tailpost_replay_events")
        );
        self.read(LISTING, &sql, &[&id, &i64::from(limit)]).await
    }

    /// Pauses, resumes or cancels a replay. False if its state does not allow that.
    pub(crate) async fn decide_replay(
        &self,
        id: Uuid,
        decision: ReplayDecision,
        by: &str,
        why: Option<&str>,
    ) -> Result<bool, Error> {
        let (of, to) = match decision {
            ReplayDecision::Pause => ("'asked', 'running'", "paused"),
            ReplayDecision::Resume => ("'paused'", "asked"),
            ReplayDecision::Cancel => ("'asked', 'running', 'paused'", "cancelled"),
        };
        let sql = format!(
            "WITH decided AS (
                 UPDATE {replays} SET status = '{to}',
                     ended_at = CASE WHEN '{to}' = 'cancelled' THEN now() END,
                     decisions = decisions || jsonb_build_array(jsonb_build_object(
                         'at', now(), 'decision', $2::text, 'by', $3::text, 'why', $4::text))
                 WHERE id = $1 AND status IN ({of}) RETURNING id
             )
             SELECT id FROM decided",
            replays = self.table.companion("tailpost_replays"),
        );
        let doing = "decide about a replay";
        let it = self.query_opt(doing, &sql, &[&id, &decision.name(), &by, &why]).await?;
        Ok(it.is_some())
    }

    /// Removes some of what a cancelled replay was still to publish. Says whether there is more.
    pub(crate) async fn forget_listed(&self, id: Uuid) -> Result<bool, Error> {
        let sql = format!(
            "DELETE FROM {listed} WHERE replay = $1 AND place = ANY (ARRAY(
                 SELECT place FROM {listed} WHERE replay = $1 AND problem IS NULL
                 ORDER BY place LIMIT 20000))",
            listed = self.table.companion("tailpost_replay_events")
        );
        Ok(self.execute("remove the list of a replay", &sql, &[&id]).await? > 0)
    }
}
