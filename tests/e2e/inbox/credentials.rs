//! What proves to a service who calls it is replaced while the inbox runs.

use support::{DEADLINE, until};

use super::http::{configure, set_up, wait_processed};
use super::service::{Service, emit};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_replaced_without_a_restart_and_never_told() {
    let mut env = set_up().await;
    let folder = configure(&mut env);
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret-old\n").expect("write");
    env.set("TAILPOST_INBOX__BEARER_TOKEN_FILE", token.to_str().expect("Unicode"));
    env.set("TAILPOST_INBOX__HEADERS", r#"{"X-Api-Key":"s3cret-key"}"#);
    let _relay = env.relay();
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    emit(&env, "o-1", "{}").await;
    service.wait_calls(1).await;
    std::fs::write(&token, "s3cret-new\n").expect("write");
    until(DEADLINE, "the new token is shown", async || {
        emit(&env, "o-1", "{}").await;
        service.calls().last().is_some_and(|it| it.header("authorization") == "Bearer s3cret-new")
    })
    .await;
    let calls = service.calls();
    assert_eq!(calls[0].header("authorization"), "Bearer s3cret-old");
    assert!(calls.iter().all(|it| it.header("x-api-key") == "s3cret-key"));
    assert!(!inbox.log().contains("s3cret"), "{}", inbox.log());
}

/// Both while the service refuses it, and while it cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_mended_is_tried_at_once() {
    let mut env = set_up().await;
    // Longer than anything is waited for.
    env.set("TAILPOST_INBOX__BACKOFF", "1d");
    let folder = configure(&mut env);
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret-old\n").expect("write");
    env.set("TAILPOST_INBOX__BEARER_TOKEN_FILE", token.to_str().expect("Unicode"));
    let _relay = env.relay();
    let service = Service::start().await;
    let _inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let open = "SELECT EXISTS (SELECT FROM inbox_roles WHERE breaker = 'open')";
    for (turn, text) in [(1, "s3cret-old\n"), (2, "")] {
        service.answer(401);
        std::fs::write(&token, text).expect("write");
        for aggregate in ["o-1", "o-2", "o-3"] {
            emit(&env, aggregate, "{}").await;
        }
        until(DEADLINE, "it is not let in", async || env.query(open).await).await;
        service.answer(204);
        std::fs::write(&token, format!("s3cret-{turn}\n")).expect("write");
        wait_processed(&env, 3 * turn).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_used_is_named_before_anything_starts() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__BEARER_TOKEN_FILE", "/nowhere/token");
    let args = ["inbox", "run", "--consumer", "billing", "--handler", "http://127.0.0.1:1"];
    let (_, said) = env.ends_with(78, &args).await;
    assert!(said.contains("could not load inbox.bearer_token_file from /nowhere/token"), "{said}");
}

/// Signed, answered, and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_ping_is_signed_and_ends_with_what_the_answer_means() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__SECRETS", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let service = Service::start().await;
    let url = service.url();
    let args = ["inbox", "ping", "--consumer", "billing", "--handler", &url];
    let (told, _) = env.ends_with(0, &args).await;
    assert!(told.starts_with("204 No Content: handled, after "), "{told}");
    let call = service.calls().pop().expect("a call");
    assert_eq!(call.header("event-type"), "tailpost.ping");
    assert_eq!(call.payload, r#"{"consumer":"billing"}"#);
    assert!(call.header("webhook-signature").starts_with("v1,"));
    for (status, code, meaning) in [
        (409, 0, "409 Conflict: handled"),
        (422, 4, "an event would be a dead letter"),
        (500, 4, "an event would be tried again"),
        (401, 4, "an event would wait, uncounted"),
        (503, 5, "an event would wait, uncounted"),
    ] {
        service.answer(status);
        let (told, _) = env.ends_with(code, &args).await;
        assert!(told.contains(meaning), "{told}");
    }
    drop(service);
    let (told, said) = env.ends_with(5, &args).await;
    assert!(told.starts_with("no answer") && said.contains("could not connect"), "{told}{said}");
    let records: i64 = env.query("SELECT count(*) FROM inbox_messages").await;
    assert_eq!(records, 0);
}
