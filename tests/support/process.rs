//! Our own binary, as a process that can be killed, paused and asked to stop.

use std::fs::{self, File};
use std::io::PipeWriter;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::{DEADLINE, until};

/// Lines of the log that a failing test shows.
const LOG_TAIL: usize = 80;

/// A running `tailpost` of any command, mostly `relay`.
///
/// Dropping it kills it. The test then fails if it logged an error that was not announced by
/// [`Relay::announce`], or panicked; if the test failed already, the end of the log is shown.
pub struct Relay {
    // Locked for moments only; lets a test wait on a shared reference.
    child: Mutex<Child>,
    pid: Pid,
    folder: TempDir,
    announced: Mutex<Vec<String>>,
    removes: Arc<AtomicBool>,
}

impl Relay {
    /// Starts `tailpost` with these arguments and variables, in an empty folder.
    ///
    /// The test's own `TAILPOST_*`, `DATABASE_URL` and `NATS_URL` are not passed on.
    ///
    /// # Panics
    ///
    /// When there is no binary, or one older than the source.
    pub fn spawn(args: &[&str], env: &[(String, String)]) -> Self {
        Self::spawn_program(&binary(), args, env)
    }

    /// As [`Relay::spawn`], another program of ours.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn spawn_program(program: &Path, args: &[&str], env: &[(String, String)]) -> Self {
        Self::spawn_into(None, program, args, env)
    }

    /// As [`Relay::spawn_program`]. What the process writes goes into the pipe, if there is one.
    pub(crate) fn spawn_into(
        pipe: Option<&PipeWriter>,
        program: &Path,
        args: &[&str],
        env: &[(String, String)],
    ) -> Self {
        let folder = tempfile::tempdir().expect("create a folder for the process");
        let file = |name| File::create(folder.path().join(name)).expect("create an output file");
        let output = |name| {
            let file = file(name);
            pipe.map_or(Stdio::from(file), |it| it.try_clone().expect("clone a pipe's end").into())
        };
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let known = name.to_string_lossy();
            if known.starts_with("TAILPOST_")
                || known == "DATABASE_URL"
                || known == "NATS_URL"
                || known.starts_with("OTEL_")
            {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"));
        let child = command.spawn().expect("start the process");
        let pid = Pid::from_child(&child);
        let (child, announced, removes) = (Mutex::new(child), Mutex::default(), Arc::default());
        Self { child, pid, folder, announced, removes }
    }

    /// `removes` says whether the test removes messages: the comparison of rows comes when it comes.
    #[must_use]
    pub(crate) fn beside(mut self, removes: &Arc<AtomicBool>) -> Self {
        self.removes = Arc::clone(removes);
        self
    }

    /// Kills the process like a crash; it is gone when this returns.
    ///
    /// # Panics
    ///
    /// When it had ended before.
    pub async fn kill9(&self) {
        self.signal(Signal::KILL);
        self.wait_exit(DEADLINE).await;
    }

    /// Stops the process in its tracks, until [`Relay::resume`]. Its connections stay.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks the process to stop.
    pub fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        let ended = self.exited();
        assert!(ended.is_none(), "tailpost ended by itself: {ended:?}");
        // It has not been waited for, so its pid cannot belong to another process.
        kill_process(self.pid, signal).expect("send a signal");
    }

    /// Waits until the process has ended.
    ///
    /// # Panics
    ///
    /// When it still runs after `deadline`.
    pub async fn wait_exit(&self, deadline: Duration) -> ExitStatus {
        let started = Instant::now();
        until(deadline, "tailpost ends", async || self.exited().is_some()).await;
        let status = self.exited().expect("just seen");
        eprintln!("tailpost ended after {:?}: {status}", started.elapsed());
        status
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How the process ended, if it has.
    pub fn exited(&self) -> Option<ExitStatus> {
        self.child.lock().expect("not poisoned").try_wait().expect("look after the process")
    }

    /// The most memory that the process has had so far, in bytes, but for its code: a debug build has
    /// 40 MiB of that.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn peak_memory(&self) -> u64 {
        let told = "a running process has memory";
        let code = lab::file_memory_bytes(self.pid()).expect(told);
        lab::peak_memory_bytes(self.pid()).expect(told) - code
    }

    /// How many files and sockets the process has open.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.pid.as_raw_nonzero());
        fs::read_dir(path).expect("a running process has files").count()
    }

    /// What the process wrote to stderr so far.
    pub fn log(&self) -> String {
        self.read("stderr")
    }

    /// What the process wrote to stdout so far.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.folder.path().join(name)).expect("read the process's output");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the log contains `text`.
    ///
    /// # Panics
    ///
    /// When it does not within [`DEADLINE`], or the process ends without having said so.
    pub async fn wait_log(&self, text: &str) {
        until(DEADLINE, &format!("the log says `{text}`"), async || {
            let ended = self.exited();
            let said = self.log().contains(text);
            assert!(said || ended.is_none(), "ended ({ended:?}) and did not say `{text}`");
            said
        })
        .await;
    }

    /// Waits until this relay has the slot.
    ///
    /// # Panics
    ///
    /// As [`Relay::wait_log`].
    pub async fn wait_active(&self) {
        self.wait_log("the slot is ours").await;
    }

    /// Waits until this relay has the slots of so many shards.
    ///
    /// # Panics
    ///
    /// When it has not within [`DEADLINE`].
    pub async fn wait_active_shards(&self, shards: usize) {
        let ours = || self.log().matches("the slot is ours").count();
        until(DEADLINE, &format!("{shards} slots are ours"), async || ours() >= shards).await;
    }

    /// Expects errors with this text in the log: they do not fail the test.
    pub fn announce(&self, text: &str) {
        self.announced.lock().expect("not poisoned").push(text.to_owned());
    }

    fn unannounced(&self) -> Vec<String> {
        let announced = self.announced.lock().expect("not poisoned");
        let wrong = |line: &&str| line.contains(" ERROR ") || line.contains("panicked at");
        let removes = self.removes.load(Ordering::Relaxed);
        let removed =
            |line: &&str| removes && line.contains("the stream lacks what a row says it has");
        let expected =
            |line: &&str| removed(line) || announced.iter().any(|text| line.contains(text));
        let log = self.log();
        log.lines().filter(wrong).filter(|line| !expected(line)).map(str::to_owned).collect()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let child = self.child.get_mut().expect("not poisoned");
        // Either fails only if the process is gone already.
        let _ = child.kill();
        let _ = child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LOG_TAIL)..];
            eprintln!("--- log of tailpost {}\n{}", self.pid, tail.join("\n"));
            return;
        }
        let wrong = self.unannounced();
        assert!(wrong.is_empty(), "tailpost logged errors nobody announced:\n{}", wrong.join("\n"));
    }
}

/// The binary under test: `TAILPOST_BIN`, or the one in the profile's folder that the tests are in.
///
/// # Panics
///
/// When there is none, or one older than the source.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TAILPOST_BIN") {
        return path.into();
    }
    let tests = std::env::current_exe().expect("know where the tests are");
    let profile = tests.parent().and_then(Path::parent).expect("tests are in <profile>/deps");
    let path = profile.join("tailpost");
    assert!(
        path.exists(),
        "{} is missing: run `cargo build -p tailpost`, or set TAILPOST_BIN",
        path.display()
    );
    refuse_stale(&path);
    path
}

/// Cargo does not build a binary for the tests of another package: a test must not pass or fail for
/// what the binary was yesterday.
fn refuse_stale(binary: &Path) {
    let modified = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    let Ok(sources) = fs::read_to_string(binary.with_extension("d")) else { return };
    let newer = |source: &&str| modified(Path::new(source)) > modified(binary);
    let newer = sources.split_ascii_whitespace().skip(1).find(newer);
    assert!(newer.is_none(), "tailpost is older than {newer:?}: run `cargo build -p tailpost`");
}
