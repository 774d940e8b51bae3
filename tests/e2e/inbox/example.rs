//! The example of a handler, run as a user would.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use lab::Port;
use support::{DEADLINE, ask, until};
use tokio::net::TcpStream;
use uuid::Uuid;

use super::http::{set_up, wait_processed};
use super::service::{Service, emit};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Killed at any moment, the service gets every event, with the same key.
#[tokio::test(flavor = "multi_thread")]
async fn the_python_example_has_every_effect_once_although_the_inbox_is_killed() {
    let mut env = set_up().await;
    let _relay = env.relay();
    env.set("TAILPOST_INBOX__LEASE", "2s");
    env.set("TAILPOST_INBOX__TIMEOUT", "1s");
    env.set("TAILPOST_INBOX__SECRETS", SECRET);
    let example = Example::start(SECRET);
    let args = ["inbox", "run", "--consumer", "billing", "--handler", &example.url];
    let mut expected = 0;
    // Of three kills an event may meet all, and is parked then.
    for round in 0..2 {
        let inbox = env.spawn(&args);
        for n in 0..20 {
            emit(&env, &format!("o-{n}"), &format!("{{\"total_cents\": {n}}}")).await;
        }
        expected += 20;
        let seen = i64::from(round) * 20 + 5;
        until(DEADLINE, "some effects", async || example.effects() >= seen).await;
        inbox.kill9().await;
    }
    let _inbox = env.spawn(&args);
    wait_processed(&env, expected).await;
    assert_eq!(example.effects(), expected);

    emit(&env, "o-1", "{\"total_cents\": \"many\"}").await; // 422
    let dead = "SELECT count(*) FROM inbox_dead_letter";
    until(DEADLINE, "the dead letter", async || env.query::<i64>(dead).await == 1).await;
}

/// A captured request had a second effect under another `Idempotency-Key`: the signature did not
/// cover what the receiver took for the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_captured_request_has_no_second_effect() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__SECRETS", SECRET);
    let _relay = env.relay();
    let spied = Service::start().await;
    let _inbox = env.spawn(&spied.args().each_ref().map(String::as_str));
    emit(&env, "o-1", "{\"total_cents\": 7}").await;
    spied.wait_calls(1).await;
    let call = spied.calls().remove(0);
    let example = Example::start(SECRET);
    let (id, time, signature) = (
        call.header("webhook-id").to_owned(),
        call.header("webhook-timestamp").to_owned(),
        call.header("webhook-signature").to_owned(),
    );
    assert_eq!(call.header("idempotency-key"), id);
    let other = Uuid::new_v4().to_string();
    let send = async |key: &str, id: &str, time: &str, signature: &str, body: &str| {
        let headers = format!(
            "Host: x\r\nIdempotency-Key: {key}\r\nwebhook-id: {id}\r\nwebhook-timestamp: {time}\r\n\
             webhook-signature: {signature}"
        );
        example.answer(&headers, body).await
    };
    let body = &*call.payload;
    assert_eq!(send(&id, &id, &time, &signature, body).await, 204);
    assert_eq!(send(&other, &id, &time, &signature, body).await, 409, "the key is the signed id");
    assert_eq!(send(&other, &other, &time, &signature, body).await, 401, "another id");
    assert_eq!(send(&id, &other, &time, &signature, body).await, 401, "another id");
    assert_eq!(send(&id, &id, &time, &signature, "{\"total_cents\": 8}").await, 401, "body");
    let later = (time.parse::<i64>().expect("seconds") + 1).to_string();
    assert_eq!(send(&id, &id, &later, &signature, body).await, 401, "another time");
    let now: i64 = time.parse().expect("seconds");
    for off in [-301, 400] {
        let old = (now + off).to_string();
        let signature = signed(&other, &old, body);
        assert_eq!(send(&other, &other, &old, &signature, body).await, 401, "{off} s off");
    }
    assert_eq!(send(&other, &other, &time, &signed(&other, &time, body), body).await, 204);
    for lacking in ["Host: x", &format!("Host: x\r\nwebhook-id: {other}"), "webhook-signature: é"]
    {
        assert_eq!(example.answer(lacking, body).await, 401, "{lacking}");
    }
    assert_eq!(example.effects(), 2);
}

/// A signature by other means than ours.
fn signed(id: &str, time: &str, body: &str) -> String {
    let sign = "import base64, hashlib, hmac, sys; s, *parts = sys.argv[1:]; \
                key = base64.b64decode(s.removeprefix('whsec_')); \
                d = hmac.digest(key, '.'.join(parts).encode(), hashlib.sha256); \
                print('v1,' + base64.b64encode(d).decode())";
    let output = Command::new("python3").args(["-c", sign, SECRET, id, time, body]).output();
    String::from_utf8(output.expect("python3 signs").stdout).expect("text").trim().to_owned()
}

/// `crates/inbox/examples/http_handler.py` at work.
struct Example {
    process: Child,
    folder: tempfile::TempDir,
    url: String,
    port: Port,
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
        Self { process, folder, url: format!("http://{}/events", port.addr()), port }
    }

    /// What it answers to a request with these headers.
    async fn answer(&self, headers: &str, body: &str) -> u16 {
        let address: SocketAddr = self.port.addr();
        let mut told = None;
        until(DEADLINE, "the example answers", async || {
            let Ok(stream) = TcpStream::connect(address).await else { return false };
            told = ask(stream, "POST", "/events", headers, body).await;
            told.is_some()
        })
        .await;
        let told = told.expect("just seen");
        told.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status")
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
