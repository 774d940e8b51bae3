//! The relay, as operators see it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use operate::audit::outbox_audit;
use operate::checks::Scope;
use operate::{RetentionStatus, RewindStatus};
use outbox::waiting::Waiting;
use relay::{Config, EventState, Refused, Role, Sample, SlotSample, Status};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use super::audit_routes::{self, Audit};
use super::dead_letters::AppState;
use super::doctor_routes::Doctor;
use super::metrics::Metrics;
use super::metrics::relay_collector::{Counted, StatusCollector, Watched};
use super::openapi::Api;
use super::replay_routes::ReplayState;
use super::retention_routes::Retained;
use super::verify_routes::{self, Verify};
use super::{
    Admin, Engine, PROGRESS_TIMEOUT, Retention, dead_letters, event_routes, events, replay_routes,
    retention_routes, slot_routes,
};

/// A running relay, with all shards that this process has.
pub(crate) struct Relay {
    watched: Vec<Watched>,
    metrics: Metrics,
    app_state: AppState,
    replays: ReplayState,
    counted: Counted,
    waiting: Waiting<EventState>,
    retention: watch::Receiver<RetentionStatus>,
    sample: watch::Receiver<Option<Sample>>,
    doctor: Doctor,
    verify: Verify,
    window: Window,
}

impl Relay {
    /// `config` is that of all shards.
    pub(crate) fn new(
        watched: Vec<Watched>,
        config: &Config,
        waiting: Waiting<EventState>,
        (environment, sample): (&str, watch::Receiver<Option<Sample>>),
        retention: watch::Receiver<RetentionStatus>,
    ) -> Self {
        let pipeline = format!("{}/{}", config.slot, config.publication);
        let mut labels = vec![("pipeline", pipeline)];
        if watched.iter().all(|it| it.shard.is_none()) {
            labels.push(("stream", config.stream.name.clone()));
        }
        let in_flight_limit = config.window.events;
        let counted = Counted::default();
        let dead_letters = Arc::clone(&counted);
        let collector = StatusCollector {
            watched: watched.clone(),
            in_flight_limit,
            dead_letters,
            retention: retention.clone(),
            sample: sample.clone(),
            started: Instant::now(),
        };
        let postgres = super::pooled(config.postgres.clone(), "tailpost admin");
        let asked = Arc::new(Config { postgres, ..config.clone() });
        let postgres = super::in_background(config.postgres.clone());
        let background = Arc::new(Config { postgres, ..config.clone() });
        let app_state = AppState::new(Arc::clone(&asked), Arc::clone(&background));
        let replays = ReplayState { config: asked, background, turn: Arc::new(Semaphore::new(1)) };
        let metrics = Metrics::new(environment, labels, collector);
        // The configuration that the relay has, without a pool.
        let checked = Arc::new(config.clone());
        let verify = Verify::new(Arc::clone(&checked));
        let doctor = Doctor::new(Arc::new(move || {
            let config = Arc::clone(&checked);
            Box::pin(async move { Ok(operate::doctor(&config, &Scope::default()).await) })
        }));
        let window = Window { events: config.window.events, bytes: config.window.bytes };
        Self {
            watched,
            metrics,
            app_state,
            replays,
            counted,
            waiting,
            retention,
            sample,
            doctor,
            verify,
            window,
        }
    }
}

