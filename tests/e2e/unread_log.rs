//! A log that is not read: a pager that is frozen, a log shipper that hangs or is gone.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lab::Port;
use rustix::fs::{OFlags, fcntl_setfl};
use support::{DEADLINE, Relay, TestEnv, get, until};

use crate::inbox::http::{set_up, wait_processed};
use crate::inbox::service::Service;

/// The metric that [`long`] sees written.
pub(crate) const WRITES: &[&str] = &["tailpost_log_lines_dropped_total"];

/// What a stop may take that has nothing to wait for but the log.
const STOP: Duration = Duration::from_secs(30);

/// A pipe that takes no byte.
fn full() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("set a flag");
    while writer.write_all(&[b'\n'; 4096]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).expect("remove a flag");
    (reader, writer)
}

/// Reads from now on to the end.
fn read(mut from: PipeReader) -> Arc<Mutex<String>> {
    let text: Arc<Mutex<String>> = Arc::default();
    let read = Arc::clone(&text);
    // Ends with the process that writes.
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let more = String::from_utf8_lossy(&buffer[..length]);
            read.lock().expect("not poisoned").push_str(&more);
        }
    });
    text
}

async fn answers(address: SocketAddr, path: &str) {
    until(DEADLINE, &format!("{path} of {address} answers 200"), async || {
        get(address, path).await.is_some_and(|it| it.starts_with("HTTP/1.1 200 "))
    })
    .await;
}

async fn stops(process: &Relay) {
    process.sigterm();
    let status = process.wait_exit(STOP).await;
    assert!(status.success(), "a clean stop: {status}");
}

struct Services {
    env: TestEnv,
    all: [Relay; 3],
    apis: [Port; 3],
    _service: Service,
}

impl Services {
    /// A relay, an inbox and a console that write into a pipe.
    async fn start(pipe: PipeWriter) -> Self {
        let mut env = set_up().await;
        let apis = [0; 3].map(|_| Port::reserve().expect("a free port"));
        let [of_relay, of_inbox, of_console] = apis.each_ref().map(|it| it.addr().to_string());
        env.set("TAILPOST_ADMIN__LISTEN", &of_relay);
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &of_inbox);
        let service = Service::start().await;
        let inbox = service.args();
        let all = [
            env.spawn_into(&pipe, &["relay"]),
            env.spawn_into(&pipe, &inbox.each_ref().map(String::as_str)),
            env.spawn_into(&pipe, &["console", "--listen", &of_console]),
        ];
        Self { env, all, apis, _service: service }
    }

    async fn work(&self) {
        self.env.insert(5).await;
        wait_processed(&self.env, 5).await;
        for api in &self.apis[..2] {
            answers(api.addr(), "/livez").await;
            answers(api.addr(), "/readyz").await;
        }
        answers(self.apis[2].addr(), "/").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_whose_log_nobody_reads_work_answer_and_stop() {
    let (_unread, pipe) = full();
    let services = Services::start(pipe).await;
    services.work().await;
    for process in &services.all {
        stops(process).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_ends_a_relay_waits_for_no_reader() {
    let env = TestEnv::new().await;
    let (gone, without_reader) = io::pipe().expect("a pipe");
    drop(gone);
    let (_unread, full) = full();
    for pipe in [full, without_reader] {
        let relay = env.spawn_into(&pipe, &["relay"]);
        assert_eq!(relay.wait_exit(STOP).await.code(), Some(3), "the tables are missing");
    }
}

mod long {
    use super::*;

    fn metric(answer: &str) -> u64 {
        let line = answer.lines().find(|it| it.starts_with("tailpost_log_lines_dropped_total{"));
        let value = line.and_then(|it| it.rsplit(' ').next());
        value.map_or(0, |it| it.parse().expect("a number"))
    }

    /// All that the log says it lost.
    fn told(log: &str) -> u64 {
        let counts =
            log.lines().filter_map(|it| it.split_once("lines were dropped: stderr").map(|it| it.1));
        let counts = counts.filter_map(|it| it.split_once("dropped=")?.1.split(' ').next());
        counts.map(|it| it.parse::<u64>().expect("a number")).sum()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_that_is_read_again_says_what_it_lost_and_ends_with_the_last_line() {
        let mut env = TestEnv::new().await;
        env.setup().await;
        let api = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__LISTEN", &api.addr().to_string());
        env.set("TAILPOST_LOG", "debug");
        let (unread, pipe) = full();
        let relay = env.spawn_into(&pipe, &["relay"]);
        drop(pipe);
        let dropped = async || get(api.addr(), "/metrics").await.map_or(0, |it| metric(&it));
        until(DEADLINE, "lines are dropped", async || {
            env.insert(10_000).await;
            dropped().await > 0
        })
        .await;
        let log = read(unread);
        let log = || log.lock().expect("not poisoned").clone();
        until(DEADLINE, "the log says how many", async || {
            let all = dropped().await;
            all > 0 && told(&log()) == all
        })
        .await;
        stops(&relay).await;
        until(DEADLINE, "the log is complete", async || log().contains("received SIGTERM")).await;
        assert!(log().contains("starting the relay"), "the oldest lines are kept");
    }
}
