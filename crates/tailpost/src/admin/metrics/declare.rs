//! How a metric is declared and named: once, with what it means and how its values are read.

use prometheus_client::registry::Unit;
use servers::Latency;

/// In front of each name, and `_`.
pub(super) const PREFIX: &str = "tailpost";

/// A name without its unit, which the client puts behind it.
pub(super) fn unit_of(name: &'static str) -> (&'static str, Option<Unit>) {
    let units = [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)];
    let found = units.into_iter().find_map(|(end, it)| Some((name.strip_suffix(end)?, Some(it))));
    found.unwrap_or((name, None))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
    /// Of durations, with classic and native buckets.
    Histogram,
}

/// What the reference page says of a metric. The end of its name is its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Declared {
    /// Without `tailpost_`, and without the `_total` of a counter.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Those that tell its values apart, besides the labels of all metrics of its table.
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

/// A metric, and how it is read off a source.
pub(super) struct Metric<S: 'static> {
    pub(super) declared: Declared,
    pub(super) read: fn(&S) -> Values,
}

#[derive(Debug)]
pub(super) enum Value {
    Number(f64),
    Count(u64),
    Durations(Box<Latency>),
}

/// A value for each combination of the values of the labels. No value: there is no such thing now.
pub(super) struct Values(pub(super) Vec<(Vec<&'static str>, Value)>);

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<Latency> for Value {
    fn from(latency: Latency) -> Self {
        Self::Durations(latency.into())
    }
}

impl<T: Into<Value>> From<Option<T>> for Values {
    fn from(value: Option<T>) -> Self {
        Self(value.into_iter().map(|it| (Vec::new(), it.into())).collect())
    }
}

/// A table: of each metric its kind, name, labels and help, and behind the colon how it is read.
macro_rules! table {
    ($($kind:ident($name:literal, $([$($label:literal),+],)? $help:literal):
        |$it:pat_param| $read:expr,)*) => {
        &[$(Metric {
            declared: Declared {
                name: $name,
                kind: Kind::$kind,
                labels: &[$($($label),+)?],
                help: $help,
            },
            read: |$it| Values::from($read),
        }),*]
    };
}
pub(super) use table;

/// Values that differ in one label.
pub(super) fn by<T: Into<Value>>(values: impl IntoIterator<Item = (&'static str, T)>) -> Values {
    Values(values.into_iter().map(|(label, value)| (vec![label], value.into())).collect())
}

/// The same, behind a label that is always the same.
pub(super) fn of<T: Into<Value>>(
    first: &'static str,
    values: impl IntoIterator<Item = (&'static str, T)>,
) -> Values {
    Values(values.into_iter().map(|(label, it)| (vec![first, label], it.into())).collect())
}

/// A state that is there or not.
pub(super) fn one_if(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}
