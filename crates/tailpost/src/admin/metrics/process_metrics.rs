//! What each process exports, of a relay or of an inbox.

use std::time::Duration;

use super::declare::{Declared, Kind, Metric, Values, by, table};
use crate::{otlp, telemetry};

/// Read off the age of the samples.
pub(super) static PROCESS: &[Metric<Duration>] = table![
    Gauge("sample_age_seconds",
        "Time since backlogs were last counted, or since the process started."):
        |it| Some(it.as_secs_f64()),
    Gauge("build_info", ["version"], "1 for the version that runs."):
        |_| by([(env!("CARGO_PKG_VERSION"), 1.0)]),
    Counter("otlp_spans_exported", "Spans that the collector accepted."):
        |_| Some(otlp::exported()),
    Counter("otlp_spans_dropped",
        "Dropped spans: the collector was away, too slow, or refused them."):
        |_| Some(otlp::dropped()),
    Counter("log_lines_dropped", "Dropped log lines: stderr was not read."):
        |_| Some(telemetry::lines::dropped()),
];
