//! Spans on their way to a collector, by OTLP over HTTP.
//!
//! ```text
//!   relay, inbox ──▶ queue ──▶ a thread of its own ──▶ POST /v1/traces
//! ```
//!
//! Nobody waits for a collector: what does not fit into the queue, or what a collector does not take,
//! is dropped and counted.

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
    #[cfg(feature = "otlp")]
    pub(crate) fn start(settings: &Settings) -> Result<Self> {
        warn_of_unusable(settings);
        let Some(endpoint) = &settings.telemetry.otlp_endpoint else { return Ok(Self::default()) };
        let exporter = exporter::Exporter::start(&endpoint.0, settings)?;
        Ok(Self { exporter: Some(exporter) })
    }

    #[cfg(not(feature = "otlp"))]
    pub(crate) fn start(settings: &Settings) -> Result<Self> {
        warn_of_unusable(settings);
        if settings.telemetry.otlp_endpoint.is_some() {
            tracing::warn!(
                hint = "build it with the feature `otlp`, or remove the setting",
                "telemetry.otlp_endpoint does nothing: this binary is built without OTLP"
            );
        }
        Ok(Self::default())
    }

    /// Who takes spans; nobody, if they go nowhere.
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
