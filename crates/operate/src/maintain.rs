//! Deletes what is not needed any more, in small steps.

mod partitions_ahead;

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio_postgres::error::SqlState;

use self::partitions_ahead::PartitionPass;
pub use self::partitions_ahead::{HeldPartition, PartitionsReport};
pub(crate) use self::partitions_ahead::{covered_until, end, is_short, make_ahead};
use crate::sql::Store;
use crate::sql::{AT_ONCE, Beside, Gate, PAGES_AT_ONCE, Removable};
use relay::Config;
use relay::Error;
use relay::describe;
use servers::pause_after;

const NAME: &str = "tailpost maintain";

/// How far a pass has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct MaintainProgress {
    /// Pages of the outbox, as it was when the pass began.
    pub pages: u64,
    /// Those that were read.
    pub pages_read: u64,
    /// Rows of the outbox that were deleted, or would be.
    pub rows: u64,
}

/// What one pass did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MaintainReport {
    /// The table, as `schema.name`.
    pub table: String,
    /// Nothing was deleted: these are counts.
    pub dry_run: bool,
    /// Rows of the outbox; `None` if they are kept forever.
    pub published: Option<u64>,
    /// Discarded dead letters; `None` if they are kept forever.
    pub dead_letters: Option<u64>,
    /// Entries of the audit of dead letters; `None` if they are kept forever.
    pub audit: Option<u64>,
    /// Replays that ended; `None` if they are kept forever.
    pub replays: Option<u64>,
    /// Partitions by day; `None` if the table has none.
    pub partitions: Option<PartitionsReport>,
    /// Why rows are kept that are old enough, if it is known that there may be some.
    pub held_by: Option<String>,
}

/// Deletes what [`Config::retention`] does not keep, once; with `dry_run` only counts it. Never a
/// row that is not published, a dead letter that is not discarded, or what a slot may bring again.
///
/// What it did is in `tailpost_retention`, also if it fails.
///
/// # Errors
///
/// [`Error::Conflict`] if another process is at it. If PostgreSQL refuses or cannot be reached;
/// what was deleted until then is gone.
///
/// # Cancel safety
///
/// Dropping the future ends the pass after the statement that runs.
pub async fn maintain(
    config: &Config,
    dry_run: bool,
    progress: &watch::Sender<MaintainProgress>,
) -> Result<MaintainReport, Error> {
    let store = Store::brief(config, NAME).await?;
    match pass(config, &store, dry_run, progress).await? {
        Some(report) => Ok(report),
        None => Err(Error::Conflict(format!(
            "another process deletes old rows of {}: wait until it is done, or look for `{NAME}` in \
             pg_stat_activity",
            config.table
        ))),
    }
}

/// As [`maintain`]; `None` if another process is at it.
pub(crate) async fn pass(
    config: &Config,
    store: &Store,
    dry_run: bool,
    progress: &watch::Sender<MaintainProgress>,
) -> Result<Option<MaintainReport>, Error> {
    store.be_modest().await?;
    store.check_retention().await?;
    if !dry_run && !store.try_lock_maintenance().await? {
        return Ok(None);
    }
    let mut report =
        MaintainReport { table: config.table.to_string(), dry_run, ..Default::default() };
    let run = Pass { config, store, dry_run, progress };
    let ended = Box::pin(run.all(&mut report)).await;
    if !dry_run {
        match &ended {
            Ok(()) => {
                let deleted = [report.published, report.dead_letters, report.audit];
                store.note_success(deleted, report.held_by.as_deref()).await?;
            }
            Err(error) => {
                let failure = describe(error);
                // Where even that fails, the error says more.
                let _ = store.note_maintenance_failure(&failure).await;
            }
        }
    }
    ended.map(|()| Some(report))
}

struct Pass<'a> {
    config: &'a Config,
    store: &'a Store,
    dry_run: bool,
    progress: &'a watch::Sender<MaintainProgress>,
}

