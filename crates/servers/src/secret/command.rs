use std::fmt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{BYTES_MAX, only_line};
use crate::Backoff;
use crate::error::Error;

/// How long the program may take. Those who open connections wait for 10 s, the inbox for instance.
pub(super) const RUN_MAX: Duration = Duration::from_secs(8);

/// A program that writes a secret to stdout, and its arguments. There is no shell between.
///
/// A program that failed is run again after a second, then after two, and so on up to half a minute:
/// a run may cost a request to somebody's API. All clones share this.
///
/// `Debug` shows the program alone: an argument may be a secret.
#[derive(Clone)]
pub struct SecretCommand {
    program: String,
    arguments: Vec<String>,
    runs: Arc<Mutex<Runs>>,
}

/// How the last runs of a program ended.
#[derive(Default)]
struct Runs {
    /// In a row.
    failures: u32,
    failed: Option<Failed>,
}

struct Failed {
    why: Failure,
    at: Instant,
    /// When it may run again.
    again_at: Instant,
}

/// Why there is no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    reason: String,
    is_started: bool,
}

impl Runs {
    /// Whether the program may run now; if not, why it failed last.
    fn begin(&mut self, now: Instant) -> Result<(), Failure> {
        let Some(failed) = &mut self.failed else { return Ok(()) };
        if now < failed.again_at {
            return Err(failed.why.clone());
        }
        // Nobody else runs it meanwhile. Whoever does may leave without a word.
        failed.again_at = now + RUN_MAX;
        Ok(())
    }

    fn succeeded(&mut self) {
        *self = Self::default();
    }

    fn failed(&mut self, why: Failure, began: Instant, now: Instant) {
        // Runs that were under way at the same time failed for one reason.
        if self.failed.as_ref().is_some_and(|last| began < last.at) {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let again_at = now + Backoff::PROGRAM.after(self.failures);
        self.failed = Some(Failed { why, at: now, again_at });
    }
}

impl SecretCommand {
    /// Takes the program and its arguments; `None` if no program is named.
    pub fn new(argv: Vec<String>) -> Option<Self> {
        let mut argv = argv.into_iter();
        let program = argv.next().filter(|it| !it.trim().is_empty())?;
        Some(Self { program, arguments: argv.collect(), runs: Arc::default() })
    }

    /// Runs the program for the setting of this name, unless it failed a moment ago.
    ///
    /// Neither its stdout nor its stderr gets into the error. What takes too long, or is not waited
    /// for any more, is killed, with all processes that it started.
    pub(super) async fn run(&self, setting: &'static str) -> Result<String, Error> {
        let refused = |Failure { reason, is_started }| {
            let program = self.program.clone();
            Error::Command { setting, program, reason, is_started }
        };
        let began = Instant::now();
        self.runs().begin(began).map_err(refused)?;
        match self.run_now().await {
            Ok(secret) => {
                self.runs().succeeded();
                Ok(secret)
            }
            Err(why) => {
                self.runs().failed(why.clone(), began, Instant::now());
                Err(refused(why))
            }
        }
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run_now(&self) -> Result<String, Failure> {
        let failed = |reason| Failure { reason, is_started: true };
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut group = Group(child.map_err(|error| Failure {
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

impl PartialEq for SecretCommand {
    fn eq(&self, other: &Self) -> bool {
        (&self.program, &self.arguments) == (&other.program, &other.arguments)
    }
}

impl Eq for SecretCommand {}

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

    #[tokio::test]
    async fn a_program_that_failed_is_not_run_again_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let runs = folder.path().join("runs");
        let command = shell(&format!("echo run >> {}; exit 7", runs.display()));
        let first = command.run(SETTING).await.expect_err("it fails").to_string();
        assert!(first.ends_with("it ended with exit status: 7"), "{first}");
        let second = command.clone().run(SETTING).await.expect_err("it has failed").to_string();
        assert_eq!(first, second, "for the same reason");
        assert_eq!(std::fs::read_to_string(runs).expect("it ran"), "run\n");
    }

    #[test]
    fn a_program_that_fails_is_run_less_and_less_often_and_one_that_works_as_often_as_needed() {
        let why = || Failure { reason: "exit status: 7".into(), is_started: true };
        let began = Instant::now();
        let mut runs = Runs::default();
        let mut ran = Vec::new();
        for tenth in 0..1_200 {
            let now = began + Duration::from_millis(100) * tenth;
            if runs.begin(now) == Ok(()) {
                ran.push(tenth / 10);
                assert_eq!(runs.begin(now).is_ok(), tenth == 0, "one at a time once it has failed");
                let ended = now + Duration::from_millis(50);
                runs.failed(why(), now, ended);
                // Another one that was under way.
                runs.failed(why(), now, ended);
            }
        }
        assert_eq!(ran, [0, 1, 3, 7, 15, 31, 61, 91]);

        let later = began + Duration::from_mins(3);
        assert_eq!(runs.begin(later), Ok(()));
        assert_eq!(runs.begin(later + RUN_MAX), Ok(()), "who ran it has left");
        runs.succeeded();
        assert_eq!(runs.begin(later), Ok(()));
        assert_eq!(runs.begin(later), Ok(()));
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
