//! Who may come in at the admin port, and by which ways.

use std::net::SocketAddr;
use std::time::Duration;

use lab::Port;
use support::{DEADLINE, Relay, TestEnv, ask, get, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use uuid::Uuid;

/// Runs `tailpost` without servers and returns its exit code and what it said.
async fn said(args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let variables: Vec<_> =
        variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let process = Relay::spawn(args, &variables);
    process.announce(""); // the code tells
    let code = process.wait_exit(DEADLINE).await.code();
    (code, process.log())
}

/// An empty token was a token: it let everybody in who sent `Authorization: Bearer`.
// proves: G-DOOR-1
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_secret_is_refused_at_the_start() {
    let database = ("DATABASE_URL", "postgres://ada@127.0.0.1:1/shop");
    let open = ("TAILPOST_ADMIN__LISTEN", "0.0.0.0:0");
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("tailpost.toml");
    std::fs::write(&file, "[admin]\ntoken = ''\n").expect("write the configuration");
    let file = file.to_str().expect("UTF-8");
    let run = ["inbox", "run", "--consumer", "billing", "--handler", "http://127.0.0.1:1/"];
    for args in [&["relay"][..], &run] {
        let (code, told) = said(&[args, &["--config", file]].concat(), &[database, open]).await;
        assert_eq!(code, Some(78), "{args:?}: {told}");
        assert!(told.contains("tailpost.toml:2: `admin.token` must be a secret"), "{told}");
    }
    for (name, value) in [
        ("TAILPOST_ADMIN__TOKEN", ""),
        ("TAILPOST_ADMIN__TOKEN", " "),
        ("TAILPOST_NATS__TOKEN", ""),
        ("TAILPOST_NATS__PASSWORD", ""),
        ("TAILPOST_INBOX__SECRETS", ""),
        ("TAILPOST_INBOX__BILLING__SECRETS", ""),
    ] {
        let (code, told) = said(&run, &[database, (name, value)]).await;
        assert_eq!(code, Some(78), "{name}: {told}");
        assert!(told.contains(name) && told.contains("secret"), "{told}");
    }
    let (code, told) = said(&["relay"], &[database, open]).await;
    assert_eq!(code, Some(78), "{told}");
    assert!(told.contains("set admin.token"), "{told}");
}

/// Half a request.
const HALF: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n";

/// The status of an answer to a request with these headers.
async fn code(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let stream = TcpStream::connect(address).await.expect("connect");
    let told = ask(stream, method, path, headers, body).await.expect("an answer");
    let code = told.split(' ').nth(1).and_then(|it| it.parse().ok());
    (code.unwrap_or_else(|| panic!("no HTTP: {told}")), told)
}

/// A web page on the relay's machine could read payloads and discard events: by a name of its own
/// that means 127.0.0.1, or by a request across origins.
// proves: G-DOOR-1
#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_reaches_nothing_on_the_loopback_port() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let (outbox, inbox) =
        (Port::reserve().expect("a free port"), Port::reserve().expect("a free port"));
    env.set("TAILPOST_ADMIN__LISTEN", &outbox.addr().to_string());
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox.addr().to_string());
    let _relay = env.relay();
    let run = ["inbox", "run", "--consumer", "billing", "--handler", "http://127.0.0.1:1/"];
    let _inbox = env.spawn(&run);
    for (queue, address) in [("outbox", outbox.addr()), ("inbox", inbox.addr())] {
        until(DEADLINE, "it listens", async || get(address, "/livez").await.is_some()).await;
        let port = address.port();
        for (host, expected) in [
            ("127.0.0.1", 200),
            (&*format!("localhost:{port}"), 200),
            ("[::1]:1234", 200),
            ("evil.example", 421),
            (&*format!("evil.example:{port}"), 421),
            ("localhost.evil.example", 421),
            ("10.0.0.1", 421),
            ("ada@127.0.0.1", 421),
            ("127.0.0.1\r\nHost: evil.example", 421),
        ] {
            for path in ["/livez", "/api/v1/status", &format!("/api/v1/{queue}/dead-letter")] {
                let (code, told) = code(address, "GET", path, &format!("Host: {host}"), "").await;
                assert_eq!(code, expected, "{host} {path}: {told}");
            }
        }
        let one = format!("/api/v1/{queue}/dead-letter/{}", Uuid::new_v4());
        let (ours, json) = ("Host: 127.0.0.1", "Content-Type: application/json");
        for (method, path) in [("DELETE", one.clone()), ("POST", format!("{one}/requeue"))] {
            for (headers, expected) in [
                (format!("{ours}\r\n{json}"), 404),
                (format!("{ours}\r\n{json}; charset=utf-8\r\nOrigin: http://127.0.0.1"), 404),
                (format!("{ours}\r\n{json}\r\nSec-Fetch-Site: same-origin"), 404),
                (format!("{ours}\r\n{json}\r\nOrigin: http://evil.example"), 403),
                (format!("{ours}\r\n{json}\r\nOrigin: null"), 403),
                (format!("{ours}\r\n{json}\r\nSec-Fetch-Site: cross-site"), 403),
                (format!("{ours}\r\n{json}\r\nSec-Fetch-Site: same-site"), 403),
                (format!("{ours}\r\nContent-Type: text/plain"), 415),
                (ours.to_owned(), 415),
                (format!("Host: evil.example\r\n{json}"), 421),
            ] {
                let body = "{\"why\": \"tests\"}";
                let (code, told) = code(address, method, &path, &headers, body).await;
                assert_eq!(code, expected, "{method} {headers}: {told}");
            }
        }
    }
}

