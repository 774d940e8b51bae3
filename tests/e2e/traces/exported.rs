//! Spans of relay and inbox, as a collector sees them.

use lab::Port;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use support::{DEADLINE, until};

use super::collector::{Collector, Manner, hex, texts};
use super::{counter, insert, parent, set_up};
use crate::inbox::service::Service;

/// The publishing and each attempt are children of the row's span; an attempt links to the
/// publishing, and the request names the attempt. The stored message is as the row says.
// proves: G-TRACE-2
#[tokio::test(flavor = "multi_thread")]
async fn spans_have_the_rows_span_as_their_parent_and_the_request_names_the_attempt() {
    let mut env = set_up().await;
    let collector = Collector::start(Manner::Takes).await;
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    env.set("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint());
    env.set("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret");
    env.set("OTEL_SERVICE_NAME", "shop");
    env.set("TAILPOST_METRICS__ENVIRONMENT", "staging");
    let relay = env.relay();
    relay.wait_active().await;
    let service = Service::start().await;
    service.answer(500);
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let headers = format!(r#"{{"traceparent": "{}", "tracestate": "a=1"}}"#, parent(7));
    env.execute(&insert("o-1", &headers)).await;
    let unsampled = parent(8).replace("-01", "-00");
    env.execute(&insert("o-2", &format!(r#"{{"traceparent": "{unsampled}"}}"#))).await;
    env.execute(&insert("o-3", "{}")).await;
    service.wait_calls(3).await;
    service.answer(204);
    crate::inbox::http::wait_processed(&env, 3).await;

    let published = collector.wait_spans("publish OUTBOX", 1).await;
    let [published] = &published[..] else { panic!("one is recorded: {published:?}") };
    let handled = collector.wait_spans("process OUTBOX", 2).await;
    for span in handled.iter().chain([published]) {
        eprintln!("{span:#?}");
        let (trace, of_row) = (&parent(7)[3..35], &parent(7)[36..52]);
        assert_eq!((&*hex(&span.trace_id), &*hex(&span.parent_span_id)), (trace, of_row));
        assert_eq!(span.trace_state, "a=1");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert!(span.start_time_unix_nano > 1_700_000_000_000_000_000);
    }
    assert_eq!(published.kind(), SpanKind::Producer);
    let stored = env.stored().await;
    let message = stored.iter().find(|it| it.event().aggregate_id == "o-1").expect("stored");
    assert_eq!(message.header("traceparent"), Some(&*parent(7)), "the message is the row's");
    let said = texts(&published.attributes);
    assert_eq!(said["messaging.system"], "nats");
    assert_eq!(said["messaging.destination.name"], "outbox.order.OrderPlaced");
    assert_eq!(said["messaging.message.id"], message.event().id.to_string());
    let position = message.header("Tailpost-Position").expect("a position");
    let lsn = position.split('/').nth(2).expect("an LSN").replace('-', "/");
    assert_eq!(said["tailpost.lsn"], lsn);

    let calls = service.calls();
    let calls: Vec<_> = calls.iter().filter(|it| it.header("aggregate-id") == "o-1").collect();
    assert_eq!(handled.len(), calls.len());
    for (at, call) in calls.iter().enumerate() {
        let attempt = call.header("tailpost-attempt");
        let of = |it: &&Span| texts(&it.attributes)["tailpost.attempt"] == attempt;
        let span = handled.iter().find(of).expect("a span of each attempt");
        let named = format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id));
        assert_eq!((call.header("traceparent"), call.header("tracestate")), (&*named, "a=1"));
        let said = texts(&span.attributes);
        let is_last = at + 1 == calls.len();
        assert_eq!(said["tailpost.outcome"], if is_last { "processed" } else { "retry" });
        assert_eq!(said.get("error.type").map(String::as_str), (!is_last).then_some("retry"));
        assert_eq!(said["messaging.consumer.group.name"], "billing");
        assert_eq!((&said["tailpost.lsn"], span.kind()), (&lsn, SpanKind::Consumer));
        assert_eq!(span.links[0].span_id, published.span_id);
    }
    collector.with(|it| {
        assert_eq!(it.resource["service.name"], "shop");
        assert_eq!(it.resource["deployment.environment.name"], "staging");
        assert!(it.tokens.iter().all(|it| it == "Bearer s3cret"), "{:?}", it.tokens);
        assert!(it.paths.iter().all(|it| it == "/v1/traces"), "{:?}", it.paths);
    });
    let exported = async || counter(port.addr(), "tailpost_otlp_spans_exported_total").await == 1;
    until(DEADLINE, "the span is counted", exported).await;
    assert!(!(relay.log() + &inbox.log()).contains("s3cret"));
}

/// What waits for company goes out before the process ends.
// proves: G-TRACE-2
#[tokio::test(flavor = "multi_thread")]
async fn the_last_spans_are_exported_when_the_process_is_asked_to_stop() {
    let mut env = set_up().await;
    let collector = Collector::start(Manner::Takes).await;
    // As OpenTelemetry has it: nothing is added to the one that is for traces alone.
    let endpoint = format!("{}/spans/", collector.endpoint());
    env.set("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    env.set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &endpoint);
    let relay = env.relay();
    relay.wait_active().await;
    for n in 1..=20 {
        let headers = format!(r#"{{"traceparent": "{}"}}"#, parent(n));
        env.execute(&insert(&format!("o-{n}"), &headers)).await;
    }
    env.wait_stored(20).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    collector.with(|it| {
        assert_eq!(it.spans.len(), 20);
        assert!(it.paths.iter().all(|it| it == "/spans/"), "{:?}", it.paths);
    });
}

/// The stream takes none of the copies: the replay goes on, and their spans end.
// proves: G-TRACE-2
#[tokio::test(flavor = "multi_thread")]
async fn spans_of_copies_that_the_stream_refuses_end_as_errors() {
    let mut env = set_up().await;
    let collector = Collector::start(Manner::Takes).await;
    env.set("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint());
    let relay = env.relay();
    relay.wait_active().await;
    for n in 1..=3 {
        let headers = format!(r#"{{"traceparent": "{}"}}"#, parent(n));
        env.execute(&insert(&format!("o-{n}"), &headers)).await;
    }
    env.wait_marked().await;
    collector.wait_spans("publish OUTBOX", 3).await;
    crate::poison::limit_messages(&env, 10).await;
    let replay = crate::replay::ask(&env, &["--all", "--source", "table"]).await;
    let done = crate::replay::wait_done(&env, &replay).await;
    assert_eq!((&done["published"], &done["failed"]), (&0.into(), &3.into()), "{done}");
    let published = collector.wait_spans("publish OUTBOX", 6).await;
    let said: Vec<_> = published.iter().map(|it| texts(&it.attributes)).collect();
    let copies: Vec<_> = said.iter().filter(|it| it.contains_key("tailpost.replay")).collect();
    assert_eq!(copies.len(), 3, "{said:?}");
    for copy in copies {
        assert_eq!((&*copy["tailpost.replay"], &*copy["error.type"]), (&*replay, "refused"));
    }
}
