//! Deletes what is not needed any more, beside a relay, every `retention.interval`.

use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use relay::{Config, Error, describe};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::sql::Store;
use crate::{MaintainProgress, MaintainReport, covered_until, is_short, make_ahead, pass};

/// The first pass begins so long after the process at the latest: what matters more comes first.
const FIRST_AFTER: Duration = Duration::from_secs(30);

/// After a failure the next attempt comes within this.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long the last success may be ago, in intervals, before it counts as overdue.
const OVERDUE_AFTER: u32 = 3;

/// What has become of retention, as one process knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RetentionStatus {
    /// When a pass of any process came to its end; `None` if none did, or it is not known yet.
    pub last_success_at: Option<Timestamp>,
    /// The last success is longer ago than three intervals, or passes of this process fail.
    pub is_overdue: bool,
    /// Why the latest attempt of this process failed, if it did.
    pub failure: Option<String>,
    /// Attempts of this process that failed.
    pub failures_total: u64,
    /// Rows of the outbox that this process deleted.
    pub published_deleted_total: u64,
    /// Dead letters that it deleted.
    pub dead_letters_deleted_total: u64,
    /// Entries of the audit that it deleted.
    pub audit_deleted_total: u64,
    /// Partitions that it dropped.
    pub partitions_dropped_total: u64,
    /// Up to when inserts have a partition, as of the last look; `None` if for ever.
    pub partitions_until: Option<Timestamp>,
}

impl RetentionStatus {
    /// Whether inserts have a partition for so short a time that there is a warning.
    pub fn is_short_of_partitions(&self) -> bool {
        self.partitions_until.is_some_and(|until| is_short(until, Timestamp::now()))
    }

    fn add(&mut self, report: &MaintainReport) {
        self.published_deleted_total += report.published.unwrap_or(0);
        self.dead_letters_deleted_total += report.dead_letters.unwrap_or(0);
        self.audit_deleted_total += report.audit.unwrap_or(0);
        self.partitions_dropped_total += report.partitions.as_ref().map_or(0, |it| it.dropped);
    }
}

/// Deletes what [`Config::retention`] does not keep, every
/// [`interval`](relay::RetentionConfig::interval), for as long as the future is polled. Of several
/// processes one does it. `config` is that of all shards.
///
/// A failure is logged when it begins and when it has passed, and tried again within a minute. It
/// is no reason to end anything.
///
/// # Cancel safety
///
/// Dropping the future ends it after the statement that runs.
pub async fn keep(config: &Config, status: &watch::Sender<RetentionStatus>) -> Infallible {
    let interval = config.retention.interval;
    sleep(interval.min(FIRST_AFTER)).await;
    loop {
        let looked = look(config, status).await;
        let pause = match looked {
            Ok(()) => {
                let mended = status.borrow().failure.is_some();
                if mended {
                    info!("old rows can be deleted again");
                }
                status.send_modify(|it| it.failure = None);
                interval
            }
            Err(error) => {
                let why = describe(&error);
                if status.borrow().failure.is_none() {
                    warn!(error = why, hint = error.hint(), "could not delete old rows");
                } else {
                    debug!(error = why, "could not delete old rows");
                }
                status.send_modify(|it| {
                    it.failure = Some(why);
                    it.failures_total += 1;
                });
                interval.min(AGAIN_AFTER)
            }
        };
        status.send_modify(|it| it.is_overdue = is_overdue(it, interval));
        sleep(pause).await;
    }
}

/// Whether it is overdue: passes fail, and none succeeded for long.
fn is_overdue(status: &RetentionStatus, interval: Duration) -> bool {
    let age = |at: Timestamp| Timestamp::now().duration_since(at).unsigned_abs();
    let is_old = |at| age(at) > interval.saturating_mul(OVERDUE_AFTER);
    status.last_success_at.map_or(status.failure.is_some(), is_old)
}

/// One pass, if none was made for an interval.
async fn look(config: &Config, status: &watch::Sender<RetentionStatus>) -> Result<(), Error> {
    // A connection that is idle for an hour may have been cut by a firewall.
    let store = Store::brief(config, "tailpost maintain").await?;
    store.be_modest().await?;
    // Made first: other processes may take long to delete.
    let made = make_ahead(&store, &config.retention).await;
    if made.is_err()
        && let Ok(Some(until)) = covered_until(&store).await
    {
        status.send_modify(|it| it.partitions_until = until);
    }
    if let Some((made, until)) = made? {
        if made > 0 {
            info!(made, until = until.map(tracing::field::display), "made partitions ahead");
        }
        status.send_modify(|it| it.partitions_until = until);
    }
    let row = store.retention_row().await?.unwrap_or_default();
    status.send_modify(|it| it.last_success_at = row.last_success_at);
    // Another process's interval began a moment before ours.
    let is_fresh = |age: f64| age < config.retention.interval.as_secs_f64() * 0.9;
    if row.failure.is_none() && row.last_success_seconds.is_some_and(is_fresh) {
        return Ok(());
    }
    let progress = watch::channel(MaintainProgress::default()).0;
    let Some(report) = Box::pin(pass(config, &store, false, &progress)).await? else {
        debug!("another process deletes old rows");
        return Ok(());
    };
    let MaintainReport { published, dead_letters, audit, replays, held_by, partitions, .. } =
        &report;
    let dropped = partitions.as_ref().map(|it| it.dropped);
    info!(published, dead_letters, audit, replays, dropped, held_by, "deleted old rows");
    let row = store.retention_row().await?.unwrap_or_default();
    status.send_modify(|it| {
        it.last_success_at = row.last_success_at;
        it.add(&report);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_overdue_when_nothing_succeeded_for_three_intervals() {
        let hour = Duration::from_hours(1);
        let ago = |hours: u64| {
            let last_success_at = Some(Timestamp::now() - Duration::from_hours(hours));
            RetentionStatus { last_success_at, ..RetentionStatus::default() }
        };
        assert!(!is_overdue(&ago(2), hour) && is_overdue(&ago(4), hour));
        let nothing = RetentionStatus::default();
        assert!(!is_overdue(&nothing, hour), "it may not have begun");
        assert!(is_overdue(&RetentionStatus { failure: Some("x".into()), ..nothing }, hour));
    }
}
