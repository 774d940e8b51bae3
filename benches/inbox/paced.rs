//! Events come at a steady pace: how long until the service is called with each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;

use crate::bench_env::BenchEnv;
use crate::report::Latency;
use crate::worker::{Mode, Worker};

/// Events a second.
pub(crate) const PACE: u32 = 500;

/// The first ones meet connections that are not open yet.
const WARM_UP: usize = 250;

const PATIENCE: Duration = Duration::from_secs(60);

type Calls = Arc<Mutex<HashMap<String, Instant>>>;

/// From when an event is due to be stored until the service has it, signed and all.
pub(crate) async fn http(env: &BenchEnv<'_>) -> Result<Latency> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
    let url = format!("http://{}/events", listener.local_addr()?);
    let calls = Calls::default();
    let noted = Arc::clone(&calls);
    let answer = move |headers: HeaderMap| async move {
        let id = headers.get("webhook-id").and_then(|it| it.to_str().ok()).unwrap_or_default();
        let mut calls = noted.lock().unwrap_or_else(PoisonError::into_inner);
        calls.entry(id.to_owned()).or_insert_with(Instant::now);
        StatusCode::NO_CONTENT
    };
    let service = axum::serve(listener, Router::new().fallback(answer));
    let service = tokio::spawn(async move { service.await });
    let worker = Worker::start(env, &env.paced, Mode::Http, &url)?;
    let (count, consumer) = (env.paced.count(), Mode::Http.consumer());
    let deadline = Instant::now() + PATIENCE;
    while env.handled(&env.paced.stream, consumer).await?.1 == u64::MAX {
        ensure!(Instant::now() < deadline, "the inbox does not begin");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let due = env.store_at_pace(PACE).await?;
    let deadline = Instant::now() + PATIENCE;
    while env.handled(&env.paced.stream, consumer).await?.1 > 0 {
        worker.used()?;
        ensure!(Instant::now() < deadline, "far too slow");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    worker.stop().await?;
    service.abort();
    env.check(&env.paced.stream, consumer, count).await?;
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    let mut took = Vec::with_capacity(due.len());
    for (event, due) in env.paced.events.iter().zip(due).skip(WARM_UP) {
        let called = calls.get(&event.id.to_string()).context("an event reached no service")?;
        took.push(called.saturating_duration_since(due));
    }
    took.sort_unstable();
    let percentile = |of: usize| took[(took.len() - 1) * of / 100].as_secs_f64() * 1e3;
    Ok(Latency { p50_ms: percentile(50), p99_ms: percentile(99) })
}
