//! How a metric is declared: once, with what it means and where its value is found.

use relay::Latency;

/// What a number counts or measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    /// Seconds since 1970.
    Timestamp,
    Bytes,
    /// How many there are of what the name says.
    Number,
    /// 0 or 1, or a state.
    State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// What the reference page says of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Declared {
    /// Without `tailpost_`, and without the `_total` of a counter.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Unit,
    /// Those that tell its values apart, besides the labels of all metrics of its table.
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

/// A metric, and how it is read off a source.
pub(super) struct Metric<S: 'static> {
    pub(super) declared: Declared,
    pub(super) read: Read<S>,
}

/// A value for each combination of the values of labels. No value: there is no such thing now.
pub(super) type Values<T> = Vec<(Vec<&'static str>, T)>;

pub(super) enum Read<S> {
    Gauge(fn(&S) -> Option<f64>),
    Gauges(fn(&S) -> Values<f64>),
    Counter(fn(&S) -> u64),
    Counters(fn(&S) -> Values<u64>),
    Histogram(fn(&S) -> &Latency),
}

/// A table: of each metric what is declared, and behind the colon how it is read.
macro_rules! table {
    ($($declare:ident($($said:expr),*): $read:expr,)*) => { &[$($declare($($said,)* $read)),*] };
}
pub(super) use table;

const fn declare<S>(
    name: &'static str,
    (kind, unit): (Kind, Unit),
    labels: &'static [&'static str],
    help: &'static str,
    read: Read<S>,
) -> Metric<S> {
    Metric { declared: Declared { name, kind, unit, labels, help }, read }
}

pub(super) const fn gauge<S>(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    read: fn(&S) -> Option<f64>,
) -> Metric<S> {
    declare(name, (Kind::Gauge, unit), &[], help, Read::Gauge(read))
}

pub(super) const fn gauges<S>(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&S) -> Values<f64>,
) -> Metric<S> {
    declare(name, (Kind::Gauge, unit), labels, help, Read::Gauges(read))
}

pub(super) const fn counter<S>(
    name: &'static str,
    help: &'static str,
    read: fn(&S) -> u64,
) -> Metric<S> {
    declare(name, (Kind::Counter, Unit::Number), &[], help, Read::Counter(read))
}

pub(super) const fn counters<S>(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&S) -> Values<u64>,
) -> Metric<S> {
    declare(name, (Kind::Counter, Unit::Number), labels, help, Read::Counters(read))
}

/// Of durations, with classic and native buckets.
pub(super) const fn histogram<S>(
    name: &'static str,
    help: &'static str,
    read: fn(&S) -> &Latency,
) -> Metric<S> {
    declare(name, (Kind::Histogram, Unit::Seconds), &[], help, Read::Histogram(read))
}

/// Values that differ in one label.
pub(super) fn by<T>(values: impl IntoIterator<Item = (&'static str, T)>) -> Values<T> {
    values.into_iter().map(|(label, value)| (vec![label], value)).collect()
}

/// The same, behind a label that is always the same.
pub(super) fn of<T>(
    first: &'static str,
    values: impl IntoIterator<Item = (&'static str, T)>,
) -> Values<T> {
    values.into_iter().map(|(label, value)| (vec![first, label], value)).collect()
}

/// A state that is there or not.
pub(super) fn one_if(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

// What relays and inboxes both have, from sources of their own.

const OLDEST: &str = "Age of the oldest dead letter without a decision, or 0.";

pub(super) const fn dead_letter_count<S>(read: fn(&S) -> Values<f64>) -> Metric<S> {
    let help = "Dead letters without a decision.";
    gauges("dead_letter_count", Unit::Number, &["source"], help, read)
}

pub(super) const fn dead_letter_oldest<S>(read: fn(&S) -> Values<f64>) -> Metric<S> {
    gauges("dead_letter_oldest_age_seconds", Unit::Seconds, &["source"], OLDEST, read)
}

pub(super) const fn dead_letters<S>(read: fn(&S) -> Values<u64>) -> Metric<S> {
    let help = "Events that this process made dead letters.";
    counters("dead_letters", &["source", "reason"], help, read)
}

pub(super) const fn retention_last_success<S>(read: fn(&S) -> Option<f64>) -> Metric<S> {
    let help = "When old rows were last deleted, by any process.";
    gauge("retention_last_success_timestamp_seconds", Unit::Timestamp, help, read)
}

pub(super) const fn retention_deleted<S>(read: fn(&S) -> Values<u64>) -> Metric<S> {
    let help = "Old rows that were deleted, by this relay or by any inbox.";
    counters("retention_deleted", &["what"], help, read)
}

pub(super) const fn retention_overdue<S>(read: fn(&S) -> Option<f64>) -> Metric<S> {
    let help = "1 while deleting old rows fails, or has not succeeded for three intervals.";
    gauge("retention_overdue", Unit::State, help, read)
}

pub(super) const fn sample_age<S>(read: fn(&S) -> Option<f64>) -> Metric<S> {
    gauge(
        "sample_age_seconds",
        Unit::Seconds,
        "Time since backlogs were last counted, or since the process started.",
        read,
    )
}

pub(super) const fn build_info<S>(read: fn(&S) -> Values<f64>) -> Metric<S> {
    gauges("build_info", Unit::State, &["version"], "1 for the version that runs.", read)
}

/// Spans that a collector took.
pub(super) const fn spans_exported<S>(read: fn(&S) -> u64) -> Metric<S> {
    counter("otlp_spans_exported", "Spans that the collector accepted.", read)
}

/// Spans that nobody took.
pub(super) const fn spans_dropped<S>(read: fn(&S) -> u64) -> Metric<S> {
    let help = "Dropped spans: the collector was away, too slow, or refused them.";
    counter("otlp_spans_dropped", help, read)
}

/// The value of [`build_info`].
pub(super) fn this_build() -> Values<f64> {
    by([(env!("CARGO_PKG_VERSION"), 1.0)])
}
