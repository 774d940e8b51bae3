//! `tailpost relay` and `tailpost inbox run` as processes.

use crate::process::Process;
use anyhow::{Context, Result, bail};

use super::logs::Logs;
use super::wait::{DEADLINE, until};

/// A relay or an inbox that can be killed and paused; gone with this.
pub(super) struct Daemon {
    name: String,
    process: Process,
    logs: Logs,
}

/// Runs this program with `args` to its end.
///
/// # Errors
///
/// When it fails, with what it said.
pub(super) async fn run_to_end(args: &[&str], env: &[(String, String)]) -> Result<()> {
    let mut process = start(args, env)?;
    let status = process.ended(DEADLINE).await?;
    if !status.success() {
        bail!("`tailpost {}` failed ({status}): {}", args.join(" "), process.log());
    }
    Ok(())
}

fn start(args: &[&str], env: &[(String, String)]) -> Result<Process> {
    let program = std::env::current_exe().context("find this program")?;
    Process::start(&program, args, env)
}

impl Daemon {
    pub(super) fn relay(name: String, env: &[(String, String)], logs: &Logs) -> Result<Self> {
        Ok(Self { name, process: start(&["relay"], env)?, logs: logs.clone() })
    }

    /// An inbox that hands the events of `consumer` to the service at `url`.
    pub(super) fn inbox(
        name: String,
        consumer: &str,
        url: &str,
        env: &[(String, String)],
        logs: &Logs,
    ) -> Result<Self> {
        let args = ["inbox", "run", "--consumer", consumer, "--handler", url];
        Ok(Self { name, process: start(&args, env)?, logs: logs.clone() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Like a crash: SIGKILL.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.check()?;
        self.process.kill().await
    }

    /// Like a deploy: SIGTERM, and it finishes what it has begun.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.check()?;
        let status = self.process.stop(DEADLINE).await?;
        if !status.success() {
            bail!("{} did not stop cleanly ({status})", self.name);
        }
        Ok(())
    }

    /// SIGSTOP: it believes that no time passes.
    pub(super) fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    pub(super) fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// Fails if it ended, which no fault is a reason for.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.ended()? {
            Some(last) => bail!("{} ended by itself, {last}", self.name),
            None => Ok(()),
        }
    }

    /// Its status and what it said last, if it ended. To be asked no more then.
    pub(super) fn ended(&mut self) -> Result<Option<String>> {
        let Some(status) = self.process.exited()? else { return Ok(None) };
        let log = self.process.log();
        let last = log.lines().skip(log.lines().count().saturating_sub(5)).collect::<Vec<_>>();
        Ok(Some(format!("{status}:\n{}", last.join("\n"))))
    }

    /// The most memory that it has had.
    pub(super) fn peak_memory_bytes(&self) -> Result<u64> {
        self.process.peak_memory_bytes()?.with_context(|| format!("{} has ended", self.name))
    }

    /// Waits until the log contains `text`.
    pub(super) async fn wait_log(&self, text: &str) -> Result<()> {
        let what = format!("{} says `{text}`", self.name);
        until(&what, async || Ok(self.process.log().contains(text))).await
    }

    /// Waits until it has the slot.
    pub(super) async fn wait_active(&self) -> Result<()> {
        self.wait_log("the slot is ours").await
    }

    pub(super) async fn wait_standby(&self) -> Result<()> {
        self.wait_log("standing by").await
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.logs.add(&self.name, &self.process.log());
    }
}
