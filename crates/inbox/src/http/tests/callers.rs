//! What a service is shown of who calls it.

use super::*;

fn with(credentials: Credentials, service: &Service) -> HttpHandler {
    HttpHandler::new(HttpOptions { credentials, ..options(&service.url()) }).expect("valid options")
}

#[tokio::test]
async fn a_service_gets_the_headers_that_are_configured_beside_those_of_the_event() {
    let mut credentials = Credentials::default();
    credentials.headers.add("X-Api-Key", "s3cret").expect("a header");
    credentials.headers.add("User-Agent", "shop/1").expect("a header");
    let service = Service::status(200).await;
    deliver(&with(credentials, &service)).await;
    let seen = service.seen().pop().expect("a request");
    assert_eq!(seen.headers["x-api-key"], "s3cret");
    assert_eq!(seen.headers["user-agent"], "shop/1");
    assert_eq!(seen.headers["tailpost-consumer"], "billing");
}

/// It is no outage, which may end by itself, and the file is named.
#[tokio::test]
async fn without_its_file_no_event_is_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    let bearer_token_file = Some(token.clone());
    let service = Service::status(200).await;
    let handler = with(Credentials { bearer_token_file, ..Credentials::default() }, &service);
    let refused = handler.check().await.expect_err("a missing file").to_string();
    let verdict = deliver(&handler).await;
    let reason = format!("{refused}; {FILE_HINT}");
    assert_eq!(verdict, Verdict::Misconfigured { reason });
    assert!(service.seen().is_empty());
    std::fs::write(&token, "t0ken\n").expect("write");
    assert_eq!(kind(&deliver(&handler).await), Kind::Processed);
    assert_eq!(service.seen()[0].headers["authorization"], "Bearer t0ken");
}

/// Both sign while one replaces the other.
#[tokio::test]
async fn a_request_is_signed_with_the_secrets_of_the_file_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secrets");
    let secrets_file = Some(file.clone());
    let service = Service::status(200).await;
    let handler = with(Credentials { secrets_file, ..options("").credentials }, &service);
    for (text, signatures) in [(SECRET.to_owned(), 2), (format!("{SECRET}\n\n{SECRET}\n"), 3)] {
        std::fs::write(&file, text).expect("write");
        loop {
            assert_eq!(kind(&deliver(&handler).await), Kind::Processed);
            let seen = service.seen().pop().expect("a request");
            let sent = seen.headers["webhook-signature"].to_str().expect("text");
            if sent.split(' ').count() == signatures {
                break;
            }
        }
    }
    std::fs::write(&file, "hunter2").expect("write");
    let reason = loop {
        if let Verdict::Misconfigured { reason } = deliver(&handler).await {
            break reason;
        }
    };
    assert!(
        reason.contains("a signing secret is whsec_") && !reason.contains("hunter2"),
        "{reason}"
    );
}
