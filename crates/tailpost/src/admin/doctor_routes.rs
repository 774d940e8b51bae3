//! `/api/v1/doctor`: the checks of `tailpost doctor`, made by the process that runs.
//!
//! The checks connect to the servers as an engine does, since whether that works is one of them. So
//! they take no connection of the pool, and their number is bounded in another way: there is one
//! run at a time, and requests that come meanwhile are told what it finds.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use jiff::Timestamp;
use operate::checks::{Check, Scope, summary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::api::{Asked, json};
use super::openapi::{Api, Operation};
use super::problem::{ANSWER_MAX, ApiError};
use crate::check_names;
use crate::output::Versioned;

/// How long a run may take. The checks bound each answer, which is less.
const RUN_MAX: Duration = Duration::from_secs(30);
/// Findings that are not older are told again, so that no caller keeps the checks running.
const AGE_MAX: Duration = Duration::from_secs(5);

/// Makes all checks that a process can make.
pub(crate) type Look =
    Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<Vec<Check>>> + Send + Sync>;

/// The checks, and the last run of them.
#[derive(Clone)]
pub(super) struct Doctor {
    look: Look,
    last: Arc<Mutex<Option<Run>>>,
}

/// What a run finds, or why it finds nothing, and when it ended.
type Run = Shared<BoxFuture<'static, (Instant, Result<Arc<Findings>, String>)>>;

struct Findings {
    began_at: Timestamp,
    took: Duration,
    checks: Vec<Check>,
}

impl Doctor {
    pub(super) fn new(look: Look) -> Self {
        Self { look, last: Arc::default() }
    }

    pub(super) fn routes<S: Clone + Send + Sync + 'static>(&self) -> Api<S> {
        let get = Operation::get("/api/v1/doctor", "Checks the servers and the configuration")
            .query::<DoctorQuery>()
            .answers::<Versioned<Told>>(200, "What was found, at most 5 s ago");
        Api::new().on(get, show).with_state(self.clone())
    }

    /// The run under way, one that has just ended, or a new one.
    fn run(&self) -> Run {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |it: &&Run| it.peek().is_none_or(|(ended, _)| ended.elapsed() < AGE_MAX);
        if let Some(run) = last.as_ref().filter(is_current) {
            return run.clone();
        }
        let looking = AssertUnwindSafe((self.look)()).catch_unwind();
        let run = async move {
            let (began_at, began) = (Timestamp::now(), Instant::now());
            let found = match timeout(RUN_MAX, looking).await {
                Ok(Ok(Ok(checks))) => {
                    Ok(Arc::new(Findings { began_at, took: began.elapsed(), checks }))
                }
                Ok(Ok(Err(error))) => Err(crate::errors::chain(&error)),
                Ok(Err(_)) => Err("the checks failed: see the log".to_owned()),
                Err(_) => Err(format!("the checks did not end within {RUN_MAX:?}")),
            };
            (Instant::now(), found)
        };
        let run = run.boxed().shared();
        // It goes on if the request that began it ends.
        tokio::spawn(run.clone());
        last.insert(run).clone()
    }
}

/// Which checks are asked for, in the query.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DoctorQuery {
    /// Ids or categories, separated by commas
    only: Option<String>,
    /// The same, left out
    skip: Option<String>,
}

impl DoctorQuery {
    fn scope(self) -> Result<Scope, ApiError> {
        let names = |asked: Option<String>| -> Vec<String> {
            asked.iter().flat_map(|it| it.split(',')).map(str::to_owned).collect()
        };
        let scope = Scope { before_setup: false, only: names(self.only), skip: names(self.skip) };
        check_names::known(scope.only.iter().chain(&scope.skip)).map_err(ApiError::bad)?;
        Ok(scope)
    }
}

#[derive(Serialize, JsonSchema)]
struct Told<'a> {
    checked_at: Timestamp,
    took_seconds: f64,
    /// How many checks came out how.
    summary: BTreeMap<&'static str, usize>,
    checks: Vec<&'a Check>,
}

async fn show(
    State(doctor): State<Doctor>,
    Asked(query): Asked<DoctorQuery>,
) -> Result<Response, ApiError> {
    let scope = query.scope()?;
    let unavailable = |detail: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail);
    let Ok((_, found)) = timeout(ANSWER_MAX, doctor.run()).await else {
        let hint = "a server answers slowly or not at all; ask again, the checks go on";
        let late = unavailable(format!("the checks have not ended within {ANSWER_MAX:?}"));
        return Err(late.with_hint(hint));
    };
    let findings = found.map_err(unavailable)?;
    let checks: Vec<_> =
        findings.checks.iter().filter(|it| scope.wants(it.id, it.category)).collect();
    json(&Told {
        checked_at: findings.began_at,
        took_seconds: findings.took.as_secs_f64(),
        summary: summary(checks.iter().copied()),
        checks,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use operate::checks::{Category, Severity};
    use tokio::sync::Semaphore;

    use super::*;

    fn check(id: &'static str, category: Category) -> Check {
        Check {
            id,
            category,
            subject: None,
            severity: Severity::Ok,
            title: "it is well",
            evidence: "seen".into(),
            remedies: Vec::new(),
            docs: String::new(),
        }
    }

    /// Checks that end when there is a permit, and how often they were begun.
    fn doctor() -> (Doctor, Arc<Semaphore>, Arc<AtomicUsize>) {
        let (gate, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (waits, counted) = (Arc::clone(&gate), Arc::clone(&runs));
        let look: Look = Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let waits = Arc::clone(&waits);
            Box::pin(async move {
                waits.acquire().await?.forget();
                let slot = check("slot-exists", Category::Replication);
                Ok(vec![slot, check("stream-exists", Category::Stream)])
            })
        });
        (Doctor::new(look), gate, runs)
    }

    async fn ask(doctor: &Doctor, only: &str) -> Result<Response, ApiError> {
        let only = Some(only.to_owned()).filter(|it| !it.is_empty());
        show(State(doctor.clone()), Asked(DoctorQuery { only, skip: None })).await
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_one_run_at_a_time_and_who_comes_later_is_told_what_it_finds() {
        let (doctor, gate, runs) = doctor();
        for _ in 0..2 {
            let late = ask(&doctor, "").await.expect_err("the checks have not ended");
            assert_eq!(late.status, 503, "{late:?}");
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        gate.add_permits(1);
        assert!(ask(&doctor, "").await.is_ok());
        assert!(ask(&doctor, "stream").await.is_ok(), "what has just been found");
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_does_not_end_is_given_up_and_the_next_may_begin() {
        let (doctor, gate, runs) = doctor();
        let (_, found) = doctor.run().await;
        assert_eq!(found.err().as_deref(), Some("the checks did not end within 30s"));
        assert!(ask(&doctor, "").await.is_err(), "no caller keeps the checks running");
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        tokio::time::advance(AGE_MAX).await;
        gate.add_permits(1);
        assert!(ask(&doctor, "").await.is_ok());
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_is_no_check_is_refused() {
        let (doctor, _, runs) = doctor();
        let refused = ask(&doctor, "slot-exist").await.expect_err("no such check");
        assert_eq!(refused.status, 400);
        assert!(refused.detail.ends_with("did you mean `slot-exists`?"), "{refused:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }
}
