//! The consumers of an inbox process, as operators see them.

mod consumer_routes;
mod inbox_dead_letters;
mod rewind_routes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inbox::{BreakerState, Connection, State, Status, Upkept};
use operate::audit::inbox_audit;
use operate::consumers::{Backlog, Consumers};
use serde::Serialize;
use tokio::sync::watch;

use super::audit_routes::{self, Audit};
use super::doctor_routes::{Doctor, Look};
use super::events::{self, WaitingOf};
use super::metrics::Metrics;
use super::metrics::inbox_collector::{StatusCollector, Watched, snapshot};
use super::metrics::inbox_sample::{Part, Sample, Samples};
use super::openapi::Api;
use super::retention_routes::{self, Retained};
use super::{Admin, Engine, PROGRESS_TIMEOUT, Retention};
use consumer_routes::ConsumerState;
pub(crate) use inbox_dead_letters::AppState;
pub(crate) use rewind_routes::Rewinders;

/// Running consumers.
pub(crate) struct Inbox {
    consumers: Watched,
    metrics: Metrics,
    app_state: AppState,
    waiting: WaitingOf,
    samples: watch::Receiver<Samples>,
    doctor: Doctor,
    rewinders: Rewinders,
}

impl Inbox {
    pub(crate) fn new(
        consumers: Watched,
        samples: watch::Receiver<Samples>,
        (app_state, look, rewinders): (AppState, Look, Rewinders),
        waiting: WaitingOf,
        environment: &str,
    ) -> Self {
        let (consumed, sampled) = (consumers.clone(), samples.clone());
        let started = Instant::now();
        let collector = StatusCollector { consumers: consumed, samples: sampled, started };
        let metrics = Metrics::new(environment, [], collector);
        let doctor = Doctor::new(look);
        Self { consumers, metrics, app_state, waiting, samples, doctor, rewinders }
    }
}

impl Engine for Inbox {
    fn readiness(&self, details: bool) -> (bool, String) {
        let samples = self.samples.borrow().clone();
        let consumers = self.consumers.iter().map(|(name, status)| {
            let sample = samples.consumers.get(name);
            (name.as_str(), Consumer::of(&status.borrow(), sample, details))
        });
        let consumers: BTreeMap<_, _> = consumers.collect();
        let ready = consumers.values().all(|it| it.ready);
        let retention = samples.upkept.as_ref().map(|it| retention(it, details));
        let readiness = Readiness { ready, consumers, retention };
        (ready, serde_json::to_string(&readiness).unwrap_or_default())
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn status(&self) -> anyhow::Result<String> {
        let samples = self.samples.borrow().clone();
        let all = snapshot(&self.consumers).into_iter().map(|(name, status)| {
            let sample = samples.consumers.get(&name);
            let pending = sample.and_then(|it| Some(it.durable?.pending));
            let backlog = sample.map(|it| it.backlog.clone());
            (name, ConsumerStatus { status, pending, backlog })
        });
        crate::output::to_json(&AllStatus { consumers: all.collect() })
    }

    fn api(&self) -> Api<Admin> {
        let AppState { postgres, table, .. } = self.app_state.clone();
        let watched = Arc::new(self.consumers.clone());
        let state = self.app_state.clone();
        let audit: Audit = Arc::new(move |question| {
            let AppState { postgres, table, .. } = state.clone();
            Box::pin(async move {
                let session = postgres.session("tailpost inbox api").await?;
                Ok(inbox_audit(&Connection::lent(session), &table, &question).await?)
            })
        });
        let kept = self.app_state.clone();
        let retained: Retained = Arc::new(move || {
            let AppState { postgres, table, .. } = kept.clone();
            Box::pin(async move {
                let on = Connection::lent(postgres.session("tailpost inbox api").await?);
                let partitions = operate::inbox_partitions(&on, &table).await?;
                let upkept = Consumers::new(on, &table).upkept().await?.unwrap_or_default();
                let Upkept { last_success_at, failure, .. } = upkept;
                Ok(retention_routes::Shown { last_success_at, failure, partitions })
            })
        });
        let consumers = ConsumerState { postgres, table, watched };
        inbox_dead_letters::routes(self.app_state.clone())
            .merge(rewind_routes::routes(consumers.clone(), Arc::clone(&self.rewinders)))
            .merge(consumer_routes::routes(consumers))
            .merge(audit_routes::routes(audit))
            .merge(retention_routes::routes(retained))
    }

    fn waits(&self) -> Api<Admin> {
        events::processed(Arc::clone(&self.waiting)).merge(self.doctor.routes())
    }

    fn name(&self) -> &'static str {
        "inbox"
    }
}

#[derive(Serialize)]
struct Readiness<'a> {
    ready: bool,
    consumers: BTreeMap<&'a str, Consumer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<Retention>,
}

