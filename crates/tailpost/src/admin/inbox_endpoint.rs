//! The consumers of an inbox process, as operators see them.

mod inbox_dead_letters;

use std::collections::BTreeMap;
use std::fmt;

use axum::Router;
use inbox::{Backlog, BreakerState, State, Status, Summary};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde::Serialize;
use tokio::sync::watch;

use super::metrics::{Metrics, Sink};
use super::{Admin, Engine};
pub(crate) use inbox_dead_letters::AppState;

/// A gauge: its name, its help, and where its value is found.
type Figure<T, N> = (&'static str, &'static str, fn(&T) -> N);

/// The consumers by name.
type Watched = BTreeMap<String, watch::Receiver<Status>>;

/// What the servers know about a consumer, as of some seconds ago.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) backlog: Backlog,
    /// Events that the broker has not delivered yet, if it could be asked.
    pub(crate) pending: Option<u64>,
}

/// Running consumers.
pub(crate) struct Inbox {
    consumers: Watched,
    metrics: Metrics,
    app_state: AppState,
}

impl Inbox {
    pub(crate) fn new(
        consumers: Watched,
        samples: watch::Receiver<BTreeMap<String, Sample>>,
        app_state: AppState,
    ) -> Self {
        let collector = StatusCollector { consumers: consumers.clone(), samples };
        Self { consumers, metrics: Metrics::new([], collector), app_state }
    }
}

impl Engine for Inbox {
    fn readiness(&self, details: bool) -> (bool, String) {
        let consumers = self.consumers.iter();
        let consumers = consumers
            .map(|(name, status)| (name.as_str(), Consumer::of(&status.borrow(), details)));
        let consumers: BTreeMap<_, _> = consumers.collect();
        let ready = consumers.values().all(|it| it.ready);
        let readiness = Readiness { ready, consumers };
        (ready, serde_json::to_string(&readiness).unwrap_or_default())
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        self.metrics.encode()
    }

    fn status(&self) -> anyhow::Result<String> {
        crate::output::to_json(&AllStatus { consumers: snapshot(&self.consumers) })
    }

    fn api(&self) -> Router<Admin> {
        inbox_dead_letters::routes(self.app_state.clone())
    }

    fn api_paths(&self) -> &'static str {
        ", and /api/v1/inbox/dead-letter"
    }
}

#[derive(Serialize)]
struct Readiness<'a> {
    ready: bool,
    consumers: BTreeMap<&'a str, Consumer>,
}

/// Whether a consumer does its job.
#[derive(Serialize)]
struct Consumer {
    ready: bool,
    state: State,
    breaker: BreakerState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Consumer {
    fn of(status: &Status, details: bool) -> Self {
        let ready = matches!(status.state, State::Active | State::Standby);
        let breaker = status.handler.breaker;
        let reason = status.paused.as_deref().map(|it| if details { it } else { in_short(it) });
        Self { ready, state: status.state, breaker, reason: reason.map(str::to_owned) }
    }
}

/// What anybody may know of a pause. The rest has names, addresses and what servers said.
fn in_short(reason: &str) -> &'static str {
    const KINDS: [&str; 5] = [
        "the database is away",
        "the broker is away",
        "the handler is away",
        "the handler is not set up right",
        "too much is left in the stream",
    ];
    KINDS.into_iter().find(|it| reason.starts_with(it)).unwrap_or("paused")
}

#[derive(Serialize)]
struct AllStatus {
    consumers: BTreeMap<String, Status>,
}

/// Copied, so that no consumer waits for a scrape.
fn snapshot(consumers: &Watched) -> BTreeMap<String, Status> {
    consumers.iter().map(|(name, status)| (name.clone(), status.borrow().clone())).collect()
}

#[derive(Debug)]
struct StatusCollector {
    consumers: Watched,
    samples: watch::Receiver<BTreeMap<String, Sample>>,
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let consumers = snapshot(&self.consumers);
        let mut sink = Sink { encoder: &mut encoder };
        sink.gauges(&consumers)?;
        sink.outcomes(&consumers)?;
        sink.samples(&self.samples.borrow().clone())?;
        sink.build_info()
    }
}

impl Sink<'_, '_> {
    fn gauges(&mut self, consumers: &BTreeMap<String, Status>) -> fmt::Result {
        let figures: [Figure<Status, usize>; 6] = [
            ("inbox_active", "1 while the consumer handles events.", |it| {
                usize::from(it.state == State::Active)
            }),
            ("inbox_inflight", "Events that a handler has.", |it| it.busy),
            ("inbox_held", "Events in memory, at work or waiting for their aggregate.", |it| {
                it.held
            }),
            ("inbox_left", "Events left in the stream behind one without progress.", |it| it.left),
            ("inbox_breaker_state", "0 closed, 1 half-open, 2 open.", |it| {
                match it.handler.breaker {
                    BreakerState::Closed => 0,
                    BreakerState::HalfOpen => 1,
                    BreakerState::Open => 2,
                }
            }),
            ("inbox_lanes", "Aggregates with an event at work or waiting.", |it| it.lanes),
        ];
        for (name, help, figure) in figures {
            let values = consumers.iter().map(|(consumer, status)| {
                ([("consumer", consumer.as_str())], figure(status) as f64)
            });
            self.family(name, help, values)?;
        }
        let opened = consumers
            .iter()
            .map(|(consumer, status)| ([("consumer", consumer.as_str())], status.handler.opened));
        let help = "Times the breaker opened: the handler failed whatever the event.";
        self.counters("inbox_breaker_opened", help, opened)
    }

