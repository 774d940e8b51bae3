//! `/api/v1/verify`: `tailpost verify` as work of the relay's process, one run at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use operate::verify_rules::KindCount;
use operate::{VerifyOptions, VerifyProgress};
use relay::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::access::Caller;
use super::api::{Body, json};
use super::openapi::{Api, Operation};
use super::problem::ApiError;
use crate::output::Versioned;

const PATH: &str = "/api/v1/verify";

/// The run under way, and the last that ended.
#[derive(Clone)]
pub(super) struct Verify {
    config: Arc<Config>,
    runs: Arc<Mutex<Runs>>,
}

#[derive(Default)]
struct Runs {
    running: Option<Running>,
    last: Option<Ended>,
}

struct Running {
    run: Run,
    progress: watch::Receiver<VerifyProgress>,
    task: AbortHandle,
}

/// Who wanted what, and when.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Run {
    by: String,
    began_at: Timestamp,
    request: VerifyRequest,
}

/// What is compared.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct VerifyRequest {
    /// Only what was stored then or later
    #[serde(default)]
    since: Option<Timestamp>,
    /// One event of so many
    #[serde(default)]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    sample: Option<u32>,
    #[serde(default)]
    by: Option<String>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Ended {
    #[serde(flatten)]
    run: Run,
    ended_at: Timestamp,
    /// Why it has no result, if it has none.
    error: Option<String>,
    result: Option<Comparison>,
}

/// What was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Comparison {
    rows: u64,
    matched: u64,
    pending: u64,
    seconds: f64,
    /// How many of each kind; none if all is well.
    findings: Vec<KindFound>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct KindFound {
    title: &'static str,
    count: u64,
    remedy: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct Under {
    #[serde(flatten)]
    run: Run,
    /// Rows and messages that were read.
    read: u64,
    /// About how many there are; 0 before it is known.
    expected: u64,
}

#[derive(Serialize, JsonSchema)]
struct Shown {
    running: Option<Under>,
    last: Option<Ended>,
}

impl Runs {
    /// The run that ends, if one is under way.
    fn end(&mut self, error: Option<String>, result: Option<Comparison>) -> Option<AbortHandle> {
        let Running { run, task, .. } = self.running.take()?;
        self.last = Some(Ended { run, ended_at: Timestamp::now(), error, result });
        Some(task)
    }
}

impl Verify {
    /// `config` has no pool: a run takes connections of its own.
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self { config, runs: Arc::default() }
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> Result<Response, ApiError> {
        let runs = self.runs();
        let running = runs.running.as_ref().map(|it| {
            let progress = it.progress.borrow();
            Under { run: it.run.clone(), read: progress.read, expected: progress.expected }
        });
        json(&Shown { running, last: runs.last.clone() })
    }

    fn begin(&self, run: Run) -> Result<(), ApiError> {
        let mut runs = self.runs();
        if runs.running.is_some() {
            let detail = "a comparison is under way";
            return Err(ApiError::new(StatusCode::CONFLICT, detail));
        }
        let VerifyRequest { since, sample, .. } = run.request;
        let options = VerifyOptions { since, from_lsn: None, sample: sample.unwrap_or(1) };
        let (sender, progress) = watch::channel(VerifyProgress::default());
        let this = self.clone();
        let work = async move {
            match operate::verify(&this.config, &options, &sender).await {
                Ok(report) => {
                    let found = |it: &KindCount| KindFound {
                        title: it.kind.title(),
                        count: it.count,
                        remedy: it.kind.remedy(),
                    };
                    let result = Comparison {
                        rows: report.rows,
                        matched: report.matched,
                        pending: report.pending,
                        seconds: report.seconds,
                        findings: report.counts.iter().map(found).collect(),
                    };
                    info!(rows = result.rows, kinds = result.findings.len(), "compared");
                    this.runs().end(None, Some(result));
                }
                Err(error) => {
                    let error = crate::errors::chain(&error.into());
                    warn!(error, "could not compare table and stream");
                    this.runs().end(Some(error), None);
                }
            }
        };
        // It cannot end before it is known: the lock is held.
        let task = tokio::spawn(work).abort_handle();
        runs.running = Some(Running { run, progress, task });
        Ok(())
    }
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(verify: Verify) -> Api<S> {
    let show_all = Operation::get(PATH, "Shows the last comparison of table and stream")
        .answers::<Versioned<Shown>>(200, "The last, and the one under way");
    let start = Operation::post(PATH, "Compares table and stream")
        .body::<VerifyRequest>()
        .answers::<Versioned<Shown>>(202, "It has begun");
    let cancel_one = Operation::delete(PATH, "Ends the comparison under way")
        .body::<serde_json::Value>()
        .answers_nothing(202, "It ends");
    Api::new().on(show_all, show).on(start, begin).on(cancel_one, cancel).with_state(verify)
}

async fn show(State(verify): State<Verify>) -> Result<Response, ApiError> {
    verify.shown()
}

async fn begin(
    State(verify): State<Verify>,
    caller: Caller,
    Body(mut request): Body<VerifyRequest>,
) -> Result<Response, ApiError> {
    if request.sample == Some(0) {
        let detail = "`sample` is at least 1";
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let by = caller.name(request.by.take());
    info!(by, "comparing table and stream");
    verify.begin(Run { by, began_at: Timestamp::now(), request })?;
    Ok((StatusCode::ACCEPTED, verify.shown()?).into_response())
}

async fn cancel(State(verify): State<Verify>) -> Result<StatusCode, ApiError> {
    let task = verify.runs().end(Some("cancelled".into()), None);
    let none = || ApiError::new(StatusCode::CONFLICT, "no comparison is under way");
    task.ok_or_else(none)?.abort();
    Ok(StatusCode::ACCEPTED)
}