/// That old records are not deleted is no reason to take an inbox out of service.
fn retention(upkept: &Upkept, details: bool) -> Retention {
    let reason = upkept.failure.clone().filter(|_| details);
    Retention { ok: upkept.failure.is_none(), last_success_at: upkept.last_success_at, reason }
}

/// Whether a consumer does its job.
#[derive(Serialize)]
struct Consumer {
    ready: bool,
    state: State,
    breaker: BreakerState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Messages that it missed: no other process would bring them.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<u64>,
    /// What its stream keeps from it: neither would it give that to another process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl Consumer {
    fn of(status: &Status, sample: Option<&Sample>, details: bool) -> Self {
        // Who pauses a consumer does not want its process replaced.
        let is_held = status.state == State::Paused && status.paused_by.is_some();
        let works = matches!(status.state, State::Active | State::Standby);
        let stalled = sample.filter(|_| works).and_then(stalled);
        let is_up = matches!(status.state, State::Active | State::Standby) && stalled.is_none();
        let breaker = status.handler.breaker;
        let paused = status.paused.as_deref().map(|it| if details { it } else { in_short(it) });
        let reason = paused.map(str::to_owned).or(stalled);
        let unread =
            sample.and_then(|it| it.parts.iter().map(|it| it.unread).max()).filter(|it| *it > 0);
        let warnings = sample.filter(|_| details).map(|it| it.warnings.clone()).unwrap_or_default();
        let (ready, state) = (is_up || is_held, status.state);
        Self { ready, state, breaker, reason, unread, warnings }
    }
}

/// How long after a handler's time is over its event has an end.
const ANSWERED: Duration = Duration::from_secs(10);

/// Whether events are pending of which nothing becomes, or a partition has no worker.
fn stalled(sample: &Sample) -> Option<String> {
    let limit = PROGRESS_TIMEOUT.max(sample.timeout + ANSWERED);
    let told = |Part { name, pending, unmoved, free, .. }: &Part| {
        if *free >= 2 * sample.lease {
            return Some(format!("for {} s no worker has had {name}", free.as_secs()));
        }
        let seconds = unmoved.as_secs();
        let told = format!(
            "{pending} events are pending for {name}, and for {seconds} s none was delivered"
        );
        (*unmoved >= limit).then_some(told)
    };
    let undone = || {
        let seconds = sample.undone.as_secs();
        let told = format!("for {seconds} s an event waits, and no record of it can be written");
        // Who had it may have died at the end of its time, and has it for the lease.
        (sample.undone >= limit + sample.lease).then_some(told)
    };
    sample.parts.iter().find_map(told).or_else(undone)
}

/// What anybody may know of a pause. The rest has names, addresses and what servers said.
fn in_short(reason: &str) -> &'static str {
    const KINDS: [&str; 9] = [
        "another stream has the consumer",
        "the database is away: commits wait for a synchronous standby",
        "the database is away",
        "the broker is away",
        "the broker delivers nothing",
        "the handler is away",
        "the handler is not set up right",
        "too much is left in the stream",
        "records are kept out",
    ];
    KINDS.into_iter().find(|it| reason.starts_with(it)).unwrap_or("paused")
}

#[derive(Serialize)]
struct AllStatus {
    consumers: BTreeMap<String, ConsumerStatus>,
}

#[derive(Serialize)]
struct ConsumerStatus {
    #[serde(flatten)]
    status: Status,
    /// What the broker has not delivered yet, as of the last look; `None` if it could not be asked.
    pending: Option<u64>,
    /// What the records have, as of the last look.
    backlog: Option<Backlog>,
}

#[cfg(test)]
mod tests {

    use inbox::{Claims, DeadLetterCounts, LeaseCounts, Summary};

    use crate::admin::Durable;
    use crate::admin::metrics::Format;

    use super::*;

