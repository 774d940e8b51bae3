//! `tailpost relay` as a process.

use anyhow::{Context, Result, bail};
use testbed::Worker;

use super::logs::Logs;
use super::wait::{DEADLINE, until};

/// A relay that can be killed and paused; gone with this.
pub(super) struct Relay {
    name: String,
    daemon: Worker,
    logs: Logs,
}

/// Runs this program with `args` to its end.
///
/// # Errors
///
/// When it fails, with what it said.
pub(super) async fn run_to_end(args: &[&str], env: &[(String, String)]) -> Result<()> {
    let mut daemon = start(args, env)?;
    let status = daemon.ended(DEADLINE).await?;
    if !status.success() {
        bail!("`tailpost {}` failed ({status}): {}", args.join(" "), daemon.log());
    }
    Ok(())
}

fn start(args: &[&str], env: &[(String, String)]) -> Result<Worker> {
    let program = std::env::current_exe().context("find this program")?;
    Worker::start(&program, args, env)
}

impl Relay {
    pub(super) fn start(name: String, env: &[(String, String)], logs: &Logs) -> Result<Self> {
        Ok(Self { name, daemon: start(&["relay"], env)?, logs: logs.clone() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Like a crash: SIGKILL.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.check()?;
        self.daemon.kill().await
    }

    /// SIGSTOP: it believes that no time passes.
    pub(super) fn pause(&self) -> Result<()> {
        self.daemon.pause()
    }

    pub(super) fn resume(&self) -> Result<()> {
        self.daemon.resume()
    }

    /// Fails if it ended, which no fault is a reason for.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.daemon.exited()? {
            let log = self.daemon.log();
            let last = log.lines().rev().take(5).collect::<Vec<_>>();
            bail!("{} ended by itself ({status}):\n{}", self.name, last.join("\n"));
        }
        Ok(())
    }

    /// Waits until the log contains `text`.
    pub(super) async fn wait_log(&self, text: &str) -> Result<()> {
        let what = format!("{} says `{text}`", self.name);
        until(&what, async || Ok(self.daemon.log().contains(text))).await
    }

    pub(super) async fn wait_active(&self) -> Result<()> {
        self.wait_log("the slot is ours").await
    }

    pub(super) async fn wait_standby(&self) -> Result<()> {
        self.wait_log("standing by").await
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.logs.add(&self.name, &self.daemon.log());
    }
}
