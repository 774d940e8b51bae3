//! Collectors that take nothing: events go on, spans are dropped and counted.

use std::time::{Duration, Instant};

use lab::Port;
use support::{DEADLINE, until};

use super::collector::{Collector, Manner};
use super::{counter, insert, parent, set_up};
use crate::inbox::http::wait_processed;
use crate::inbox::service::Service;

const EVENTS: u32 = 300;

/// A stop may take so long: the flush's bound, and what a stop takes anyway.
const STOP_MAX: Duration = Duration::from_secs(20);

/// All events are handled and both processes stop in time, whatever the collector does. `counts`:
/// spans are given up before the end.
async fn survives(endpoint: &str, counts: bool) {
    let mut env = set_up().await;
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    env.set("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
    let relay = env.relay();
    relay.wait_active().await;
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let rows: String = (1..=EVENTS)
        .map(|n| insert(&format!("o-{n}"), &format!(r#"{{"traceparent": "{}"}}"#, parent(n))))
        .collect();
    env.execute(&rows).await;
    wait_processed(&env, EVENTS.into()).await;
    if counts {
        let dropped = || counter(port.addr(), "tailpost_otlp_spans_dropped_total");
        until(DEADLINE, "the spans are dropped", async || dropped().await >= EVENTS.into()).await;
    }
    let begun = Instant::now();
    for process in [&relay, &inbox] {
        process.sigterm();
    }
    for process in [&relay, &inbox] {
        assert!(process.wait_exit(DEADLINE).await.success(), "{}", process.log());
        let log = process.log();
        if counts {
            assert_eq!(log.matches("spans cannot be exported").count(), 1, "{log}");
            assert!(log.contains("telemetry.otlp_endpoint"), "{log}");
        } else {
            assert!(log.contains("stopped without exporting the last spans"), "{log}");
        }
    }
    assert!(begun.elapsed() < STOP_MAX, "{:?}", begun.elapsed());
}

// proves: G-TRACE-3
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_holds_up_neither_events_nor_the_stop() {
    let collector = Collector::start(Manner::Hangs).await;
    survives(&collector.endpoint(), false).await;
    assert!(collector.with(|it| it.requests) > 0, "the test proves nothing");
}

// proves: G-TRACE-3
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_answers_503_is_asked_again_and_then_spans_are_dropped() {
    let collector = Collector::start(Manner::Answers(503)).await;
    survives(&collector.endpoint(), true).await;
    // The inbox may have been stopped before its last attempt.
    assert!(collector.with(|it| it.requests) >= 4, "the relay asked four times");
}

// proves: G-TRACE-3
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let nobody = Port::reserve().expect("a free port");
    survives(&format!("http://{}", nobody.addr()), true).await;
}

// proves: G-TRACE-3
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_rejects_spans_is_quoted_and_not_called_slow() {
    let collector = Collector::start(Manner::Rejects("quota of team-a used up")).await;
    let mut env = set_up().await;
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    env.set("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint());
    let relay = env.relay();
    relay.wait_active().await;
    let dropped = || counter(port.addr(), "tailpost_otlp_spans_dropped_total");
    // The second request shows whether what the first one lost is told again.
    for n in 1..=2 {
        let headers = format!(r#"{{"traceparent": "{}"}}"#, parent(n));
        env.execute(&insert(&format!("o-{n}"), &headers)).await;
        until(DEADLINE, "the span is dropped", async || dropped().await >= n.into()).await;
    }
    relay.wait_log("spans are dropped: the collector rejects them").await;
    assert_eq!(counter(port.addr(), "tailpost_otlp_spans_exported_total").await, 0);
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    let log = relay.log();
    assert!(log.contains("quota of team-a used up") && !log.contains("more slowly"), "{log}");
}