/// 487 half-sent requests were held for 40 s and more, with file descriptors that the pipeline needs.
// proves: G-DOOR-1
#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_take_nothing_from_the_pipeline_and_end() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let relay = env.relay();
    let mut ids = env.insert(10).await;
    env.wait_marked().await;
    let before = relay.open_files();
    let mut held = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(admin.addr()).await.expect("connect");
        stream.write_all(HALF).await.expect("half a request");
        held.push(stream);
    }
    ids.extend(env.insert(200).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    // From another address of this machine.
    let other = TcpSocket::new_v4().expect("a socket");
    other.bind("127.0.0.2:0".parse().expect("an address")).expect("bind to loopback");
    let other = other.connect(admin.addr()).await.expect("connect");
    let told = ask(other, "GET", "/livez", "Host: 127.0.0.1", "").await.expect("an answer");
    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    let taken = relay.open_files().saturating_sub(before);
    assert!(taken < 150, "{taken} files are taken by the admin port");
    let mut rest = Vec::new();
    for stream in &mut held {
        let ended = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await;
        // An end or a reset, but not silence.
        let _ = ended.expect("a half-sent request is ended");
    }
    until(DEADLINE, "the port answers again", async || {
        get(admin.addr(), "/livez").await.is_some_and(|it| it.starts_with("HTTP/1.1 200 "))
    })
    .await;
}

/// A connection from another address of this machine.
async fn connect_from(own: &str, admin: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(own.parse().expect("an address")).expect("bind to loopback");
    socket.connect(admin).await.expect("connect")
}

/// Four peers take all the connections that there are for more than probes.
// proves: G-DOOR-1
#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_while_all_other_connections_are_taken() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let _relay = env.relay();
    until(DEADLINE, "it is ready", async || {
        get(admin.addr(), "/readyz").await.is_some_and(|it| it.starts_with("HTTP/1.1 200 "))
    })
    .await;
    for path in ["/livez", "/readyz", "/metrics"] {
        let mut held = Vec::new();
        for number in 0..128 {
            let own = format!("127.0.0.{}:0", 2 + number / 32);
            let mut stream = connect_from(&own, admin.addr()).await;
            stream.write_all(HALF).await.expect("half a request");
            held.push(stream);
        }
        for own in ["127.0.0.2:0", "127.0.0.9:0"] {
            let probe = connect_from(own, admin.addr()).await;
            let told = ask(probe, "GET", path, "Host: 127.0.0.1", "");
            // Before a half-sent request is ended, which makes room.
            let told = tokio::time::timeout(Duration::from_secs(3), told).await;
            let told = told.expect("in time").expect("an answer");
            assert!(told.starts_with("HTTP/1.1 200 "), "{path} from {own}: {told}");
        }
        drop(held);
    }
}

