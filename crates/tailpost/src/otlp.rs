//! Spans on their way to a collector, by OTLP over HTTP.
//!
//! ```text
//!   relay, inbox ──▶ queue ──▶ a thread of its own ──▶ POST /v1/traces
//! ```
//!
//! No event waits for a collector. Spans that do not fit into the queue, or that the collector does
//! not take, are dropped and counted.

#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod proto;

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use outbox::spans::SpanSink;

use crate::config::Settings;

/// Spans that collectors took since the process started.
static EXPORTED: AtomicU64 = AtomicU64::new(0);
/// Spans that were made and never exported.
static DROPPED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn exported() -> u64 {
    EXPORTED.load(Ordering::Relaxed)
}

pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

fn warn_of_unusable(settings: &Settings) {
    if let Some(variable) = settings.telemetry.unusable {
        tracing::warn!(
            variable,
            hint = "set telemetry.otlp_endpoint and telemetry.otlp_headers: \
                    docs/operations.md#traces-and-log-lines",
            "a variable of OpenTelemetry is passed over: its value cannot be used"
        );
    }
}

/// What is done with spans: nothing, unless a collector is configured.
#[derive(Default)]
pub(crate) struct Traces {
    #[cfg(feature = "otlp")]
    exporter: Option<exporter::Exporter>,
}

impl Traces {
    /// Begins to export, if there is where to.
    ///
    /// # Errors
    ///
    /// If there is no way to export as it is configured.
    pub(crate) fn start(settings: &Settings) -> Result<Self> {
        warn_of_unusable(settings);
        let Some(endpoint) = &settings.telemetry.otlp_endpoint else { return Ok(Self::default()) };
        #[cfg(feature = "otlp")]
        return Ok(Self { exporter: Some(exporter::Exporter::start(&endpoint.0, settings)?) });
        #[cfg(not(feature = "otlp"))]
        tracing::warn!(
            endpoint = endpoint.0,
            hint = "build it with the feature `otlp`, or remove the setting",
            "telemetry.otlp_endpoint does nothing: this binary is built without OTLP"
        );
        #[cfg(not(feature = "otlp"))]
        Ok(Self::default())
    }

    /// Where spans go, if a collector is configured.
    pub(crate) fn sink(&self) -> Option<SpanSink> {
        #[cfg(feature = "otlp")]
        return self.exporter.as_ref().map(exporter::Exporter::sink);
        #[cfg(not(feature = "otlp"))]
        None
    }

    /// Exports what is left, for a few seconds at most.
    #[cfg_attr(not(feature = "otlp"), allow(clippy::unused_async, reason = "as with the feature"))]
    pub(crate) async fn stop(self) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
    }
}
