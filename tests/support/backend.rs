//! Processes of PostgreSQL that are stopped.

use rustix::process::{Pid, Signal, kill_process};

use crate::test_env::TestEnv;
use crate::wait::{DEADLINE, until};

impl TestEnv {
    /// Stops the backend of a connection while it waits for a statement: stopped in one, it would keep
    /// locks of the server, which everybody waits for.
    ///
    /// # Panics
    ///
    /// When no connection of that name is idle within [`DEADLINE`].
    pub async fn stop_backend(&self, application_name: &str) -> Pid {
        let idle = format!(
            "SELECT max(pid) FROM pg_stat_activity
             WHERE application_name = '{application_name}' AND state = 'idle'
               AND wait_event = 'ClientRead'"
        );
        let mut stopped = None;
        until(DEADLINE, &format!("{application_name} is stopped while idle"), async || {
            let idle_pid = async || self.query::<Option<i32>>(&idle).await.and_then(Pid::from_raw);
            let Some(pid) = idle_pid().await else { return false };
            kill_process(pid, Signal::STOP).expect("stop PostgreSQL's process");
            // A statement may have come between the look and the signal.
            stopped = idle_pid().await.filter(|still| *still == pid);
            if stopped.is_none() {
                self.resume_backend(pid);
            }
            stopped.is_some()
        })
        .await;
        stopped.expect("a process")
    }

    /// Lets a stopped backend go on.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn resume_backend(&self, backend: Pid) {
        kill_process(backend, Signal::CONT).expect("resume PostgreSQL's process");
    }
}
