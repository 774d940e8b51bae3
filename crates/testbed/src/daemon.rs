//! Any other program, under the same guard as the servers.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::process::{Program, Server};
use crate::user::User;

const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// A running program that can be killed and paused, in an empty folder of its own.
///
/// Program and folder are gone when this is dropped, and also when this process dies, however it
/// dies.
pub struct Daemon {
    server: Server,
}

impl Daemon {
    /// Starts `program`. Of the environment it sees `env` and the search path, and nothing else.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(program: &Path, args: &[&str], env: &[(String, String)]) -> Result<Self> {
        let mut server = Server::prepare("daemon", User::current(), "KILL")?;
        server.spawn(&Program {
            path: program.to_owned(),
            args: args.iter().map(Into::into).collect(),
            env: Some(env.to_vec()),
        })?;
        Ok(Self { server })
    }

    /// What it wrote to stdout and stderr so far.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// How it ended, if it has. To be asked once after its end.
    ///
    /// # Errors
    ///
    /// When its end was seen before.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.server.exited()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    ///
    /// When it still runs after `deadline`, or its end was seen before.
    pub async fn ended(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.server.ended(deadline).await
    }

    /// Kills it like a crash; it is gone when this returns.
    ///
    /// # Errors
    ///
    /// When its end was seen before.
    pub async fn kill(&mut self) -> Result<()> {
        self.server.signal(Signal::KILL)?;
        self.server.ended(STOP_DEADLINE).await?;
        Ok(())
    }

    /// Stops it in its tracks, until [`Daemon::resume`]. Its connections stay.
    ///
    /// # Errors
    ///
    /// When its end was seen before.
    pub fn pause(&self) -> Result<()> {
        self.server.freeze()?;
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// When its end was seen before.
    pub fn resume(&self) -> Result<()> {
        self.server.thaw()
    }
}