    fn inbox(status: Status) -> Inbox {
        // The last value stays readable when the sender is gone.
        let active = Status { state: State::Active, ..Status::default() };
        let watch = |status| watch::channel(status).1;
        let backlog = Backlog { processing: 3, failed: 2, dead: 4, ..Backlog::default() };
        let active_at = jiff::Timestamp::now();
        let durable = Some(Durable {
            pending: 9,
            delivered: (1, 0),
            ack_pending: 8,
            redelivered: 7,
            active_at,
        });
        let part = Part { name: "mail".into(), pending: 9, ..Part::default() };
        let lease = Duration::from_secs(30);
        let sample = Sample { backlog, durable, lease, parts: vec![part], ..Sample::default() };
        let consumers = BTreeMap::from([("mail".to_owned(), sample)]);
        let samples = Samples { taken: None, consumers, upkept: None };
        let consumers = [("billing".to_owned(), watch(active)), ("mail".to_owned(), watch(status))];
        let postgres: servers::PostgresTarget = "postgres://localhost/shop".parse().expect("a URL");
        let app_state = AppState::new(&postgres, outbox::Table::default());
        Inbox::new(
            BTreeMap::from(consumers),
            watch::channel(samples).1,
            (
                app_state,
                Arc::new(|| Box::pin(async { Ok(Vec::new()) })),
                Arc::new(|_, _| Box::pin(async { Ok(None) })),
            ),
            WaitingOf::default(),
            "production",
        )
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
    fn a_consumer_of_whose_pending_events_none_is_delivered_is_not_ready() {
        let inbox = inbox(Status { state: State::Active, ..Status::default() });
        let sampled = inbox.samples.borrow().consumers["mail"].clone();
        let told = |state, seconds| {
            let mut sample = sampled.clone();
            sample.parts[0].unmoved = Duration::from_secs(seconds);
            Consumer::of(&Status { state, ..Status::default() }, Some(&sample), false)
        };
        assert!(told(State::Active, 29).ready);
        let stalled = told(State::Active, 31);
        let reason = "9 events are pending for mail, and for 31 s none was delivered";
        assert!(!stalled.ready && stalled.reason.as_deref() == Some(reason));
        let undone = |seconds| {
            let lease = Duration::from_secs(30);
            let undone = Duration::from_secs(seconds);
            let sample = Sample { undone, lease, ..sampled.clone() };
            let status = Status { state: State::Active, ..Status::default() };
            Consumer::of(&status, Some(&sample), false).ready
        };
        assert!(undone(59) && !undone(60), "no record can be written");
        let slow = |seconds| {
            let mut sample = Sample { timeout: Duration::from_secs(60), ..sampled.clone() };
            sample.parts[0].unmoved = Duration::from_secs(seconds);
            Consumer::of(
                &Status { state: State::Active, ..Status::default() },
                Some(&sample),
                false,
            )
        };
        assert!(slow(69).ready && !slow(70).ready, "every lane may have an event that takes long");
    }

    #[test]
    fn a_partition_that_nobody_has_for_twice_the_lease_is_named() {
        let inbox = inbox(Status { state: State::Active, ..Status::default() });
        let mut sample = inbox.samples.borrow().consumers["mail"].clone();
        let free = |name: &str, seconds| {
            let free = Duration::from_secs(seconds);
            Part { name: name.into(), free, ..Part::default() }
        };
        for state in [State::Active, State::Standby] {
            let status = Status { state, ..Status::default() };
            sample.parts = vec![free("mail-0", 0), free("mail-1", 59)];
            assert!(Consumer::of(&status, Some(&sample), false).ready);
            sample.parts = vec![free("mail-0", 0), free("mail-1", 60)];
            let told = Consumer::of(&status, Some(&sample), false);
            let reason = "for 60 s no worker has had mail-1";
            assert!(!told.ready && told.reason.as_deref() == Some(reason));
        }
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
        let claims = Claims { leased: 6, ..Claims::default() };
        let leases = LeaseCounts { lost: 5, ..LeaseCounts::default() };
        let dead_letters = DeadLetterCounts { gone: 1, ..DeadLetterCounts::default() };
        let status = Status { busy: 3, counts, claims, leases, dead_letters, ..Status::default() };
        let inbox = inbox(status);
        let text = inbox.metrics().encode(Format::Text).expect("it can be encoded");
        let text = String::from_utf8(text).expect("text");
        for line in [
            r#"tailpost_inbox_outcomes_total{env="production",consumer="mail",outcome="processed"} 41"#,
            r#"tailpost_inbox_outcomes_total{env="production",consumer="mail",outcome="dead"} 2"#,
            r#"tailpost_inbox_outcomes_total{env="production",consumer="billing",outcome="dead"} 0"#,
            r#"tailpost_inbox_inflight{env="production",consumer="mail"} 3.0"#,
            r#"tailpost_inbox_active{env="production",consumer="billing"} 1.0"#,
            r#"tailpost_inbox_breaker_state{env="production",consumer="billing"} 0.0"#,
            r#"tailpost_inbox_breaker_opened_total{env="production",consumer="billing"} 0"#,
            r#"tailpost_inbox_backlog{env="production",consumer="mail"} 5.0"#,
            r#"tailpost_dead_letter_count{env="production",consumer="mail",source="inbox"} 4.0"#,
            r#"tailpost_jetstream_consumer_pending{env="production",consumer="mail"} 9.0"#,
            r#"tailpost_inbox_claims_total{env="production",consumer="mail",result="leased"} 6"#,
            r#"tailpost_inbox_lease_lost_total{env="production",consumer="mail"} 5"#,
            r#"tailpost_dead_letters_total{env="production",consumer="mail",source="inbox",reason="gone"} 1"#,
            r#"tailpost_jetstream_consumer_ack_pending{env="production",consumer="mail"} 8.0"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\nis missing in\n{text}");
        }
        let json: serde_json::Value =
            serde_json::from_str(&inbox.status().expect("serialisable")).expect("valid JSON");
        assert_eq!(json["consumers"]["mail"]["counts"]["processed"], 41);
        assert_eq!(json["consumers"]["mail"]["pending"], 9);
    }
}
