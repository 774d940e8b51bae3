//! What no relay can beat here: reading the log, publishing to the stream, and both at once.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;

use crate::bare::Bare;
use crate::bench_env::BenchEnv;
use crate::load::Shape;
use crate::measured::Cost;

/// `pg_recvlogical` writes everything up to `end` to nowhere.
pub(crate) async fn log(env: &BenchEnv<'_>, slot: &str, end: &str, rows: u32) -> Result<Cost> {
    let meter = env.servers.meter()?;
    let seconds = receive(env, slot, end).await?;
    meter.cost(seconds, rows)
}

/// A publisher that does nothing else stores as many messages.
pub(crate) async fn publisher(env: &BenchEnv<'_>, shape: Shape) -> Result<Cost> {
    let mut bare = Bare::new(env, shape.rows, shape.payload_bytes).await?;
    let meter = env.servers.meter()?;
    let seconds = bare.publish().await?;
    let cost = meter.cost(seconds, shape.rows)?;
    bare.remove(env).await?;
    Ok(cost)
}

/// Both side by side; the slower one counts.
pub(crate) async fn both(env: &BenchEnv<'_>, slot: &str, end: &str, shape: Shape) -> Result<Cost> {
    let mut bare = Bare::new(env, shape.rows, shape.payload_bytes).await?;
    let meter = env.servers.meter()?;
    let (read, published) = tokio::join!(receive(env, slot, end), bare.publish());
    let cost = meter.cost(read?.max(published?), shape.rows)?;
    bare.remove(env).await?;
    Ok(cost)
}

/// Over TCP, like the relay. Returns the seconds it took.
async fn receive(env: &BenchEnv<'_>, slot: &str, end: &str) -> Result<f64> {
    let program = env.servers.postgres.bin_dir().join("pg_recvlogical");
    ensure!(program.is_file(), "this PostgreSQL has no {}", program.display());
    let started = Instant::now();
    let output = Command::new(program)
        .args([
            "--start",
            "--no-loop",
            "--file=/dev/null",
            "--host=127.0.0.1",
            "--username=postgres",
        ])
        .arg(format!("--port={}", env.servers.postgres.port()))
        .arg(format!("--dbname={}", env.name))
        .arg(format!("--slot={slot}"))
        .arg(format!("--endpos={end}"))
        .args(["--option=proto_version=1", "--option=publication_names=tailpost"])
        .arg("--option=binary=true")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("run pg_recvlogical")?;
    let seconds = started.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("pg_recvlogical failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(seconds)
}
