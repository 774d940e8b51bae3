//! Metrics are made of what an engine reports, at each scrape.
//!
//! Each is declared in one of the tables, with where its value is found. A test makes the
//! reference page of them.

mod declare;
pub(super) mod inbox_collector;
mod inbox_metrics;
pub(super) mod inbox_sample;
mod process_metrics;
pub(super) mod relay_collector;
mod relay_metrics;

use std::fmt;

use axum::http::{HeaderMap, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_protobuf::{self, EncodeError};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NativeHistogram, NativeHistogramBuckets, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use servers::Latency;

use self::declare::{Declared, Kind, Metric, PREFIX, Value, unit_of};

/// What tells the sources of a table apart.
type Labels = Vec<(&'static str, String)>;

/// Encodes what `collector` finds, each with these labels.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
}

impl Metrics {
    pub(super) fn new(
        environment: &str,
        labels: impl IntoIterator<Item = (&'static str, String)>,
        collector: impl Collector,
    ) -> Self {
        let environment = ("env", environment.to_owned());
        let labels = std::iter::once(environment).chain(labels);
        let labels = labels.map(|(name, value)| (name.into(), value.into()));
        let mut registry = Registry::with_prefix_and_labels(PREFIX, labels);
        registry.register_collector(Box::new(collector));
        Self { registry }
    }

    pub(super) fn encode(&self, format: Format) -> Result<Vec<u8>, EncodeError> {
        match format {
            Format::Text => {
                let mut buffer = String::new();
                text::encode(&mut buffer, &self.registry)?;
                Ok(buffer.into_bytes())
            }
            Format::Protobuf => prometheus_protobuf::encode_to_vec(&self.registry),
        }
    }
}

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `OpenMetrics`, with classic histograms.
    Text,
    /// With native histograms beside them. Prometheus asks for it when it is to keep those.
    Protobuf,
}

impl Format {
    /// What a scraper likes best.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok());
        let ranges: Vec<&str> = accepted.flat_map(|it| it.split(',')).collect();
        let weight = |media: &str| {
            let of = ranges.iter().filter(|it| it.trim().starts_with(media));
            of.map(|it| quality(it)).fold(0.0, f64::max)
        };
        let protobuf = weight("application/vnd.google.protobuf");
        let text = weight("application/openmetrics-text").max(weight("text/plain"));
        if protobuf > text { Self::Protobuf } else { Self::Text }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }
}

/// The weight of a media range.
fn quality(range: &str) -> f64 {
    let weight = range.split(';').find_map(|it| it.trim().strip_prefix("q="));
    weight.map_or(1.0, |it| it.trim().parse().unwrap_or(0.0))
}

/// Where a collector puts what its tables declare.
struct Sink<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Sink<'_, '_> {
    /// Each metric of the table, of all sources. What no source has a value of is left out.
    fn table<S>(&mut self, table: &[Metric<S>], sources: &[(Labels, S)]) -> fmt::Result {
        table.iter().try_for_each(|metric| self.metric(metric, sources))
    }

    fn metric<S>(&mut self, metric: &Metric<S>, sources: &[(Labels, S)]) -> fmt::Result {
        let Declared { name, kind, labels, help } = metric.declared;
        let read = |(of, source): &(Labels, S)| {
            let with = |(own, value): (Vec<&str>, Value)| {
                let own = labels.iter().zip(own).map(|(name, it)| (*name, it.to_owned()));
                (of.iter().cloned().chain(own).collect(), value)
            };
            (metric.read)(source).0.into_iter().map(with).collect::<Vec<(Labels, Value)>>()
        };
        let values: Vec<_> = sources.iter().flat_map(read).collect();
        if values.is_empty() {
            return Ok(());
        }
        let kind = match kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Histogram => MetricType::Histogram,
        };
        let (name, unit) = unit_of(name);
        let mut family = self.encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in &values {
            let encoder = family.encode_family(labels)?;
            match value {
                Value::Number(number) => ConstGauge::new(*number).encode(encoder)?,
                Value::Count(count) => ConstCounter::new(*count).encode(encoder)?,
                Value::Durations(latency) => durations(latency, encoder)?,
            }
        }
        Ok(())
    }
}

fn durations(latency: &Latency, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    let bounds = Latency::BOUNDS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(latency.counts).collect();
    let native = latency.native();
    let positive = NativeHistogramBuckets { spans: &native.spans, deltas: &native.deltas };
    let native = NativeHistogram {
        schema: Latency::SCHEMA,
        zero_threshold: Latency::ZERO_THRESHOLD,
        zero_count: native.zero,
        negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
        positive,
        created: None,
    };
    let (sum, count) = (latency.sum_seconds, latency.count());
    encoder.encode_histogram_with_native::<Labels>(sum, count, &buckets, None, native)
}

#[cfg(test)]
mod tests {
    mod page;

    use super::*;

    #[test]
    fn a_scraper_gets_what_it_likes_best() {
        let format = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().expect("a header"));
            Format::accepted(&headers)
        };
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                        encoding=delimited";
        let text = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5,*/*;q=0.1";
        assert_eq!(format(&format!("{protobuf},{text}")), Format::Protobuf);
        assert_eq!(format(&format!("{text},{protobuf};q=0.6")), Format::Text);
        assert_eq!(format(text), Format::Text);
        assert_eq!(format("*/*"), Format::Text);
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Text);
    }
}