/// What servers say has hosts and users in it. Whoever may not see the status learns that there is
/// something.
// proves: G-DOOR-1
#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_no_user_and_no_host_without_the_token() {
    let admin = Port::reserve().expect("a free port");
    let servers = Port::reserve().expect("a free port"); // nobody listens
    let place = servers.addr().to_string();
    let variables = [
        ("DATABASE_URL", format!("postgres://secretuser@{place}/shop")),
        ("NATS_URL", format!("nats://{place}")),
        ("TAILPOST_ADMIN__LISTEN", admin.addr().to_string()),
        ("TAILPOST_ADMIN__TOKEN", "sesame".to_owned()),
    ];
    let relay = Relay::spawn(&["relay"], &variables.map(|(name, value)| (name.to_owned(), value)));
    relay.announce(""); // there are no servers
    let token = "Host: 127.0.0.1\r\nAuthorization: Bearer sesame";
    until(DEADLINE, "the cause is known to those with the token", async || {
        let Ok(stream) = TcpStream::connect(admin.addr()).await else { return false };
        let told = ask(stream, "GET", "/readyz", token, "").await;
        told.is_some_and(|it| it.contains(&place))
    })
    .await;
    let (code, told) = code(admin.addr(), "GET", "/readyz", "Host: 127.0.0.1", "").await;
    assert_eq!(code, 503);
    assert!(!told.contains(&place) && !told.contains("secretuser"), "{told}");
    assert!(told.contains("\"reason\":\"starting\""), "{told}");
}

/// What others wrote does not move the cursor of whoever reads it, or write lines that pass for ours.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_does_not_control_the_terminal() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let id = Uuid::new_v4();
    let hostile = "a\u{1b}]0;owned\u{7}\u{9b}2J\r\nevent        forged\u{202e}b";
    let client = env.client().await;
    client
        .execute(
            "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
                 reason, headers)
             VALUES ($1, $2, $2, $2, jsonb_build_object('text', $2::text), $2,
                 jsonb_build_object('note', $2::text))",
            &[&id, &hostile],
        )
        .await
        .expect("a dead letter");
    client
        .execute(
            "INSERT INTO inbox_dead_letter (consumer, message_id, event_time, subject, stream,
                 stream_seq, headers, payload, attempts, cause, reason)
             VALUES ('billing', $1, now(), $2, $2, 1, jsonb_build_object('Event-Type',
                 jsonb_build_array($2::text), 'note', jsonb_build_array($2::text)),
                 convert_to($2, 'UTF8'), 1, 'dead', $2)",
            &[&id, &hostile],
        )
        .await
        .expect("a dead letter");
    let id = id.to_string();
    for (queue, more) in [("outbox", &["--direct"][..]), ("inbox", &[])] {
        let plan = ["discard", "--all-matching", "--dry-run", "--why", "x"];
        for args in [&["list"][..], &["show", &id], &["show", &id, "--payload"], &plan] {
            for form in [&[][..], &["--json"]] {
                let args = [&[queue, "dlq"], args, more, form].concat();
                let (told, said) = env.ends_with(0, &args).await;
                assert!(told.contains("owned"), "{args:?}: {told:?}");
                for text in [&told, &said] {
                    let raw = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
                    assert!(!text.contains(raw), "{args:?}: {text:?}");
                }
                let forged = told.lines().any(|it| it.starts_with("event        forged"));
                assert!(!forged || args.contains(&"--payload"), "{args:?}: {told}");
                if !form.is_empty() && args.contains(&"show") {
                    let json: serde_json::Value = serde_json::from_str(&told).expect("JSON");
                    assert_eq!(json["dead_letter"]["reason"], hostile, "as it was stored");
                }
            }
        }
        let (said, _) = env.ends_with(0, &[&[queue, "dlq", "show", &id], more].concat()).await;
        assert!(!said.contains("note"), "headers without --payload: {said}");
    }
    let (told, _) = env.ends_with(0, &["inbox", "dlq", "export"]).await;
    assert!(!told.contains('\u{9b}'), "{told:?}");
}
