//! The relay as users run it: the release binary, in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::cpu;

/// Starts the relay, says its pid, and ends it when the input ends: when this process closes the
/// pipe, or is gone, however it went.
const LEASH: &str = r#""$@" </dev/null >&2 & pid=$!; echo "$pid"; read -r _; kill -TERM "$pid" 2>&-; wait "$pid" 2>&-"#;

/// Settings for the binary, as environment variables.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// A running relay. Stopped when dropped, then without waiting for its end.
pub(crate) struct Relay {
    pid: u32,
    leash: Child,
    hold: ChildStdin,
}

impl Relay {
    /// Starts `tailpost relay`; does not wait until it works.
    ///
    /// # Errors
    ///
    /// When the binary is not built.
    pub(crate) async fn start(variables: &Variables) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", LEASH, "sh"]).arg(binary()?).arg("relay");
        clean(&mut command, variables);
        // Ctrl-C is for this process, which then takes the relay along.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut leash = command.spawn().context("start the relay")?;
        let hold = leash.stdin.take().context("hold the relay's leash")?;
        let mut output = BufReader::new(leash.stdout.take().context("read the relay's pid")?);
        let mut line = String::new();
        output.read_line(&mut line).await.context("read the relay's pid")?;
        let pid = line.trim().parse().context("read the relay's pid")?;
        Ok(Self { pid, leash, hold })
    }

    /// The relay's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Fails once the relay is no longer there.
    pub(crate) fn check(&self) -> Result<()> {
        cpu::of_process(self.pid).map(drop).context("the relay ended by itself")
    }

    /// Kills the relay as the system would when memory runs out. Returns when that was.
    ///
    /// # Errors
    ///
    /// When it has ended before.
    pub(crate) fn kill(self) -> Result<Instant> {
        self.check()?;
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let killed = Instant::now();
        kill_process(pid.context("the relay has no pid")?, Signal::KILL)
            .context("kill the relay")?;
        Ok(killed)
    }

    /// Stops the relay as an operator would.
    ///
    /// # Errors
    ///
    /// When it does not end well.
    pub(crate) async fn stop(mut self) -> Result<()> {
        drop(self.hold);
        let status = self.leash.wait().await.context("wait for the relay")?;
        if !status.success() {
            bail!("the relay ended with {status}");
        }
        Ok(())
    }
}

/// Runs `tailpost setup` with these flags.
///
/// # Errors
///
/// When the binary is not built, or fails.
pub(crate) async fn set_up(variables: &Variables, flags: &[&str]) -> Result<()> {
    let mut command = Command::new(binary()?);
    command.arg("setup").args(flags);
    clean(&mut command, variables);
    let output = command.output().await.context("run tailpost setup")?;
    if !output.status.success() {
        bail!("tailpost setup failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Nothing of the caller's configuration may change what is measured.
fn clean(command: &mut Command, variables: &Variables) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null());
}

/// The binary beside this one, so of the same build profile.
fn binary() -> Result<PathBuf> {
    let here = std::env::current_exe().context("find this program")?;
    let binary = here.parent().unwrap_or(Path::new("/")).join("tailpost");
    if !binary.is_file() {
        bail!("{} is missing: cargo build --release --bin tailpost", binary.display());
    }
    Ok(binary)
}
