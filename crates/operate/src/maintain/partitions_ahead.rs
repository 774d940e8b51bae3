//! Partitions made ahead, and removed behind.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use relay::{Error, RetentionConfig, describe};
use serde::Serialize;
use servers::partitions::Partition;
use tokio_postgres::error::SqlState;

use crate::sql::{Detached, PAGES_AT_ONCE, Removable, Store};
use servers::pause_after;

/// How far ahead partitions are made, beyond the time until the next pass. Inserts fail
/// when the last one is over, so it covers a holiday in which alerts are not read.
const AHEAD: Duration = Duration::from_hours(7 * 24);

/// When partitions exist for less than this there is a warning.
const SHORT: Duration = Duration::from_hours(2 * 24);

/// When others may still see the partition, or read it by its own name.
const IN_USE: &str = "transactions with older snapshots are still open in this database, or somebody \
                      reads it: see pg_stat_activity";

/// What one pass did to partitions by day, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PartitionsReport {
    /// How many were made.
    pub created: u64,
    /// How many were dropped.
    pub dropped: u64,
    /// Up to when inserts have a partition; `None` if for ever.
    pub until: Option<Timestamp>,
    /// Those that are old enough and stay, the oldest first.
    pub held: Vec<HeldPartition>,
}

/// A partition that is old enough and stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldPartition {
    /// Quoted, with its schema.
    pub partition: String,
    /// Why it stays.
    pub reason: String,
}

impl PartitionsReport {
    fn hold(&mut self, partition: &Partition, reason: impl Into<String>) {
        let partition = partition.name.clone();
        self.held.push(HeldPartition { partition, reason: reason.into() });
    }

    /// The first that stays, told.
    pub(super) fn held_by(&self) -> Option<String> {
        let HeldPartition { partition, reason } = self.held.first()?;
        let more = match self.held.len() {
            1 => String::new(),
            several => format!(" (and {} more)", several - 1),
        };
        Some(format!("partition {partition}{more}: {reason}"))
    }
}

/// Whether partitions end so soon that there is a warning.
pub(crate) fn is_short(until: Timestamp, now: Timestamp) -> bool {
    until.checked_sub(SHORT).is_ok_and(|from| from < now)
}

/// Up to when inserts have a partition; `None` if for ever.
pub(crate) fn end(covered: Timestamp) -> Option<Timestamp> {
    (covered < Timestamp::MAX).then_some(covered)
}

/// Makes partitions ahead, if the outbox has some by day: how many, and up to when there are some.
pub(crate) async fn make_ahead(
    store: &Store,
    retention: &RetentionConfig,
) -> Result<Option<(u64, Option<Timestamp>)>, Error> {
    let Some(partitions) = store.day_partitions().await? else { return Ok(None) };
    let ahead = AHEAD.saturating_add(retention.interval);
    let (made, partitions) = store.make_partitions(partitions, ahead).await?;
    Ok(Some((made, end(partitions.covered_from(store.clock().await?)))))
}

/// Up to when inserts have a partition, if the outbox has some by day; `None` within if for ever.
pub(crate) async fn covered_until(store: &Store) -> Result<Option<Option<Timestamp>>, Error> {
    let Some(partitions) = store.day_partitions().await? else { return Ok(None) };
    Ok(Some(end(partitions.covered_from(store.clock().await?))))
}

/// What a pass does about partitions.
pub(super) struct PartitionPass<'a> {
    pub(super) retention: &'a RetentionConfig,
    pub(super) store: &'a Store,
    pub(super) dry_run: bool,
}

