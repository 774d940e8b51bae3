//! The pages that a relay serves beside its API.

use support::{DEADLINE, get};

use super::stage::Stage;

mod long {
    use super::*;

    /// Somebody signs in at the relay's own port, sees the relay and its inbox, and acts with the token
    /// that was shown. A page that is open keeps the relay neither from answering nor from stopping.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_serves_the_console_at_its_own_port() {
        let mut stage = Stage::new(&[]).await;
        stage.base = format!("http://{}", stage.relay_port());
        let refused = stage.refuse("o-1").await;
        let browser = stage.browser("operator").await;
        browser.wait_text(".word", "Working").await;
        browser.wait_text(".as-of", "live").await;
        browser.wait_text("[data-part=consumers]", "billing").await;
        browser.wait_text(".needs", "1 dead letter").await;
        browser.size(1440, 900).await;
        browser.screenshot("relay-overview").await;
        browser.assert_sound("the relay's own console").await;
        let path = format!("/dead-letters/inbox/{refused}?consumer=billing");
        browser.go(&stage.url(&path)).await;
        browser.wait_text("main", "Attempts that failed").await;
        assert!(browser.text("main table").await.contains("422 Unprocessable Entity"));
        browser.type_into("#why", "no good").await;
        browser.click("button[formaction$='/discard']").await;
        browser.wait_text("main", "No dead letters").await;
        let decided = "SELECT decided_by FROM inbox_decisions";
        assert!(stage.env.query::<String>(decided).await.ends_with("(operator)"));

        let of_api = get(stage.relay_port(), "/api/v1/status").await.expect("an answer");
        assert!(of_api.starts_with("HTTP/1.1 401 "), "the API is as it was: {of_api}");
        let unknown = get(stage.relay_port(), "/nothing").await.expect("an answer");
        assert!(unknown.contains("there are /livez"), "{unknown}");

        browser.go(&stage.url("/")).await;
        browser.wait_text(".as-of", "live").await;
        stage.relay.sigterm();
        stage.relay.wait_exit(DEADLINE).await;
        let log = stage.relay.log();
        assert!(!log.contains("did not end in time"), "{log}");
    }
}
