//! What a service manager such as systemd is told over `NOTIFY_SOCKET`.

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use support::{DEADLINE, Relay, TestEnv, until};
use tempfile::TempDir;

/// Receives what processes say.
struct Manager {
    folder: TempDir,
    said: Arc<Mutex<Vec<String>>>,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("bound");
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = Arc::clone(&said);
        // Ends with the test's process.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = String::from_utf8_lossy(&buffer[..length]);
                heard.lock().expect("not poisoned").extend(message.lines().map(str::to_owned));
            }
        });
        Self { folder, said }
    }

    /// Starts a relay that says what it does here, and would be killed if it is silent for `watchdog`.
    fn start(&self, env: &mut TestEnv, watchdog: Duration) -> Relay {
        let socket = self.folder.path().join("notify");
        env.set("NOTIFY_SOCKET", socket.to_str().expect("Unicode"));
        env.set("WATCHDOG_USEC", &watchdog.as_micros().to_string());
        env.set("TAILPOST_ADMIN__LISTEN", "off");
        env.relay()
    }

    fn count(&self, message: &str) -> usize {
        let said = self.said.lock().expect("not poisoned");
        said.iter().filter(|it| *it == message).count()
    }

    async fn hears(&self, message: &str) {
        until(DEADLINE, message, async || self.count(message) > 0).await;
    }

    /// Waits for so many pings from now on.
    async fn hears_pings(&self, pings: usize) {
        let before = self.count("WATCHDOG=1");
        until(DEADLINE, "pings", async || self.count("WATCHDOG=1") >= before + pings).await;
    }
}

const WATCHDOG: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_service_manager_hears_of_start_life_and_end() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let (first, second) = (Manager::new(), Manager::new());
    let relay = first.start(&mut env, WATCHDOG);
    first.hears("READY=1").await;
    first.hears("STATUS=active").await;
    first.hears_pings(3).await;
    assert_eq!(first.count("STOPPING=1"), 0);

    let standby = second.start(&mut env, WATCHDOG);
    second.hears("READY=1").await;
    second.hears("STATUS=standby").await;
    second.hears_pings(3).await;
    assert_eq!(second.count("STATUS=active"), 0);

    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    first.hears("STOPPING=1").await;
    second.hears("STATUS=active").await;
    assert_eq!(second.count("READY=1"), 1, "it was ready all the time");
    drop(standby);
}

/// Whoever restarts a relay because a server is away mends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_away_do_not_stop_the_pings() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let manager = Manager::new();
    let _relay = manager.start(&mut env, Duration::from_secs(1));
    manager.hears("READY=1").await;
    env.insert(1).await;
    env.wait_stored(1).await;
    env.nats.kill().await.expect("killed");
    env.insert(1).await;
    manager.hears_pings(6).await;
    env.nats.start_again().await.expect("started");
    env.wait_stored(2).await;
}

/// A process that does not run, and whose engine therefore does not, says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn before_there_is_an_engine_nothing_is_ready() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let port = env.nats.port();
    env.nats.kill().await.expect("killed");
    let manager = Manager::new();
    let relay = manager.start(&mut env, WATCHDOG);
    manager.hears("STATUS=starting").await;
    relay.wait_log("starting anew").await;
    assert_eq!(manager.count("READY=1"), 0, "no broker at port {port}");
    env.nats.start_again().await.expect("started");
    manager.hears("READY=1").await;
}
