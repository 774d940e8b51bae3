//! The OpenAPI document, held against running servers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lab::Port;
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, get, until};
use uuid::Uuid;

/// What is asked of every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,\
                      negative_data_rejection,unsupported_method,allow_header_conformance";

/// A server that is too busy to answer in time says so.
const CONFIG: &str =
    "[checks.not_a_server_error]\nexpected-statuses = [\"2xx\", \"3xx\", \"4xx\", \"504\"]\n";

/// What starts `schemathesis`, which is a folder of Python modules.
const PROGRAM: &str = "import sys; from schemathesis.cli import schemathesis; \
                       sys.argv[0] = 'schemathesis'; schemathesis()";

/// Where `scripts/servers --all` puts it: `target/servers`, beside what cargo builds.
fn modules() -> PathBuf {
    let program = std::env::current_exe().expect("the test has a path");
    let target = program.ancestors().nth(3).expect("cargo's target folder");
    let found = target.join("servers/schemathesis");
    let missing = "schemathesis is missing: run `make servers-all`";
    assert!(found.join("schemathesis").exists(), "{missing}; looked in {}", found.display());
    found
}

/// Requests of each kind that are made up. `EXAMPLES=n` says how many.
fn examples() -> String {
    std::env::var("EXAMPLES").unwrap_or_else(|_| "1".into())
}

/// Sends requests that the document allows and requests that it forbids.
async fn check(address: SocketAddr, examples: &str, filter: &[&str]) {
    let document = format!("http://{address}/api/v1/openapi.json");
    let folder = tempfile::tempdir().expect("make a folder");
    let config = folder.path().join("schemathesis.toml");
    std::fs::write(&config, CONFIG).expect("write a file");
    let config = config.to_str().expect("a path of text");
    let mut args = vec!["-c", PROGRAM, "--config-file", config, "run"];
    args.extend([&document, "--checks", CHECKS]);
    // One worker: Python's parser fails in several threads.
    args.extend(["--phases", "examples,coverage,fuzzing", "--seed", "7", "--workers", "1"]);
    args.extend(["--request-timeout", "15", "--suppress-health-check", "all", "--no-shrink"]);
    args.extend(["--max-examples", examples]);
    args.extend(filter);
    let variables = [("PYTHONPATH".to_owned(), modules().display().to_string())];
    let process = Relay::spawn_program(Path::new("python3"), &args, &variables);
    process.announce(""); // the code tells
    let status = process.wait_exit(3 * DEADLINE).await;
    let (told, said) = (process.stdout(), process.log());
    eprintln!("{told}");
    assert_eq!(status.code(), Some(0), "{address} does not do what it says:\n{told}{said}");
}

async fn answers(address: SocketAddr, path: &str) -> Value {
    let told = get(address, path).await.expect("an answer");
    let (head, body) = told.split_once("\r\n\r\n").expect("a whole answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
    serde_json::from_str(body).expect("JSON")
}

/// Servers with an outbox and an inbox, and a dead letter in each.
async fn env() -> TestEnv {
    let env = TestEnv::new().await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let client = env.client().await;
    let id = Uuid::new_v4();
    let outbox = "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type,
                      payload, reason) VALUES ($1, 'order', 'o-1', 'Placed', '{}', 'tests')";
    client.execute(outbox, &[&id]).await.expect("a dead letter");
    let inbox = "INSERT INTO inbox_dead_letter (consumer, message_id, event_time, subject, stream,
                     stream_seq, headers, payload, attempts, cause, reason)
                 VALUES ('billing', $1, now(), 'a.b', 'OUTBOX', 1, '{}', '{}', 1, 'dead', 'tests')";
    client.execute(inbox, &[&id]).await.expect("a dead letter");
    let failed = "INSERT INTO inbox_attempts (consumer, message_id, event_time, attempt, took_ms,
                      reason) SELECT consumer, message_id, event_time, 1, 7, reason
                  FROM inbox_dead_letter";
    client.batch_execute(failed).await.expect("an attempt");
    env
}

// proves: G-API-1
#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_answers_as_its_document_says_whatever_it_is_asked() {
    let mut env = env().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
    let run = ["inbox", "run", "--consumer", "billing", "--handler", "http://127.0.0.1:1/"];
    let inbox = env.spawn(&run);
    inbox.wait_log("the consumer is ours").await;
    until(DEADLINE, "it is ready", async || {
        get(admin.addr(), "/readyz").await.is_some_and(|it| it.starts_with("HTTP/1.1 200 "))
    })
    .await;
    check(admin.addr(), &examples(), &["--exclude-path-regex", "/wait$"]).await;
    check(admin.addr(), "2", &["--include-path-regex", "/wait$"]).await;
    assert_eq!(inbox.exited(), None, "{}", inbox.log());
}

mod long {
    use super::*;

    // proves: G-API-1
    #[tokio::test(flavor = "multi_thread")]
    async fn the_relay_answers_as_its_document_says_whatever_it_is_asked() {
        let mut env = env().await;
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        let relay = env.relay();
        env.insert(20).await;
        env.wait_marked().await;
        let paths = answers(admin.addr(), "/api/v1/openapi.json").await;
        assert!(paths["paths"]["/api/v1/replays/{id}/cancel"]["post"].is_object(), "{paths}");
        check(admin.addr(), &examples(), &["--exclude-path-regex", "/wait$"]).await;
        check(admin.addr(), "2", &["--include-path-regex", "/wait$"]).await;
        assert_eq!(relay.exited(), None, "{}", relay.log());
        env.insert(20).await;
        env.wait_marked().await;
    }
}
