//! Server processes that cannot outlive their owner.
//!
//! Each server has a *guard*: a tiny shell that reads from a pipe whose other end the owner holds.
//! When the pipe closes, because the owner dropped the server or because the owner is dead, even by
//! SIGKILL, the guard ends the server and removes its folder. Dropping takes the same way as dying,
//! so the way is well trodden.
//!
//! ```text
//! owner ──holds──▶ pipe ──▶ guard: on end of file, end the doomed processes, remove the folder
//!   └──starts──▶ shell: write own pid into the pipe, then become the server
//! ```
//!
//! The server's pid reaches the guard from the server itself, before it becomes the server, so
//! there is no instant at which the owner's death leaves it unguarded. `PR_SET_PDEATHSIG` would be
//! shorter, but it fires when the *thread* that started the process ends, and threads of a runtime
//! come and go.
//!
//! Guard and server have process groups of their own: Ctrl-C in a terminal reaches the owner only,
//! which then stops things in the order it likes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::process_table;
use crate::user::User;

const POLL: Duration = Duration::from_millis(5);

/// How long the guard lets a server end by itself, plus time to remove the folder.
const GUARD_DEADLINE: Duration = Duration::from_secs(15);

const STOPPED_DEADLINE: Duration = Duration::from_secs(10);

/// Tells the guard its pid, then becomes the server.
const BECOME: &str = r#"echo "$$" && exec "$@" >&2"#;

/// `$1` is the folder to remove, `$2` the signal that ends the server. Each line of the input
/// replaces the list of doomed processes. PostgreSQL killed by `KILL` leaves a shared memory
/// segment behind: `postmaster.pid` names it.
const GUARD: &str = r#"
trap '' HUP INT TERM
folder=$1 signal=$2 doomed=
while read -r line; do doomed=$line; done
alive() {
  for pid in $doomed; do kill -0 "$pid" && return 0; done
  return 1
}
if [ -n "$doomed" ]; then
  kill -s "$signal" $doomed
  kill -s CONT $doomed
  tries=0
  while alive && [ "$tries" -lt 300 ]; do sleep 0.02; tries=$((tries + 1)); done
  kill -s KILL $doomed
fi
if [ -f "$folder/data/postmaster.pid" ]; then
  set -- $(sed -n 7p "$folder/data/postmaster.pid")
  [ -n "${2-}" ] && ipcrm -m "$2"
fi
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$folder" && break; sleep 0.1; done
"#;

/// What to run.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// All of its variables; those of this process if `None`.
    pub(crate) env: Option<Vec<(String, String)>>,
}

/// A folder and at most one server process in it, both gone when this is dropped or its owner dies.
pub(crate) struct Server {
    folder: PathBuf,
    user: User,
    guard: Child,
    // Taken by `drop` only: closing it sets the guard off.
    doomed: Option<PipeWriter>,
    child: Option<Child>,
}

