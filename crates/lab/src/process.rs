//! A program of ours as a process, beside the servers.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::server::{Program, Server};
use crate::user::User;

/// Variables that a program needs wherever it runs. It gets no others but those it is given.
const INHERITED: [&str; 4] = ["PATH", "HOME", "TMPDIR", "RUST_BACKTRACE"];

/// A program as a process that can be killed, paused, asked to stop, and started again.
///
/// It runs in an empty folder, and is gone with it when this is dropped or this process dies.
pub struct Process {
    server: Server,
    binary: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Process {
    /// Starts the program with these arguments and variables.
    ///
    /// # Errors
    ///
    /// When there is no such program.
    pub fn start(binary: &Path, args: &[&str], env: &[(String, String)]) -> Result<Self> {
        let user = User::current();
        let server = Server::prepare("worker", &user.temp_dir(), user, "KILL")?;
        let inherited = INHERITED.iter().filter_map(|name| {
            let value = std::env::var(name).ok()?;
            Some(((*name).to_owned(), value))
        });
        let mut worker = Self {
            server,
            binary: binary.to_owned(),
            args: args.iter().map(|it| (*it).to_owned()).collect(),
            env: inherited.chain(env.iter().cloned()).collect(),
        };
        worker.start_again()?;
        Ok(worker)
    }

    /// Starts the ended program again, as before.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start_again(&mut self) -> Result<()> {
        self.server.spawn(&Program {
            path: self.binary.clone(),
            args: self.args.iter().map(Into::into).collect(),
            env: Some(self.env.clone()),
        })
    }

    /// Changes a variable for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Kills the process like a crash; it is gone when this returns.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub async fn kill(&mut self) -> Result<()> {
        self.server.kill().await.with_context(|| format!("kill {}", self.name()))
    }

    /// Asks the process to stop, and waits until it has.
    ///
    /// # Errors
    ///
    /// When it is not running, or still does after `deadline`.
    pub async fn stop(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.server.signal(Signal::TERM).with_context(|| format!("stop {}", self.name()))?;
        self.ended(deadline).await
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    ///
    /// When it is not running, or still does after `deadline`.
    pub async fn ended(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.server.ended(deadline).await.with_context(|| format!("wait for {}", self.name()))
    }

    /// How the process ended, if it has.
    ///
    /// # Errors
    ///
    /// When that was told before, or the process was never started.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.server.exited()
    }

    /// Stops the process in its tracks, until [`Process::resume`]. Its connections stay.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn pause(&self) -> Result<()> {
        self.server.freeze().map(drop).with_context(|| format!("pause {}", self.name()))
    }

    /// Lets a paused process go on.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn resume(&self) -> Result<()> {
        self.server.thaw().with_context(|| format!("resume {}", self.name()))
    }

    /// The process's id.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn pid(&self) -> Result<u32> {
        self.server.pid()
    }

    /// What the process wrote to stderr so far, over all its lives.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// The most memory that the running process ever had, in bytes; `None` where the system does
    /// not tell.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn peak_memory_bytes(&self) -> Result<Option<u64>> {
        Ok(peak_memory_bytes(self.server.pid()?))
    }

    fn name(&self) -> String {
        format!("{} {}", self.binary.display(), self.args.join(" "))
    }
}

/// The most memory that a process ever had, in bytes; `None` if it has ended, or where the system
/// does not tell.
pub fn peak_memory_bytes(pid: u32) -> Option<u64> {
    told(pid, "VmHWM:")
}

/// Memory of a process that shows what is in files, in bytes: mostly its code, which grows as it is
/// run; `None` as for [`peak_memory_bytes`].
pub fn file_memory_bytes(pid: u32) -> Option<u64> {
    told(pid, "RssFile:")
}

/// A line of what Linux says of a process, in bytes.
fn told(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let told = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(told.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}