impl PartitionPass<'_> {
    /// The first thing that a pass does: without a partition inserts fail.
    pub(super) async fn ahead(&self) -> Result<Option<PartitionsReport>, Error> {
        let made = match self.dry_run {
            true => covered_until(self.store).await?.map(|until| (0, until)),
            false => make_ahead(self.store, self.retention).await?,
        };
        let report = |(created, until)| PartitionsReport { created, until, ..Default::default() };
        Ok(made.map(report))
    }

    /// Removes the partitions of which no row is needed. Without `removable` all are kept, also
    /// those that an earlier pass was about to remove.
    pub(super) async fn behind(
        &self,
        removable: Option<&Removable>,
        report: &mut PartitionsReport,
    ) -> Result<(), Error> {
        // While one is on its way out no other can be detached.
        let mut is_blocked = false;
        if !self.dry_run {
            for (partition, state) in self.store.detached().await? {
                is_blocked |= !self.finished(&partition, state, removable, report).await?;
            }
        }
        let Some(removable) = removable else { return Ok(()) };
        let partitions = self.store.day_partitions().await?.unwrap_or_default();
        for partition in partitions.before(removable.before) {
            match self.needed(&partition, removable).await {
                Ok(None) => {}
                Ok(Some(reason)) => {
                    report.hold(&partition, reason);
                    continue;
                }
                Err(error) => {
                    hold_or_fail(&partition, error, report)?;
                    continue;
                }
            }
            if self.dry_run {
                report.dropped += 1;
                continue;
            }
            if is_blocked {
                report.hold(&partition, "another one has to be detached before");
                continue;
            }
            self.store.note_detached(&partition).await?;
            let state = match self.store.detach(&partition.name, false).await {
                Ok(()) => Detached::Alone,
                Err(error) if error.is_contention() => Detached::Pending,
                Err(error) => {
                    self.store.forget_note(&partition.name).await?;
                    hold_or_fail(&partition, error, report)?;
                    continue;
                }
            };
            is_blocked = !self.finished(&partition, state, Some(removable), report).await?;
        }
        Ok(())
    }

    /// As [`finish`](Self::finish). What one partition has is no reason to leave the others.
    async fn finished(
        &self,
        partition: &Partition,
        state: Detached,
        removable: Option<&Removable>,
        report: &mut PartitionsReport,
    ) -> Result<bool, Error> {
        match self.finish(partition, state, removable, report).await {
            Err(error) => {
                hold_or_fail(partition, error, report).map(|()| state != Detached::Pending)
            }
            done => done,
        }
    }

    /// Ends what was begun with a partition. Says whether it could.
    async fn finish(
        &self,
        partition: &Partition,
        state: Detached,
        removable: Option<&Removable>,
        report: &mut PartitionsReport,
    ) -> Result<bool, Error> {
        match state {
            Detached::Gone | Detached::NotBegun => {
                self.store.forget_note(&partition.name).await?;
                return Ok(true);
            }
            Detached::Pending => match self.store.detach(&partition.name, true).await {
                Ok(()) => {}
                Err(error) if error.is_contention() => {
                    report.hold(partition, IN_USE);
                    return Ok(false);
                }
                // The process that began it was killed before it was pending.
                Err(error) if error.code() == Some(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
                    report.hold(partition, IN_USE);
                    return Ok(true);
                }
                Err(error) => return Err(error),
            },
            Detached::Alone => {}
        }
        // Once more, under the lock: what was open may have added a row.
        let reason = match removable {
            Some(removable) => self.needed(partition, removable).await?,
            None => Some("retention.published is off".to_owned()),
        };
        let done = match &reason {
            Some(_) => self.store.attach_again(partition).await,
            None => self.store.drop_detached(&partition.name).await,
        };
        match (done, reason) {
            (Ok(()), None) => report.dropped += 1,
            (Ok(()), Some(reason)) => report.hold(partition, reason),
            // It is read by its own name, as a backup does. The next pass continues.
            (Err(error), _) if error.is_contention() => report.hold(partition, IN_USE),
            (Err(error), _) => return Err(error),
        }
        Ok(true)
    }

    /// Why a partition has to stay, if it has to.
    async fn needed(
        &self,
        partition: &Partition,
        removable: &Removable,
    ) -> Result<Option<String>, Error> {
        let Some(leaf) = self.store.leaf(&partition.name).await? else { return Ok(None) };
        let Ok(leaf) = leaf else {
            return Ok(Some("it is no plain table: drop it yourself when nothing needs it".into()));
        };
        let mut page = 0;
        while page < leaf.pages {
            let began = Instant::now();
            if let Some(reason) = self.store.needed_row(&leaf, page, removable).await? {
                return Ok(Some(reason));
            }
            page += PAGES_AT_ONCE;
            pause_after(began.elapsed()).await;
        }
        Ok(None)
    }
}

/// The server refuses something of this partition; without the server nothing goes on.
fn hold_or_fail(
    partition: &Partition,
    error: Error,
    report: &mut PartitionsReport,
) -> Result<(), Error> {
    if error.code().is_none() {
        return Err(error);
    }
    report.hold(partition, describe(&error));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_stays_is_told_and_how_many_more() {
        let mut report = PartitionsReport::default();
        assert_eq!(report.held_by(), None);
        let partition = Partition { name: "public.o_p1".into(), since: None, until: None };
        report.hold(&partition, "row 7 is a dead letter");
        assert_eq!(
            report.held_by().as_deref(),
            Some("partition public.o_p1: row 7 is a dead letter")
        );
        report.hold(&partition, IN_USE);
        assert!(report.held_by().is_some_and(|it| it.contains("(and 1 more)")));
    }
}
