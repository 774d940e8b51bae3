//! The texts of the statements that a relay runs again and again.

use outbox::Column;

use super::mark::{
    NOT_MARKED, UNTAKEN, dropped, mark, mark_lately, not_owed, not_published, owned, published_to,
    transaction,
};
use super::stream_lost::note_stream_end;
use crate::config::Config;
use crate::engine::SweepRange;

pub(super) struct Statements {
    pub(super) mark: String,
    pub(super) mark_lately: String,
    unmarked: String,
    unmarked_since: String,
    pub(super) sweep_dead: String,
    pub(super) owe_dead: String,
    pub(super) mark_free: String,
    pub(super) trust_free: String,
    pub(super) watermark: String,
    pub(super) published_to: String,
    pub(super) note_stream_end: String,
}

impl Statements {
    pub(super) fn new(config: &Config) -> Self {
        let Config { table, routes, .. } = config;
        let (outbox, dead) = (table.quoted(), table.companion("outbox_dead_letter"));
        let (state, owed) = (table.companion("tailpost_state"), table.companion("tailpost_owed"));
        let (id, dropped) = (table.column(Column::Id), dropped(table, routes));
        let (transaction, not_owed) = (transaction("o"), not_owed(table));
        let not_published = not_published(table, "o");
        // What the log owns, $1 being the slot's start, and a watermark $2 covers.
        let covered = format!(
            "NOT pg_visible_in_snapshot({transaction}, $1::text::pg_snapshot)
               AND pg_visible_in_snapshot({transaction}, $2::text::pg_snapshot)
               AND {}",
            owned(table, config.shard(), "o")
        );
        let unmarked = format!(
            "SELECT o.{id}, {dropped}, pg_visible_in_snapshot({transaction}, $3::text::pg_snapshot),
                 {transaction} >= pg_snapshot_xmax($3::text::pg_snapshot)
             FROM {outbox} o
             WHERE o.published_at IS NULL AND {covered} AND {not_published} AND {not_owed}"
        );
        // Looked up one by one: joined, the planner may read the whole outbox for none at all.
        let dead_there = format!(
            "SELECT o.{id} AS id FROM {outbox} o
             WHERE o.{id} = ANY (ARRAY(SELECT d.id FROM {dead} d)) AND {NOT_MARKED}
                 AND {covered} AND {not_owed}"
        );
        Self {
            mark: mark(table, config.mark.by),
            mark_lately: mark_lately(table, config.mark.by),
            mark_free: super::owed::mark_free(table, config.mark.by, false),
            trust_free: super::owed::mark_free(table, config.mark.by, true),
            // What is not visible in a snapshot is not older than the oldest transaction that it
            // saw running.
            unmarked_since: format!(
                "{unmarked} AND o.txid >= pg_snapshot_xmin($3::text::pg_snapshot) ORDER BY o.txid"
            ),
            unmarked,
            sweep_dead: format!(
                "WITH there AS MATERIALIZED ({dead_there}), free AS MATERIALIZED (
                     SELECT o.{id} AS id FROM {outbox} o
                     WHERE o.{id} = ANY (ARRAY(SELECT id FROM there)) AND {NOT_MARKED}
                     FOR UPDATE SKIP LOCKED
                 ), gone AS (
                     DELETE FROM {outbox} o WHERE o.{id} = ANY (ARRAY(SELECT id FROM free))
                     RETURNING o.{id} AS id
                 )
                 INSERT INTO {owed} (id, parked, reason)
                 SELECT DISTINCT id, true,
                     CASE WHEN id = ANY (ARRAY(SELECT id FROM free)) THEN '{UNTAKEN}' END
                 FROM there WHERE id <> ALL (ARRAY(SELECT id FROM gone)) ON CONFLICT (id) DO NOTHING"
            ),
            owe_dead: format!(
                "INSERT INTO {owed} (id, parked) SELECT DISTINCT id, true FROM ({dead_there}) there
                 ON CONFLICT (id) DO NOTHING"
            ),
            watermark: format!(
                "UPDATE {state} SET watermark_snapshot = $2::text::pg_snapshot,
                     watermark_lsn = $3, watermark_at = now(), updated_at = now(),
                     swept_snapshot = $4::text::pg_snapshot, swept_lsn = $5
                 WHERE slot = $1
                 RETURNING pg_current_xact_id()::text"
            ),
            published_to: published_to(table),
            note_stream_end: note_stream_end(table),
        }
    }

    /// What the log owns and a watermark covers and nobody marked. `is_swept` says that something was
    /// swept before.
    pub(super) fn unmarked(&self, range: SweepRange, is_swept: bool) -> &str {
        match range {
            SweepRange::SinceSwept if is_swept => &self.unmarked_since,
            SweepRange::SinceSwept | SweepRange::Whole => &self.unmarked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mark::park;
    use super::*;

    #[test]
    fn statements_are_written_down() {
        let config = crate::config::tests::config();
        let it = Statements::new(&config);
        let park = park(&config.table, tokio_postgres::types::Type::JSONB.oid(), true);
        let statements = [
            ("mark rows", &it.mark),
            ("mark rows of the last day", &it.mark_lately),
            ("mark rows that are not locked", &it.mark_free),
            ("the same, of those that the stream may lack", &it.trust_free),
            ("watermark", &it.watermark),
            ("unmarked rows", &it.unmarked),
            ("unmarked rows since the last sweep", &it.unmarked_since),
            ("sweep dead letters", &it.sweep_dead),
            ("leave dead letters' rows to be removed one by one", &it.owe_dead),
            ("what is published to", &it.published_to),
            ("note the end of the stream", &it.note_stream_end),
            ("park an event", &park),
        ];
        let about = "What a relay runs again and again on the outbox, with the default settings.";
        lab::check_statements("crates/relay/src/postgres/sql/statements.sql", about, &statements);
    }
}