    fn samples(&mut self, samples: &BTreeMap<String, Sample>) -> fmt::Result {
        let figures: [Figure<Backlog, i64>; 3] = [
            ("inbox_backlog", "Events that were begun and are not processed.", |it| {
                it.processing + it.failed
            }),
            ("inbox_failed_attempts", "Events of the backlog with more than 3 attempts.", |it| {
                it.stubborn
            }),
            ("dead_letter_count", "Dead letters that nobody has decided about.", |it| it.dead),
        ];
        for (name, help, figure) in figures {
            let values = samples.iter().map(|(consumer, sample)| {
                let labels = [("consumer", consumer.as_str()), ("source", "inbox")];
                (labels, figure(&sample.backlog) as f64)
            });
            self.family(name, help, values)?;
        }
        let pending = samples.iter().filter_map(|(consumer, sample)| {
            Some(([("consumer", consumer.as_str())], sample.pending? as f64))
        });
        self.family("jetstream_consumer_pending", "Events not delivered yet.", pending)
    }

    fn outcomes(&mut self, consumers: &BTreeMap<String, Status>) -> fmt::Result {
        let values = consumers.iter().flat_map(|(consumer, status)| {
            let Summary { processed, skipped, retried, dead, released } = status.counts;
            let counts = [
                ("processed", processed),
                ("skipped", skipped),
                ("retried", retried),
                ("dead", dead),
                ("released", released),
            ];
            counts.map(|(outcome, count)| {
                ([("consumer", consumer.as_str()), ("outcome", outcome)], count)
            })
        });
        self.counters("inbox_outcomes", "Events by what became of them.", values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(status: Status) -> Inbox {
        // The last value stays readable when the sender is gone.
        let active = Status { state: State::Active, ..Status::default() };
        let watch = |status| watch::channel(status).1;
        let backlog = Backlog { processing: 3, failed: 2, dead: 4, ..Backlog::default() };
        let sample = Sample { backlog, pending: Some(9) };
        let samples = BTreeMap::from([("mail".to_owned(), sample)]);
        let consumers = [("billing".to_owned(), watch(active)), ("mail".to_owned(), watch(status))];
        let postgres = "postgres://localhost/shop".parse().expect("a URL");
        let app_state = AppState { postgres, table: outbox::Table::default() };
        Inbox::new(BTreeMap::from(consumers), watch::channel(samples).1, app_state)
    }

    #[test]
    fn it_is_ready_when_every_consumer_is() {
        let of = |state| inbox(Status { state, ..Status::default() }).readiness(false).0;
        assert!(of(State::Active) && of(State::Standby));
        assert!(!of(State::Starting) && !of(State::Paused) && !of(State::Stopping));
    }

    #[test]
    fn a_paused_consumer_says_why() {
        let paused = Some("3 answers in a row were 404 Not Found".to_owned());
        let (ready, json) =
            inbox(Status { state: State::Paused, paused, ..Status::default() }).readiness(true);
        assert!(!ready);
        assert_eq!(
            json,
            r#"{"ready":false,"consumers":{"billing":{"ready":true,"state":"active","breaker":"closed"},"#
                .to_owned()
                + r#""mail":{"ready":false,"state":"paused","breaker":"closed","reason":"3 answers in a row were 404 Not Found"}}}"#
        );
    }

    #[test]
    fn who_has_no_token_reads_no_names_and_no_answers() {
        for (paused, shown) in [
            (
                "the handler is away: POST https://billing.internal/events: refused",
                "the handler is away",
            ),
            ("the database is away: could not connect to 10.0.0.7", "the database is away"),
            ("could not log in as \"shop\"", "paused"),
        ] {
            let paused = Some(paused.to_owned());
            let status = Status { state: State::Paused, paused, ..Status::default() };
            let (_, json) = inbox(status).readiness(false);
            assert!(json.contains(&format!("\"reason\":\"{shown}\"")), "{json}");
        }
    }

    #[test]
    fn metrics_show_each_consumer_under_the_documented_names() {
        let counts = Summary { processed: 41, dead: 2, ..Summary::default() };
        let inbox = inbox(Status { busy: 3, counts, ..Status::default() });
        let text = inbox.metrics().expect("it can be encoded");
        for line in [
            r#"tailpost_inbox_outcomes_total{consumer="mail",outcome="processed"} 41"#,
            r#"tailpost_inbox_outcomes_total{consumer="mail",outcome="dead"} 2"#,
            r#"tailpost_inbox_outcomes_total{consumer="billing",outcome="dead"} 0"#,
            r#"tailpost_inbox_inflight{consumer="mail"} 3.0"#,
            r#"tailpost_inbox_active{consumer="billing"} 1.0"#,
            r#"tailpost_inbox_breaker_state{consumer="billing"} 0.0"#,
            r#"tailpost_inbox_breaker_opened_total{consumer="billing"} 0"#,
            r#"tailpost_inbox_backlog{consumer="mail",source="inbox"} 5.0"#,
            r#"tailpost_dead_letter_count{consumer="mail",source="inbox"} 4.0"#,
            r#"tailpost_jetstream_consumer_pending{consumer="mail"} 9.0"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\nis missing in\n{text}");
        }
        let json: serde_json::Value =
            serde_json::from_str(&inbox.status().expect("serialisable")).expect("valid JSON");
        assert_eq!(json["consumers"]["mail"]["counts"]["processed"], 41);
    }
}