impl Pass<'_> {
    async fn all(&self, report: &mut MaintainReport) -> Result<(), Error> {
        let Self { config, store, dry_run, .. } = *self;
        let partitions = PartitionPass { retention: &config.retention, store, dry_run };
        report.partitions = partitions.ahead().await?;
        let gates = self.store.gates().await?;
        report.held_by = match self.store.replay_that_holds().await? {
            Some(replay) => Some(format!(
                "replay {replay} reads the table: rows are kept until it has ended. See `tailpost \
                 replays show {replay}`"
            )),
            None => held_by(&gates),
        };
        let keep = self.config.retention;
        if let Some(keep) = keep.dead_letters {
            let letters = report.dead_letters.insert(0);
            self.beside(Beside::Letters, keep, &gates, letters).await?;
        }
        if let Some(keep) = keep.audit {
            let entries = report.audit.insert(0);
            self.beside(Beside::Audit, keep, &gates, entries).await?;
        }
        if let Some(keep) = keep.replays {
            let replays = report.replays.insert(0);
            self.replays(keep, replays).await?;
        }
        // Last: a row that cannot be deleted keeps nothing else.
        let removable = match keep.published {
            Some(keep) => Some(self.removable(keep, &gates).await?),
            None => None,
        };
        if let Some(told) = &mut report.partitions {
            // Rows go with their partition, and not before.
            report.published = removable.is_some().then_some(0);
            let done = partitions.behind(removable.as_ref(), told).await;
            report.held_by = report.held_by.take().or_else(|| told.held_by());
            return done;
        }
        if let Some(removable) = removable {
            let rows = report.published.insert(0);
            self.rows(&removable, rows).await?;
        }
        Ok(())
    }

    /// Deletes until nothing is left.
    async fn beside(
        &self,
        what: Beside,
        keep: Duration,
        gates: &[Gate],
        count: &mut u64,
    ) -> Result<(), Error> {
        loop {
            let began = Instant::now();
            let some = match (what, self.dry_run) {
                (_, true) => self.store.count_old(what, keep, gates).await?,
                (Beside::Letters, false) => self.store.delete_letters(keep, gates).await?,
                (Beside::Audit, false) => self.store.delete_audit(keep, gates).await?,
            };
            *count += some;
            if self.dry_run || some < AT_ONCE {
                return Ok(());
            }
            pause_after(began.elapsed()).await;
        }
    }

    async fn replays(&self, keep: Duration, count: &mut u64) -> Result<(), Error> {
        if self.dry_run {
            *count = self.store.count_replays(keep).await?;
            return Ok(());
        }
        loop {
            let began = Instant::now();
            let (some, is_more) = self.store.delete_replays(keep).await?;
            *count += some;
            if !is_more {
                return Ok(());
            }
            pause_after(began.elapsed()).await;
        }
    }

    /// Which rows may go; and writes down that some may be gone.
    async fn removable(&self, keep: Duration, gates: &[Gate]) -> Result<Removable, Error> {
        let slots: Vec<String> = self.config.each_shard().into_iter().map(|it| it.slot).collect();
        if !self.dry_run {
            self.store.note_published(keep).await?;
        }
        let removable = self.store.removable(keep, gates, &slots).await?;
        if !self.dry_run {
            self.store.announce_deletion(removable.before).await?;
        }
        Ok(removable)
    }

    /// Goes through the table once, from its first page to its last.
    async fn rows(&self, removable: &Removable, rows: &mut u64) -> Result<(), Error> {
        let leaves = self.store.leaves().await?;
        let pages: i64 = leaves.iter().map(|it| it.pages).sum();
        self.progress.send_modify(|it| it.pages = pages.cast_unsigned());
        let (mut at_once, mut refused) = (AT_ONCE, None);
        for leaf in leaves {
            let mut page = 0;
            while page < leaf.pages {
                let began = Instant::now();
                let changed = match self.dry_run {
                    true => self.store.count_rows(&leaf, page, removable).await,
                    false => self.store.delete_rows(&leaf, page, removable, at_once).await,
                };
                let some = match changed {
                    // Large rows take long.
                    Err(error) if error.is_cancelled() && at_once > 1 => {
                        at_once = (at_once / 8).max(1);
                        continue;
                    }
                    // The partition was dropped meanwhile.
                    Err(error) if error.code() == Some(SqlState::UNDEFINED_TABLE) => break,
                    // A trigger, or a foreign key: the others can go.
                    Err(error) if error.is_about_a_row() => {
                        refused = refused.or(Some(error));
                        page += PAGES_AT_ONCE;
                        continue;
                    }
                    changed => changed?,
                };
                *rows += some;
                let is_done = self.dry_run || some < at_once;
                if is_done {
                    page += PAGES_AT_ONCE;
                }
                self.progress.send_modify(|it| {
                    it.rows += some;
                    if is_done {
                        it.pages_read += PAGES_AT_ONCE.cast_unsigned();
                    }
                });
                pause_after(began.elapsed()).await;
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

/// A slot without a reader may bring again what was published since its last watermark.
fn held_by(gates: &[Gate]) -> Option<String> {
    let idle: Vec<&str> = gates.iter().filter(|it| !it.is_read).map(|it| &*it.slot).collect();
    let slots = match &*idle {
        [] => return None,
        [one] => format!("slot {one}"),
        several => format!("slots {}", several.join(", ")),
    };
    Some(format!(
        "nobody reads {slots}: what was published since its last watermark is kept. Run the relay, \
         or drop the slot with `tailpost slot drop`, if it is not needed"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_nobody_reads_is_named() {
        let gate = |slot: &str, is_read| Gate { slot: slot.into(), is_read, watermark: None };
        assert_eq!(held_by(&[]), None);
        assert_eq!(held_by(&[gate("a", true)]), None);
        let told = held_by(&[gate("a", true), gate("b", false), gate("c", false)]);
        assert!(told.is_some_and(|it| it.starts_with("nobody reads slots b, c:")));
    }
}
