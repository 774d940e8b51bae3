//! The metrics of an inbox.

use std::collections::BTreeMap;
use std::fmt;

use inbox::{Backlog, BreakerState, State, Status, Summary, Upkept};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::watch;

use super::Sink;

/// A gauge: its name, its help, and where its value is found.
type Figure<T, N> = (&'static str, &'static str, fn(&T) -> N);

/// The consumers by name.
pub(in crate::admin) type Watched = BTreeMap<String, watch::Receiver<Status>>;

/// What the servers know about a consumer, as of some seconds ago.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) backlog: Backlog,
    /// Events that the broker has not delivered yet, if it could be asked.
    pub(crate) pending: Option<u64>,
}

/// What the servers know, as of some seconds ago.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    pub(crate) consumers: BTreeMap<String, Sample>,
    pub(crate) upkept: Option<Upkept>,
}

/// Copied, so that no consumer waits for a scrape.
pub(in crate::admin) fn snapshot(consumers: &Watched) -> BTreeMap<String, Status> {
    consumers.iter().map(|(name, status)| (name.clone(), status.borrow().clone())).collect()
}

#[derive(Debug)]
pub(in crate::admin) struct StatusCollector {
    pub(in crate::admin) consumers: Watched,
    pub(in crate::admin) samples: watch::Receiver<Samples>,
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let consumers = snapshot(&self.consumers);
        let mut sink = Sink { encoder: &mut encoder };
        sink.gauges(&consumers)?;
        sink.outcomes(&consumers)?;
        let samples = self.samples.borrow().clone();
        sink.samples(&samples.consumers)?;
        sink.upkept(samples.upkept.as_ref())?;
        sink.build_info()
    }
}

impl Sink<'_, '_> {
    fn gauges(&mut self, consumers: &BTreeMap<String, Status>) -> fmt::Result {
        let figures: [Figure<Status, usize>; 6] = [
            ("inbox_active", "1 while the consumer handles events.", |it| {
                usize::from(it.state == State::Active)
            }),
            ("inbox_inflight", "Events that a handler has.", |it| it.busy),
            ("inbox_held", "Events in memory, at work or waiting for their aggregate.", |it| {
                it.held
            }),
            ("inbox_left", "Events left in the stream behind one without progress.", |it| it.left),
            ("inbox_breaker_state", "0 closed, 1 half-open, 2 open.", |it| {
                match it.handler.breaker {
                    BreakerState::Closed => 0,
                    BreakerState::HalfOpen => 1,
                    BreakerState::Open => 2,
                }
            }),
            ("inbox_lanes", "Aggregates with an event at work or waiting.", |it| it.lanes),
        ];
        for (name, help, figure) in figures {
            let values = consumers.iter().map(|(consumer, status)| {
                ([("consumer", consumer.as_str())], figure(status) as f64)
            });
            self.family(name, help, values)?;
        }
        let opened = consumers
            .iter()
            .map(|(consumer, status)| ([("consumer", consumer.as_str())], status.handler.opened));
        let help = "Times the breaker opened: the handler failed whatever the event.";
        self.counters("inbox_breaker_opened", help, opened)
    }

    fn upkept(&mut self, upkept: Option<&Upkept>) -> fmt::Result {
        let Some(upkept) = upkept else { return Ok(()) };
        self.last_success(upkept.last_success_at)?;
        let help = "What was deleted because it is kept for long enough, by whatever process.";
        let deleted = [
            ("record", upkept.records_deleted),
            ("partition", upkept.partitions_dropped),
            ("decision", upkept.decisions_deleted),
        ];
        self.counters("retention_deleted", help, deleted.map(|(it, n)| ([("what", it)], n)))
    }

    fn samples(&mut self, samples: &BTreeMap<String, Sample>) -> fmt::Result {
        let figures: [Figure<Backlog, i64>; 3] = [
            ("inbox_backlog", "Events that were begun and are not processed.", |it| {
                it.processing + it.failed
            }),
            ("inbox_failed_attempts", "Events of the backlog with more than 3 attempts.", |it| {
                it.stubborn
            }),
            ("dead_letter_count", "Dead letters that nobody has decided about.", |it| it.dead),
        ];
        for (name, help, figure) in figures {
            let values = samples.iter().map(|(consumer, sample)| {
                let labels = [("consumer", consumer.as_str()), ("source", "inbox")];
                (labels, figure(&sample.backlog) as f64)
            });
            self.family(name, help, values)?;
        }
        let pending = samples.iter().filter_map(|(consumer, sample)| {
            Some(([("consumer", consumer.as_str())], sample.pending? as f64))
        });
        self.family("jetstream_consumer_pending", "Events not delivered yet.", pending)
    }

    fn outcomes(&mut self, consumers: &BTreeMap<String, Status>) -> fmt::Result {
        let values = consumers.iter().flat_map(|(consumer, status)| {
            let Summary { processed, skipped, retried, dead, released } = status.counts;
            let counts = [
                ("processed", processed),
                ("skipped", skipped),
                ("retried", retried),
                ("dead", dead),
                ("released", released),
            ];
            counts.map(|(outcome, count)| {
                ([("consumer", consumer.as_str()), ("outcome", outcome)], count)
            })
        });
        self.counters("inbox_outcomes", "Events by what became of them.", values)
    }
}
