//! Traces from the row to the handler, and what the logs say of events.

mod collector;
mod exported;
mod hostile_collectors;
mod log_lines;
mod passed_on;

use support::{TestEnv, get};

/// The metrics that [`hostile_collectors`] and [`exported`] see written.
pub(crate) const WRITES: &[&str] =
    &["tailpost_otlp_spans_exported_total", "tailpost_otlp_spans_dropped_total"];

/// A `traceparent` of its own trace for each number.
fn parent(n: u32) -> String {
    format!("00-4bf92f3577b34da6a3ce929d{n:08x}-00f067aa{n:08x}-01")
}

/// An `INSERT` of an event of an aggregate of its own, with these headers.
fn insert(aggregate_id: &str, headers: &str) -> String {
    format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES (gen_random_uuid(), 'order', '{aggregate_id}', 'OrderPlaced', '{{}}', '{headers}');"
    )
}

/// The value of a counter without labels of its own.
async fn counter(address: std::net::SocketAddr, name: &str) -> u64 {
    let page = get(address, "/metrics").await.unwrap_or_default();
    let line = page.lines().find(|it| it.starts_with(&format!("{name}{{")));
    line.and_then(|it| it.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Servers with an outbox and an inbox that calls a service.
async fn set_up() -> TestEnv {
    crate::inbox::http::set_up().await
}