impl Engine for Relay {
    fn readiness(&self, details: bool) -> (bool, String) {
        let sample = self.sample.borrow().clone().unwrap_or_default();
        let of = |it: &Watched| {
            let (slot, status) = (sample.slots.get(&it.shard.unwrap_or(0)), it.status.borrow());
            let readiness = Readiness::of(&status, slot, details);
            let readiness = readiness.unless(|| unread(&status, sample.refused.as_ref()?, details));
            Readiness { shard: it.shard, ..readiness }
        };
        let mut shards: Vec<_> = self.watched.iter().map(of).collect();
        let ready = shards.iter().all(|it| it.ready);
        let retention = retention(&self.retention.borrow(), details);
        let json = match shards.pop() {
            Some(of @ Readiness { shard: None, .. }) => {
                serde_json::to_string(&WithRetention { of, retention })
            }
            last => {
                shards.extend(last);
                let reason =
                    |it: &Readiness| Some(format!("shard {}: {}", it.shard?, it.reason.as_ref()?));
                let reasons: Vec<_> = shards.iter().filter_map(reason).collect();
                let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
                let of = ShardsReadiness { ready, reason, shards };
                serde_json::to_string(&WithRetention { of, retention })
            }
        };
        (ready, json.unwrap_or_default())
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn look(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let count = self.app_state.count().await;
            *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = count;
        })
    }

    fn api(&self) -> Api<Admin> {
        let config = &self.replays.config;
        let audited = Arc::clone(config);
        let audit: Audit = Arc::new(move |question| {
            let config = Arc::clone(&audited);
            Box::pin(async move { Ok(outbox_audit(&config, &question).await?) })
        });
        let (kept, status) = (Arc::clone(config), self.retention.clone());
        let retained: Retained = Arc::new(move || {
            let (config, status) = (Arc::clone(&kept), status.borrow().clone());
            Box::pin(async move {
                let partitions = operate::outbox_partitions(&config).await?;
                let RetentionStatus { last_success_at, failure, .. } = status;
                Ok(retention_routes::Shown { last_success_at, failure, partitions })
            })
        });
        dead_letters::routes(self.app_state.clone())
            .merge(retention_routes::routes(retained))
            .merge(event_routes::routes(Arc::clone(config)))
            .merge(slot_routes::routes(Arc::clone(config)))
            .merge(replay_routes::routes(self.replays.clone()))
            .merge(audit_routes::routes(audit))
            .merge(verify_routes::routes(self.verify.clone()))
    }

    fn waits(&self) -> Api<Admin> {
        events::published(self.waiting.clone()).merge(self.doctor.routes())
    }

    fn name(&self) -> &'static str {
        "relay"
    }

    fn status(&self) -> anyhow::Result<String> {
        let sample = self.sample.borrow().clone().unwrap_or_default();
        let of = |it: &Watched| ShardStatus {
            process_id: std::process::id(),
            nats: self.replays.config.nats.to_string(),
            window: self.window,
            unpublished: sample.slots.get(&it.shard.unwrap_or(0)).map(|it| it.unpublished),
            shard: it.shard,
            stream: it.shard.map(|_| it.stream.clone()),
            status: it.status.borrow().clone(),
            rewind: it.rewind.borrow().clone(),
        };
        let mut shards: Vec<_> = self.watched.iter().map(of).collect();
        let retention = self.retention.borrow().clone();
        match shards.pop() {
            Some(of @ ShardStatus { shard: None, .. }) => {
                crate::output::to_json(&WithRetention { of, retention })
            }
            last => {
                shards.extend(last);
                crate::output::to_json(&WithRetention { of: ShardsStatus { shards }, retention })
            }
        }
    }
}

#[derive(Serialize)]
struct ShardsStatus {
    shards: Vec<ShardStatus>,
}

/// What is said of the relays, and of retention beside them.
#[derive(Serialize)]
struct WithRetention<O, T> {
    #[serde(flatten)]
    of: O,
    retention: T,
}

/// A table that grows is no reason to take a relay out of service: it publishes as before.
fn retention(status: &RetentionStatus, details: bool) -> Retention {
    let is_short = status.is_short_of_partitions();
    let short = || "partitions for inserts end within two days".to_owned();
    let reason = status.failure.clone().or_else(|| is_short.then(short)).filter(|_| details);
    let ok = !status.is_overdue && !is_short;
    Retention { ok, last_success_at: status.last_success_at, reason }
}

/// What may be in flight.
#[derive(Clone, Copy, Serialize)]
struct Window {
    events: usize,
    bytes: usize,
}

/// What a shard, or the only relay, says of itself.
#[derive(Serialize)]
struct ShardStatus {
    /// Of several relays on a machine, this one.
    process_id: u32,
    /// The servers of NATS.
    nats: String,
    window: Window,
    /// Rows that wait, as of the last look; `None` if nobody has looked yet.
    unpublished: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    #[serde(flatten)]
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    rewind: Option<RewindStatus>,
}

const RESTORES: &str =
    "the stream has lost acknowledged messages: the rows that name them are being published again";

