use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{BYTES_MAX, only_line};
use crate::connect_error::Error;

/// How long the program may take. Those who open connections wait for 10 s, the inbox for instance.
pub(super) const RUN_MAX: Duration = Duration::from_secs(8);

/// A program that writes a secret to stdout, and its arguments. There is no shell between.
///
/// `Debug` shows the program alone: an argument may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretCommand {
    program: String,
    arguments: Vec<String>,
}

impl SecretCommand {
    /// Takes the program and its arguments; `None` if no program is named.
    #[must_use]
    pub fn new(argv: Vec<String>) -> Option<Self> {
        let mut argv = argv.into_iter();
        let program = argv.next().filter(|it| !it.trim().is_empty())?;
        Some(Self { program, arguments: argv.collect() })
    }

    /// Runs the program for the setting of this name.
    ///
    /// Neither its stdout nor its stderr gets into the error. What takes too long, or is not waited
    /// for any more, is killed, with all processes that it started.
    pub(super) async fn run(&self, setting: &'static str) -> Result<String, Error> {
        let failed = |reason: String| Error::Command {
            setting,
            program: self.program.clone(),
            reason,
            is_started: true,
        };
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut group = Group(child.map_err(|error| Error::Command {
            setting,
            program: self.program.clone(),
            reason: format!("it does not start: {error}"),
            is_started: false,
        })?);
        let late = || failed(format!("it took more than {} s", RUN_MAX.as_secs()));
        let output = timeout(RUN_MAX, group.output()).await.map_err(|_| late())?;
        let (bytes, status) = output.map_err(|error| failed(error.to_string()))?;
        // With too much to write it may have ended by that.
        if !status.success() && bytes.len() <= BYTES_MAX {
            return Err(failed(format!("it ended with {status}")));
        }
        only_line(bytes).map_err(|reason| failed(format!("what it wrote cannot be used: {reason}")))
    }
}

impl fmt::Debug for SecretCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

/// A process and those that it started, killed when nobody waits for it any more.
struct Group(Child);

impl Group {
    async fn output(&mut self) -> std::io::Result<(Vec<u8>, std::process::ExitStatus)> {
        let mut bytes = Vec::new();
        if let Some(stdout) = self.0.stdout.take() {
            stdout.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).await?;
        }
        Ok((bytes, self.0.wait().await?))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Only one that was not waited for has an id: no other process can have it yet.
        let pid = self.0.id().and_then(|it| Pid::from_raw(it.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL); // fails only if all are gone
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: &str = "postgres.password_command";

    fn shell(script: &str) -> SecretCommand {
        let argv = ["sh", "-c", script].map(str::to_owned);
        SecretCommand::new(argv.to_vec()).expect("a program")
    }

    async fn failure(script: &str) -> String {
        let error = shell(script).run(SETTING).await.expect_err(script);
        assert!(error.is_transient() && !error.is_configuration(), "{error:?}");
        let told = format!("{error} {error:?}");
        assert!(!told.contains("s3cret"), "{told}");
        error.to_string()
    }

    #[tokio::test]
    async fn what_a_program_writes_is_the_secret_and_what_it_says_is_not_told() {
        assert_eq!(shell("echo s3cret; echo no >&2").run(SETTING).await.expect("it"), "s3cret");
        let said = failure("echo s3cret; echo s3cret >&2; exit 7").await;
        assert_eq!(said, format!("{SETTING} (sh) gave no secret: it ended with exit status: 7"));
        assert!(failure("true").await.ends_with("what it wrote cannot be used: it is empty"));
        assert!(failure("echo s3cret; echo s3cret").await.contains("more than one line"));
        let endless = "while :; do echo s3crets3crets3crets3crets3cret; done";
        assert!(failure(endless).await.ends_with("it is longer than 64 KiB"));
        assert!(!format!("{:?}", shell("echo s3cret")).contains("s3cret"));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let command = SecretCommand::new(vec!["/no/such/program".into()]).expect("a program");
        let error = command.run(SETTING).await.expect_err("no program");
        assert!(error.is_configuration(), "{error:?}");
        assert!(error.to_string().contains("/no/such/program"), "{error}");
        assert_eq!(SecretCommand::new(Vec::new()), None);
        assert_eq!(SecretCommand::new(vec![" ".into()]), None);
    }

    /// Also one in the background, which has stdout open.
    #[tokio::test]
    async fn a_program_that_nobody_waits_for_is_killed_with_those_that_it_started() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pids = folder.path().join("pids");
        let script =
            format!("sleep 600 & echo $! $$ > {0}.new; mv {0}.new {0}; wait", pids.display());
        let command = shell(&script);
        let run = tokio::spawn(async move { command.run(SETTING).await });
        let pids = loop {
            match std::fs::read_to_string(&pids) {
                Ok(pids) => break pids,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        run.abort();
        assert!(run.await.is_err_and(|it| it.is_cancelled()));
        let is_alive = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        while pids.split_whitespace().any(is_alive) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
