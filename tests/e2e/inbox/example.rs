//! The example of a handler, run as a user would.

use std::process::{Child, Command, Stdio};

use support::{DEADLINE, until};
use testbed::Port;

use super::http::{set_up, wait_processed};
use super::service::emit;

/// R-INB-03, R-INB-05: killed at any moment, the service gets every event, with the same key.
#[tokio::test(flavor = "multi_thread")]
async fn the_python_example_has_every_effect_once_although_the_inbox_is_killed() {
    let mut rig = set_up().await;
    let _relay = rig.relay();
    rig.set("TAILPOST_INBOX__LEASE", "2s");
    rig.set("TAILPOST_INBOX__TIMEOUT", "1s");
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    rig.set("TAILPOST_INBOX__SECRETS", secret);
    let example = Example::start(secret);
    let args = ["inbox", "run", "--consumer", "billing", "--handler", &example.url];
    let mut expected = 0;
    for round in 0..3 {
        let inbox = rig.spawn(&args);
        for n in 0..20 {
            emit(&rig, &format!("o-{n}"), &format!("{{\"total_cents\": {n}}}")).await;
        }
        expected += 20;
        let seen = i64::from(round) * 20 + 5;
        until(DEADLINE, "some effects", async || example.effects() >= seen).await;
        inbox.kill9().await;
    }
    let _inbox = rig.spawn(&args);
    wait_processed(&rig, expected).await;
    assert_eq!(example.effects(), expected);

    emit(&rig, "o-1", "{\"total_cents\": \"many\"}").await; // 422
    let dead = "SELECT count(*) FROM inbox_dead_letter";
    until(DEADLINE, "the dead letter", async || rig.query::<i64>(dead).await == 1).await;
}

/// `crates/inbox/examples/http_handler.py` at work.
struct Example {
    process: Child,
    folder: tempfile::TempDir,
    url: String,
    _port: Port,
}

impl Example {
    fn start(secret: &str) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let port = Port::reserve().expect("a free port");
        let script =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/inbox/examples/http_handler.py");
        let process = Command::new("python3")
            .args([script, &port.number().to_string(), "effects.db", secret])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null()) // it logs every request
            .spawn()
            .expect("python3 runs the example: install it");
        Self { process, folder, url: format!("http://{}/events", port.addr()), _port: port }
    }

    /// How many effects there are.
    fn effects(&self) -> i64 {
        let count = "import sqlite3; print(sqlite3.connect('effects.db').execute('SELECT count(*) FROM totals').fetchone()[0])";
        let output = Command::new("python3")
            .args(["-c", count])
            .current_dir(self.folder.path())
            .output()
            .expect("python3 reads the effects");
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Either fails only if the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