/// Whether the relay does its job.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Readiness {
    /// Which one, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<u32>,
    ready: bool,
    role: Role,
    /// Why it is not; or what it waits for beside its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Readiness {
    /// Judges by progress: a connection that is up proves nothing, and one that was just lost
    /// does not matter yet. `slot` says what the table has.
    fn of(status: &Status, slot: Option<&SlotSample>, details: bool) -> Self {
        let unpublished = || unpublished(status, slot?, details);
        let waits = status.waiting_for.as_deref();
        let awaits_slot = waits.is_some() && !status.held_back;
        let reason = match status.role {
            Role::Active if awaits_slot && !is_stalled(status) && unpublished().is_none() => {
                let what = waits.filter(|_| details).map(|it| format!(" {it}")).unwrap_or_default();
                let reason = format!("the slot waits{what}; events come from the table meanwhile");
                return Self { shard: None, ready: true, role: status.role, reason: Some(reason) };
            }
            Role::Standby => unpublished(),
            Role::Starting => Some(match (&status.waiting_for, &status.last_error) {
                (Some(what), _) if details => format!("starting: waiting {what}"),
                (Some(_), _) => "starting: waiting for others in the database".into(),
                (None, Some(error)) if details => format!("starting: {error}"),
                (None, _) => "starting".into(),
            }),
            Role::Stopped => Some("stopped".into()),
            Role::Active if status.restores => Some(RESTORES.into()),
            Role::Active => match status.waiting_for.as_ref().filter(|_| status.held_back) {
                Some(what) if details => Some(format!("PostgreSQL holds events back {what}")),
                Some(_) => Some("PostgreSQL holds events back: synchronized_standby_slots".into()),
                None => stalled(status, details).or_else(unpublished),
            },
        };
        Self { shard: None, ready: reason.is_none(), role: status.role, reason }
    }

    /// An active relay that is ready is not if there is a reason.
    fn unless(self, reason: impl FnOnce() -> Option<String>) -> Self {
        let judged = self.ready && self.role == Role::Active;
        match judged.then(reason).flatten() {
            Some(reason) => Self { ready: false, reason: Some(reason), ..self },
            None => self,
        }
    }
}

/// Whether each of several shards does its job.
#[derive(Serialize)]
struct ShardsReadiness {
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    shards: Vec<Readiness>,
}

/// Rows wait, and none gets out, whatever the relay says of itself.
fn unpublished(status: &Status, slot: &SlotSample, details: bool) -> Option<String> {
    let resolved = status.last_resolved.map_or(Duration::MAX, |at| at.elapsed());
    let unmoved = slot.unmoved.min(resolved);
    if unmoved < PROGRESS_TIMEOUT {
        return None;
    }
    let (rows, seconds) = (slot.unpublished, unmoved.as_secs());
    let unmarked = status.marks_failing.clone();
    let what = if unmarked.is_some() { "marked as published" } else { "published" };
    let waits = || status.waiting_for.as_ref().map(|it| format!("waiting {it}"));
    let cause = unmarked.or_else(waits).or_else(|| status.last_error.clone());
    let cause = cause.filter(|_| details).map(|it| format!(": {it}")).unwrap_or_default();
    Some(format!("{rows} rows are not {what}, and for {seconds} s none was{cause}"))
}

/// Whether rows wait cannot be known, and none gets out. One look may fail on a busy machine.
fn unread(status: &Status, refused: &Refused, details: bool) -> Option<String> {
    let resolved = status.last_resolved.map_or(Duration::MAX, |at| at.elapsed());
    let since = refused.since.elapsed();
    if refused.looks < 2 || since.min(resolved) < PROGRESS_TIMEOUT {
        return None;
    }
    let why = Some(&refused.why).filter(|_| details).map(|it| format!(": {it}"));
    let (seconds, why) = (since.as_secs(), why.unwrap_or_default());
    Some(format!("the outbox table cannot be read for {seconds} s{why}"))
}

fn is_stalled(status: &Status) -> bool {
    status.last_progress_age().is_none_or(|age| age >= PROGRESS_TIMEOUT)
}

