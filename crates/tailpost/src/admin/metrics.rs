//! Metrics are made of what an engine reports, at each scrape.

pub(super) mod inbox_metrics;
pub(super) mod relay_metrics;

use std::fmt;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The exposition format that `encode` writes.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes what `collector` finds, each with these labels.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
}

impl Metrics {
    pub(super) fn new(
        labels: impl IntoIterator<Item = (&'static str, String)>,
        collector: impl Collector,
    ) -> Self {
        let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into()));
        let mut registry = Registry::with_prefix_and_labels("tailpost", labels);
        registry.register_collector(Box::new(collector));
        Self { registry }
    }

    pub(super) fn encode(&self) -> Result<String, fmt::Error> {
        let mut buffer = String::new();
        text::encode(&mut buffer, &self.registry)?;
        Ok(buffer)
    }
}

/// Where a collector puts its figures.
pub(super) struct Sink<'a, 'e> {
    pub(super) encoder: &'a mut DescriptorEncoder<'e>,
}

impl Sink<'_, '_> {
    /// What is the same for every engine.
    pub(super) fn build_info(&mut self) -> fmt::Result {
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        self.family("build_info", "The version that runs.", [(labels, 1.0)])
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    /// When old rows were last deleted, by whatever process; nothing if they never were.
    pub(super) fn last_success(&mut self, at: Option<Timestamp>) -> fmt::Result {
        let Some(at) = at else { return Ok(()) };
        let help = "When the last pass that deletes old rows came to its end.";
        let seconds = at.as_microsecond() as f64 / 1e6;
        self.gauge("retention_last_success_timestamp_seconds", help, seconds)
    }

    /// Gauges that differ in their labels.
    pub(super) fn family<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Counters that differ in their labels.
    pub(super) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
