//! Deletes what is written down of replays that ended long ago.

use std::time::Duration;

use relay::Error;

use super::Store;
use super::retain::{DOING, LOOKING};
use crate::sql::AT_ONCE;

impl Store {
    /// Replays that may go. The newest that each slot's relay began stays: it says that the stream may
    /// have copies.
    fn old_replays(&self) -> String {
        let replays = self.table.companion("tailpost_replays");
        format!(
            "r.ended_at < clock_timestamp() - make_interval(secs => $1)
             AND r.id IS DISTINCT FROM (
                 SELECT n.id FROM {replays} n WHERE n.slot = r.slot AND n.started_at IS NOT NULL
                 ORDER BY n.started_at DESC, n.id LIMIT 1)"
        )
    }

    /// Deletes at most [`AT_ONCE`] replays that ended `keep` ago, or at most so many lines of their
    /// lists. Says how many replays, and whether there may be more.
    pub(crate) async fn delete_replays(&self, keep: Duration) -> Result<(u64, bool), Error> {
        let replays = self.table.companion("tailpost_replays");
        let listed = self.table.companion("tailpost_replay_events");
        let old = self.old_replays();
        let lines = format!(
            "DELETE FROM {listed} WHERE (replay, place) IN (
                 SELECT l.replay, l.place FROM {replays} r JOIN {listed} l ON l.replay = r.id
                 WHERE {old} LIMIT {AT_ONCE})"
        );
        let keep = keep.as_secs_f64();
        if self.execute(DOING, &lines, &[&keep]).await? > 0 {
            return Ok((0, true));
        }
        let sql = format!(
            "DELETE FROM {replays} WHERE id IN (
                 SELECT r.id FROM {replays} r WHERE {old} LIMIT {AT_ONCE} FOR UPDATE SKIP LOCKED)"
        );
        let some = self.execute(DOING, &sql, &[&keep]).await?;
        Ok((some, some == AT_ONCE))
    }

    /// How many [`delete_replays`](Self::delete_replays) would delete.
    pub(crate) async fn count_replays(&self, keep: Duration) -> Result<u64, Error> {
        let replays = self.table.companion("tailpost_replays");
        let sql = format!("SELECT count(*) FROM {replays} r WHERE {}", self.old_replays());
        let row = self.query_one(LOOKING, &sql, &[&keep.as_secs_f64()]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }
}
