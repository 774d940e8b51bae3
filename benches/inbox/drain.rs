//! An inbox handles events that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::http::StatusCode;
use tokio::net::TcpListener;

use crate::bench_env::{BenchEnv, Waiting};
use crate::report::Drain;
use crate::worker::{Mode, Worker};

/// How exact the times are. Asking is load, so it is done this often near the end only.
const POLL: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_millis(200);

/// A handler that does nothing, in the transaction of the record.
pub(crate) async fn transactional(env: &BenchEnv<'_>) -> Result<Drain> {
    drain(env, &env.all, Mode::Transactional, "").await
}

/// A service in this process that says 204.
pub(crate) async fn http(env: &BenchEnv<'_>) -> Result<Drain> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
    let url = format!("http://{}/events", listener.local_addr()?);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let answer = move || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        StatusCode::NO_CONTENT
    };
    let service = axum::serve(listener, Router::new().fallback(answer));
    let service = tokio::spawn(async move { service.await });
    let drained = drain(env, &env.some, Mode::Http, &url).await;
    service.abort();
    let drained = drained?;
    let (calls, events) = (calls.load(Ordering::Relaxed), env.some.count());
    ensure!(calls == u64::from(events), "the service was called {calls} times for {events} events");
    Ok(drained)
}

/// From the start of the process until every message is acknowledged.
async fn drain(env: &BenchEnv<'_>, waiting: &Waiting, mode: Mode, handler: &str) -> Result<Drain> {
    let (count, consumer) = (waiting.count(), mode.consumer());
    let meter = env.servers.meter()?;
    let deadline = meter.started + Duration::from_secs(60) + Duration::from_millis(count.into());
    let worker = Worker::start(env, waiting, mode, handler)?;
    loop {
        let (done, pending) = env.handled(&waiting.stream, consumer).await?;
        if pending == 0 {
            break;
        }
        worker.used()?;
        ensure!(Instant::now() < deadline, "far too slow: {done} of {count} are acknowledged");
        tokio::time::sleep(pause(meter.started.elapsed(), done, count)).await;
    }
    let cost = meter.cost(count)?;
    let used = worker.used()?;
    let drain = Drain {
        cost,
        inbox_us_per_event: used.as_secs_f64() * 1e6 / f64::from(count),
        peak_resident_bytes: worker.peak_resident_bytes()?,
    };
    worker.stop().await?;
    env.check(&waiting.stream, consumer, count).await?;
    Ok(drain)
}

/// Half of the time that the rest will take at this pace.
fn pause(elapsed: Duration, done: u64, count: u32) -> Duration {
    let rest = u64::from(count).saturating_sub(done) as f64;
    elapsed.mul_f64(rest / (2 * done.max(1)) as f64).clamp(POLL, POLL_MAX)
}
