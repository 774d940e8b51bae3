//! What a relay reports, as metrics. Where there are several shards, each figure has their labels.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use operate::{RetentionStatus, RewindStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use relay::{Config, Sample, Status};
use tokio::sync::watch;

use super::process_metrics::PROCESS;
use super::relay_metrics::{
    LETTERS, LIMITS, Letters, PUBLISHING, REPLICATION, RETENTION, REWIND, SAMPLED, SLOTS,
};
use super::{Labels, Sink};

/// How many dead letters there are, and the age of the oldest in seconds; `None` if unknown.
pub(in crate::admin) type Counted = Arc<Mutex<Option<(u64, f64)>>>;

/// What one shard, or the only relay, says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    /// Its number, if there are several.
    pub(in crate::admin) shard: Option<u32>,
    pub(in crate::admin) stream: String,
    pub(in crate::admin) status: watch::Receiver<Status>,
    /// Of its rewind slot; `None` if there is to be none.
    pub(in crate::admin) rewind: watch::Receiver<Option<RewindStatus>>,
}

impl Watched {
    pub(crate) fn new(
        config: &Config,
        status: watch::Receiver<Status>,
        rewind: watch::Receiver<Option<RewindStatus>>,
    ) -> Self {
        let shard = config.shard().map(|it| it.number);
        Self { shard, stream: config.stream.name.clone(), status, rewind }
    }

    /// What tells the shards' metrics apart.
    fn labels(&self) -> Labels {
        let stream = ("stream", self.stream.clone());
        self.shard.map(|it| vec![("shard", it.to_string()), stream]).unwrap_or_default()
    }
}

#[derive(Debug)]
pub(in crate::admin) struct StatusCollector {
    pub(in crate::admin) watched: Vec<Watched>,
    pub(in crate::admin) in_flight_limit: usize,
    pub(in crate::admin) dead_letters: Counted,
    pub(in crate::admin) retention: watch::Receiver<RetentionStatus>,
    pub(in crate::admin) sample: watch::Receiver<Option<Sample>>,
    /// When the process began to take samples.
    pub(in crate::admin) started: Instant,
}

/// The only source of a table, if there is one.
fn only<S>(source: Option<S>) -> Vec<(Labels, S)> {
    source.into_iter().map(|it| (Labels::new(), it)).collect()
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sink = Sink { encoder: &mut encoder };
        // Copied, so that the relay does not wait for the scrape.
        let status = |it: &Watched| (it.labels(), it.status.borrow().clone());
        let shards: Vec<_> = self.watched.iter().map(status).collect();
        sink.table(REPLICATION, &shards)?;
        sink.table(PUBLISHING, &shards)?;
        let rewind = |it: &Watched| Some((it.labels(), it.rewind.borrow().clone()?));
        sink.table(REWIND, &self.watched.iter().filter_map(rewind).collect::<Vec<_>>())?;
        let sample = self.sample.borrow().clone();
        let slots = sample.as_ref().map(|it| &it.slots);
        let slot = |it: &Watched| Some((it.labels(), slots?.get(&it.shard.unwrap_or(0))?.clone()));
        sink.table(SLOTS, &self.watched.iter().filter_map(slot).collect::<Vec<_>>())?;
        let taken = sample.as_ref().and_then(|it| it.taken).unwrap_or(self.started);
        sink.table(SAMPLED, &only(sample.filter(|it| it.taken.is_some())))?;
        let counted = *self.dead_letters.lock().unwrap_or_else(PoisonError::into_inner);
        sink.table(LETTERS, &only(counted.map(|(count, oldest)| Letters(count, oldest))))?;
        sink.table(RETENTION, &only(Some(self.retention.borrow().clone())))?;
        sink.table(LIMITS, &only(Some(self.in_flight_limit)))?;
        sink.table(PROCESS, &only(Some(taken.elapsed())))
    }
}
