//! The way of lines to stderr.
//!
//! Who writes into a pipe waits for its reader, and a frozen pager or a log shipper that hangs reads no
//! more. A command waits: its reader wants all of it. In a service only a thread of its own waits. What
//! that has yet to write is bounded; lines beyond it are dropped and counted.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tracing::warn;

/// When so many bytes wait for the thread, there is no room for another line.
const WAITING_MAX: usize = 1 << 20;
/// How long the end of a process waits for the thread.
const FLUSH_MAX: Duration = Duration::from_secs(1);

static WAITING: Mutex<Waiting> =
    Mutex::new(Waiting { bytes: Vec::new(), dropped: 0, is_writing: false });
static CHANGED: Condvar = Condvar::new();
static THREAD: OnceLock<ThreadId> = OnceLock::new();

struct Waiting {
    bytes: Vec<u8>,
    /// Lines for which there was no room so far.
    dropped: u64,
    is_writing: bool,
}

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes whole lines.
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if THREAD.get().is_none_or(|it| *it == thread::current().id()) {
            io::stderr().write_all(line)?;
            return Ok(line.len());
        }
        let mut waiting = waiting();
        if waiting.bytes.len() < WAITING_MAX {
            waiting.bytes.extend_from_slice(line);
        } else {
            waiting.dropped += 1;
        }
        CHANGED.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines that were dropped so far.
pub(crate) fn dropped() -> u64 {
    waiting().dropped
}

/// From now on a thread writes the lines. If there can be none, everybody goes on doing so.
pub(crate) fn start() {
    if let Ok(started) = thread::Builder::new().name("stderr".into()).spawn(write) {
        let _ = THREAD.set(started.thread().id());
    }
}

fn write() {
    let (mut bytes, mut told, mut waiting) = (Vec::new(), 0, waiting());
    loop {
        waiting.is_writing = false;
        CHANGED.notify_all();
        let woken = CHANGED.wait_while(waiting, |it| it.bytes.is_empty());
        waiting = woken.unwrap_or_else(PoisonError::into_inner);
        waiting.is_writing = true;
        std::mem::swap(&mut bytes, &mut waiting.bytes);
        let dropped = waiting.dropped - told;
        drop(waiting);
        // If the reader is gone, there is nobody to tell.
        let _ = io::stderr().write_all(&bytes);
        bytes.clear();
        if dropped > 0 {
            // Straight to stderr, as this is the thread: at the place of what is missing.
            warn!(dropped, "log lines were dropped: stderr was not read");
            told += dropped;
        }
        waiting = self::waiting();
    }
}

/// Waits until all is written. A reader that does not read holds the process up for no longer than
/// `FLUSH_MAX`.
pub(super) fn flush() {
    let is_due = |it: &mut Waiting| it.is_writing || !it.bytes.is_empty();
    let _ = CHANGED.wait_timeout_while(waiting(), FLUSH_MAX, is_due);
}
