//! The metrics of an inbox.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use inbox::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::watch;

use super::inbox_metrics::{CONSUMER, PARTS, RETENTION, SAMPLED};
use super::inbox_sample::{Part, Samples};
use super::process_metrics::PROCESS;
use super::{Labels, Sink};

/// The consumers by name.
pub(in crate::admin) type Watched = BTreeMap<String, watch::Receiver<Status>>;

/// Copied, so that no consumer waits for a scrape.
pub(in crate::admin) fn snapshot(consumers: &Watched) -> BTreeMap<String, Status> {
    consumers.iter().map(|(name, status)| (name.clone(), status.borrow().clone())).collect()
}

#[derive(Debug)]
pub(in crate::admin) struct StatusCollector {
    pub(in crate::admin) consumers: Watched,
    pub(in crate::admin) samples: watch::Receiver<Samples>,
    /// When the process began to take samples.
    pub(in crate::admin) started: Instant,
}

fn labelled<S>(sources: BTreeMap<String, S>) -> Vec<(Labels, S)> {
    sources.into_iter().map(|(consumer, it)| (vec![("consumer", consumer)], it)).collect()
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sink = Sink { encoder: &mut encoder };
        sink.table(CONSUMER, &labelled(snapshot(&self.consumers)))?;
        let Samples { taken, consumers, upkept } = self.samples.borrow().clone();
        let parts = consumers.iter().flat_map(|(consumer, it)| {
            let labels =
                |it: &Part| vec![("consumer", consumer.clone()), ("durable", it.name.clone())];
            it.parts.iter().map(move |it| (labels(it), it.clone()))
        });
        sink.table(PARTS, &parts.collect::<Vec<_>>())?;
        sink.table(SAMPLED, &labelled(consumers))?;
        let upkept: Vec<_> = upkept.into_iter().map(|it| (Labels::new(), it)).collect();
        sink.table(RETENTION, &upkept)?;
        sink.table(PROCESS, &[(Labels::new(), taken.unwrap_or(self.started).elapsed())])
    }
}
