//! The relay as users run it: the release binary, in a process of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::Process;

use crate::cpu;

/// How long a command of the binary may take, or its end.
const DEADLINE: Duration = Duration::from_secs(60);

/// How exact the time of a command is.
const LOOK: Duration = Duration::from_millis(10);

/// Settings for the binary, as environment variables. Nothing of the caller's configuration may
/// change what is measured.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// A running relay. Killed when dropped.
pub(crate) struct Relay {
    process: Process,
    pid: u32,
}

impl Relay {
    /// Starts `tailpost relay`; does not wait until it works.
    ///
    /// # Errors
    ///
    /// When the binary is not built.
    pub(crate) fn start(variables: &Variables) -> Result<Self> {
        let process = start(&["relay"], variables)?;
        Ok(Self { pid: process.pid()?, process })
    }

    /// The relay's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Fails once the relay is no longer there.
    pub(crate) fn check(&self) -> Result<()> {
        cpu::of_process(self.pid)
            .map(drop)
            .with_context(|| format!("the relay ended by itself: {}", self.process.log()))
    }

    /// Kills the relay as the system would when memory runs out. Returns when that was.
    ///
    /// # Errors
    ///
    /// When it has ended before.
    pub(crate) async fn kill(mut self) -> Result<Instant> {
        self.check()?;
        let killed = Instant::now();
        self.process.kill().await?;
        Ok(killed)
    }

    /// Stops the relay as an operator would.
    ///
    /// # Errors
    ///
    /// When it does not end well.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let status = self.process.stop(DEADLINE).await?;
        if !status.success() {
            bail!("the relay ended with {status}: {}", self.process.log());
        }
        Ok(())
    }
}

/// A command that ended well.
pub(crate) struct Ran {
    pub(crate) seconds: f64,
    /// Processor time.
    pub(crate) used: Duration,
    pub(crate) peak_resident_bytes: u64,
    /// What it wrote.
    pub(crate) log: String,
}

/// Runs a command of the binary.
///
/// # Errors
///
/// When the binary is not built, or does not end well within `limit`.
pub(crate) async fn run(variables: &Variables, args: &[&str], limit: Duration) -> Result<Ran> {
    let reaped = cpu::of_reaped()?;
    let started = Instant::now();
    let mut process = start(args, variables)?;
    let mut peak_resident_bytes = 0;
    let status = loop {
        if let Some(status) = process.exited()? {
            break status;
        }
        if started.elapsed() > limit {
            bail!("tailpost {args:?} has not ended within {limit:?}: {}", process.log());
        }
        peak_resident_bytes = process.peak_memory_bytes()?.unwrap_or(0).max(peak_resident_bytes);
        tokio::time::sleep(LOOK).await;
    };
    let seconds = started.elapsed().as_secs_f64();
    let log = process.log();
    if !status.success() {
        bail!("tailpost {args:?} ended with {status}: {log}");
    }
    let used = cpu::of_reaped()?.saturating_sub(reaped);
    Ok(Ran { seconds, used, peak_resident_bytes, log })
}

/// Runs `tailpost setup` with these flags.
///
/// # Errors
///
/// When the binary is not built, or fails.
pub(crate) async fn set_up(variables: &Variables, flags: &[&str]) -> Result<()> {
    let mut setup = start(&[&["setup"], flags].concat(), variables)?;
    if !setup.ended(DEADLINE).await?.success() {
        bail!("tailpost setup failed: {}", setup.log().trim());
    }
    Ok(())
}

/// Starts the binary beside this one, so of the same build profile.
fn start(args: &[&str], variables: &Variables) -> Result<Process> {
    let here = std::env::current_exe().context("find this program")?;
    let binary = here.parent().unwrap_or(Path::new("/")).join("tailpost");
    if !binary.is_file() {
        bail!("{} is missing: cargo build --release --bin tailpost", binary.display());
    }
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    Process::start(&binary, args, &variables.collect::<Vec<_>>())
}