fn stalled(status: &Status, details: bool) -> Option<String> {
    if !is_stalled(status) {
        return None;
    }
    let age = status.last_progress_age();
    let since = age.map_or_else(|| "yet".into(), |age| format!("for {} s", age.as_secs()));
    let events = status.in_flight_events;
    let cause = status.last_error.as_deref().filter(|_| details);
    let cause = cause.map(|it| format!(": {it}")).unwrap_or_default();
    let retry = status.breaker_retry_in.map(|it| format!(", trying again in {} s", it.as_secs()));
    let retry = retry.unwrap_or_default();
    Some(format!("no progress {since} with {events} events in flight{cause}{retry}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active(progress: Option<Duration>) -> Status {
        let last_progress = progress.and_then(|age| Instant::now().checked_sub(age));
        Status { role: Role::Active, last_progress, in_flight_events: 7, ..Status::default() }
    }

    #[test]
    fn an_active_relay_is_ready_while_it_gets_on() {
        assert!(Readiness::of(&active(Some(Duration::ZERO)), None, true).ready);
        // Whatever the sockets do.
        let status = active(Some(Duration::from_secs(5)));
        assert!(!status.nats_connected && Readiness::of(&status, None, true).ready);
    }

    #[test]
    fn a_stalled_relay_is_not_ready_although_it_is_connected() {
        let status = Status {
            postgres_connected: true,
            nats_connected: true,
            last_error: Some("no responders".into()),
            breaker_retry_in: Some(Duration::from_secs(7)),
            ..active(Some(Duration::from_secs(31)))
        };
        let reason = Readiness::of(&status, None, false).reason.expect("not ready");
        let told = "no progress for 31 s with 7 events in flight, trying again in 7 s";
        assert_eq!(reason, told, "what a server said may name hosts and users");
        let reason = Readiness::of(&status, None, true).reason.expect("not ready");
        assert_eq!(
            reason,
            "no progress for 31 s with 7 events in flight: no responders, trying again in 7 s"
        );
        assert!(!Readiness::of(&active(None), None, true).ready);
    }

    /// Also while another session reads the slot, which may be no relay's.
    #[test]
    fn rows_that_wait_while_none_is_published_are_no_progress() {
        let slot = |seconds| SlotSample {
            unpublished: 5,
            unmoved: Duration::from_secs(seconds),
            ..SlotSample::default()
        };
        let idle = active(Some(Duration::ZERO));
        let waiting_for = Some("for slot tailpost, which process 7 (x) reads".to_owned());
        let standby = Status { role: Role::Standby, waiting_for, ..idle.clone() };
        let reason = |status: &Status, seconds, details| {
            Readiness::of(status, Some(&slot(seconds)), details).reason
        };
        for status in [&idle, &standby] {
            assert_eq!(reason(status, 29, true), None);
            let told = "5 rows are not published, and for 31 s none was";
            assert_eq!(reason(status, 31, false).as_deref(), Some(told));
        }
        let told = reason(&standby, 31, true).expect("not ready");
        assert!(told.ends_with(": waiting for slot tailpost, which process 7 (x) reads"), "{told}");
        // From the table, while PostgreSQL makes the slot.
        let waiting_for = Some("for process 8, whose transaction is 9 s old".to_owned());
        let awaiting = Status { waiting_for, ..idle.clone() };
        let ready = |seconds| Readiness::of(&awaiting, Some(&slot(seconds)), false).ready;
        assert!(ready(29) && !ready(31), "events do not come from the table");
        let busy = Status { last_resolved: Some(Instant::now()), ..idle };
        assert_eq!(reason(&busy, 3600, true), None, "others are published");
    }

    #[test]
    fn a_table_that_cannot_be_read_is_red_unless_events_get_out() {
        let idle = active(Some(Duration::ZERO));
        let told = |status: &Status, seconds, looks| {
            let since = Instant::now().checked_sub(Duration::from_secs(seconds)).expect("a boot");
            unread(status, &Refused { since, looks, why: "locked".into() }, true)
        };
        assert_eq!((told(&idle, 29, 9), told(&idle, 31, 1)), (None, None));
        let reason = "the outbox table cannot be read for 31 s: locked";
        assert_eq!(told(&idle, 31, 2).as_deref(), Some(reason));
        let busy = Status { last_resolved: Some(Instant::now()), ..idle };
        assert_eq!(told(&busy, 3600, 99), None);
    }

    #[test]
    fn a_standby_is_ready_and_one_that_starts_or_has_stopped_is_not() {
        let ready = |role| Readiness::of(&Status { role, ..Status::default() }, None, true).ready;
        assert!(ready(Role::Standby));
        assert!(!ready(Role::Starting));
        assert!(!ready(Role::Stopped));
    }
}
