//! What no relay can beat here: reading the log, publishing to the stream, and both at once.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;

use crate::bare::Bare;
use crate::load::Shape;
use crate::report::Cost;
use crate::stage::Stage;

/// `pg_recvlogical` writes everything up to `end` to nowhere.
pub(crate) async fn log(stage: &Stage<'_>, slot: &str, end: &str, rows: u32) -> Result<Cost> {
    let meter = stage.servers.meter()?;
    let seconds = receive(stage, slot, end).await?;
    meter.cost(seconds, rows)
}

/// A publisher that does nothing else stores as many messages.
pub(crate) async fn publisher(stage: &Stage<'_>, shape: Shape) -> Result<Cost> {
    let mut bare = Bare::new(stage, shape.rows, shape.payload_bytes).await?;
    let meter = stage.servers.meter()?;
    let seconds = bare.publish().await?;
    let cost = meter.cost(seconds, shape.rows)?;
    bare.remove(stage).await?;
    Ok(cost)
}

/// Both side by side; the slower one counts.
pub(crate) async fn both(stage: &Stage<'_>, slot: &str, end: &str, shape: Shape) -> Result<Cost> {
    let mut bare = Bare::new(stage, shape.rows, shape.payload_bytes).await?;
    let meter = stage.servers.meter()?;
    let (read, published) = tokio::join!(receive(stage, slot, end), bare.publish());
    let cost = meter.cost(read?.max(published?), shape.rows)?;
    bare.remove(stage).await?;
    Ok(cost)
}

/// Over TCP, like the relay. Returns the seconds it took.
async fn receive(stage: &Stage<'_>, slot: &str, end: &str) -> Result<f64> {
    let program = stage.servers.postgres.bin_dir().join("pg_recvlogical");
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
        .arg(format!("--port={}", stage.servers.postgres.port()))
        .arg(format!("--dbname={}", stage.name))
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