impl Server {
    /// Makes an empty folder below `parent` for a server to come. `end_signal` is what ends the
    /// server when its owner is gone.
    pub(crate) fn prepare(kind: &str, parent: &Path, user: User, end_signal: &str) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("tailpost-{kind}-"))
            .tempdir_in(parent)
            .context("create a folder for the server")?;
        user.own(folder.path())?;

        let (reader, writer) = std::io::pipe().context("create the guard's pipe")?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "tailpost-guard"])
            .arg(folder.path())
            .arg(end_signal)
            .current_dir("/")
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start the server's guard")?;
        Ok(Self { folder: folder.keep(), user, guard, doomed: Some(writer), child: None })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn user(&self) -> &User {
        &self.user
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What the server said so far, over all its lives.
    pub(crate) fn log(&self) -> String {
        fs::read(self.log_path()).map_or_else(
            |error| format!("(no log: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Starts the server; it must not be running.
    pub(crate) fn spawn(&mut self, program: &Program) -> Result<()> {
        assert!(self.child.is_none(), "one process at a time");
        let log = self.open_log()?;
        let doomed = self.doomed.as_ref().expect("held until drop").try_clone()?;
        let mut command = Command::new("sh");
        command
            .args(["-c", BECOME, "sh"])
            .arg(&program.path)
            .args(&program.args)
            .current_dir(&self.folder);
        if let Some(env) = &program.env {
            command.env_clear().envs(env.iter().map(|(name, value)| (name, value)));
        }
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(doomed).stderr(log).process_group(0);
        self.user.apply(&mut command);
        let child = command.spawn().with_context(|| format!("start {}", program.path.display()))?;
        self.child = Some(child);
        Ok(())
    }

    fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("open {}", path.display()))?;
        self.user.own(&path)?;
        Ok(log)
    }

    /// The running server's process id.
    pub(crate) fn pid(&self) -> Result<u32> {
        self.child.as_ref().map(Child::id).context("the server is not running")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let child = self.child.as_ref().context("the server is not running")?;
        // The child has not been waited for, so its pid cannot belong to another process.
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// How the server ended, if it has.
    pub(crate) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { bail!("the server is not running") };
        let status = child.try_wait()?;
        if status.is_some() {
            self.child = None;
            self.doom(&[])?;
        }
        Ok(status)
    }

    /// Waits until the server has ended.
    pub(crate) async fn ended(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if started.elapsed() > deadline {
                bail!("the server did not end within {deadline:?}; its log ends:\n{}", self.tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until a server of this name answers.
    pub(crate) async fn ready(
        &mut self,
        name: &str,
        deadline: Duration,
        mut answers: impl AsyncFnMut() -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        loop {
            let Err(error) = answers().await else { return Ok(()) };
            if let Some(status) = self.exited()? {
                bail!("{name} did not start ({status}); its log ends:\n{}", self.tail());
            }
            if started.elapsed() > deadline {
                let log = self.tail();
                return Err(error.context(format!("{name} is not ready; its log ends:\n{log}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The last lines of the log, for error messages.
    pub(crate) fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Kills the server and its children; returns when none of them exists any more.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        let deadline = Duration::from_secs(20);
        let children = self.freeze()?;
        for &child in &children {
            send(child, Signal::KILL);
        }
        self.signal(Signal::KILL)?;
        self.ended(deadline).await?;
        let started = Instant::now();
        while process_table::any_alive(&children)? {
            if started.elapsed() > deadline {
                bail!("children of the killed server did not end within {deadline:?}");
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Stops the server and its children in their tracks, until [`Server::thaw`]. Returns the
    /// children.
    pub(crate) fn freeze(&self) -> Result<Vec<u32>> {
        let pid = self.pid()?;
        // The parent first: then there will be no further children.
        self.signal(Signal::STOP)?;
        wait_until_stopped(&[pid])?;
        let children = process_table::children_of(pid)?;
        let doomed: Vec<u32> = std::iter::once(pid).chain(children.iter().copied()).collect();
        self.doom(&doomed)?;
        for &child in &children {
            send(child, Signal::STOP);
        }
        wait_until_stopped(&doomed)?;
        Ok(children)
    }

    /// Lets the server and its children go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        let pid = self.pid()?;
        for child in process_table::children_of(pid)? {
            send(child, Signal::CONT);
        }
        self.signal(Signal::CONT)?;
        self.doom(&[pid])
    }

    /// Tells the guard which processes to end when the owner is gone.
    fn doom(&self, pids: &[u32]) -> Result<()> {
        let list: Vec<String> = pids.iter().map(u32::to_string).collect();
        let mut pipe = self.doomed.as_ref().expect("held until drop");
        writeln!(pipe, "{}", list.join(" ")).context("tell the server's guard")
    }

    /// Writes a file that the server's user owns and only it may read.
    pub(crate) fn write_private(&self, path: &Path, contents: &str) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        fs::write(path, contents).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        self.user.own(path)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.doomed.take());
        let started = Instant::now();
        // The guard sees a child that nobody waits for as still running, so wait for both.
        let mut server_ended = self.child.is_none();
        while started.elapsed() < GUARD_DEADLINE {
            if let Some(child) = &mut self.child {
                server_ended |= matches!(child.try_wait(), Ok(Some(_)) | Err(_));
            }
            let guard_ended = matches!(self.guard.try_wait(), Ok(Some(_)) | Err(_));
            if server_ended && guard_ended {
                break;
            }
            if guard_ended {
                // Someone killed the guard: do its work.
                self.child.as_mut().map(Child::kill);
            }
            std::thread::sleep(POLL);
        }
        if self.folder.exists() {
            // Best effort: a destructor has nobody to tell.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Blocks, for moments: threads stop as soon as they are scheduled.
fn wait_until_stopped(pids: &[u32]) -> Result<()> {
    let started = Instant::now();
    while !process_table::all_stopped(pids) {
        if started.elapsed() > STOPPED_DEADLINE {
            bail!("processes {pids:?} have not stopped after {STOPPED_DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn send(pid: u32, signal: Signal) {
    // A process that is gone already needs no signal.
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
