//! What a page says while something of what it shows is away.

use support::DEADLINE;

use super::stage::Stage;

/// A console that is reached from elsewhere asks who somebody is, or does not start.
#[tokio::test(flavor = "multi_thread")]
async fn a_console_for_others_needs_tokens() {
    let env = support::TestEnv::new().await;
    let listen = ["console", "--relay-url", "http://127.0.0.1:1", "--listen", "0.0.0.0:0"];
    let (_, said) = env.ends_with(78, &listen).await;
    assert!(said.contains("anybody who reaches 0.0.0.0:0 could do everything"), "{said}");
    assert!(said.contains("--token-file"), "{said}");
}

/// A test that is killed leaves no browser behind: its guard kills the driver.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_ends_with_its_driver() {
    support::Browser::start().await.kill_driver().await;
}

mod long {
    use super::*;

    /// What stays on the screen is no verdict. A console that is there again does not know who somebody
    /// is, says so, and leads back.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_page_says_that_its_console_has_ended_and_where_to_sign_in_again() {
        let mut stage = Stage::new(&[]).await;
        let browser = stage.browser("operator").await;
        browser.wait_text(".word", "Working").await;
        browser.wait_text(".as-of", "live").await;
        stage.console.kill9().await;
        browser.wait_text("[data-lost]", "No connection to the console since ").await;
        let shown = "return getComputedStyle(document.querySelector('.headline .word')).display";
        assert_eq!(browser.script(shown).await, "none", "no verdict is left");
        let title = browser.script("return document.title").await;
        assert!(title.to_string().contains("No connection"), "{title}");
        for (wide, scheme) in [(320, "dark"), (1440, "light")] {
            browser.size(wide, 900).await;
            browser.colours(scheme).await;
            browser.screenshot(&format!("console-away-{wide}-{scheme}")).await;
        }
        stage.restart_console().await;
        browser.wait_text("[data-lost]", "Signed out since ").await;
        browser.click_through("[data-lost] a").await;
        browser.wait_text("main", "the console was restarted").await;
        browser.type_into("#token", "operator-token").await;
        browser.click_through("main button").await;
        browser.wait_text(".word", "Working").await;
    }

    /// A relay, an inbox, the database: each is said to be away, and the rest is shown.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_away_is_named_and_the_rest_is_shown() {
        let mut stage = Stage::new(&[]).await;
        stage.emit("o-1", 10).await;
        let browser = stage.browser("admin").await;
        browser.wait_text(".word", "Working").await;
        browser.wait_text("a.name", "billing").await;
        browser.size(1440, 900).await;

        stage.inbox.sigterm();
        stage.inbox.wait_exit(DEADLINE).await;
        browser.wait_text(".needs", "cannot be reached").await;
        browser.wait_text(".word", "Inbox away").await;
        browser.wait_text("tr.old", "billing").await;
        browser.screenshot("inbox-away").await;

        stage.env.nats.kill().await.expect("kill the broker");
        browser.wait_text(".word", "Broker away").await;
        browser.wait_text(".needs", "NATS is away: nothing is published").await;
        browser.wait_text(".needs", &stage.env.nats.url()).await;
        browser.wait_text(".needs li:first-child", "since ").await;
        browser.wait_text("[data-live=lag]", "≤ ").await;
        browser.screenshot("broker-away").await;
        browser.assert_sound("broker away").await;
        browser.go(&stage.url("/checks")).await;
        browser.wait_text(".lines", "NATS is away").await;
        browser.screenshot("checks-broker-away").await;
        browser.go(&stage.url("/work")).await;
        browser.wait_text("main", "NATS is away, so there is no stream to compare with").await;
        let is_off = "return document.querySelector('form[action$=\"/work/comparisons/relay\"] button').disabled";
        assert_eq!(browser.script(is_off).await, true);
        browser.screenshot("work-broker-away").await;
        browser.go(&stage.url("/")).await;
        stage.env.nats.start_again().await.expect("start the broker");
        browser.wait_text(".word", "Inbox away").await;

        stage.env.postgres.kill().await.expect("kill the database");
        browser.wait_text(".word", "Database away").await;
        browser.screenshot("database-away").await;
        let address = stage.url("/events");
        browser.go(&address).await;
        browser.wait_text("main", "could not connect").await;
        stage.env.postgres.start_again().await.expect("start the database");
        browser.go(&stage.url("/")).await;
        browser.wait_text(".word", "Inbox away").await;

        stage.relay.kill9().await;
        browser.wait_text(".word", "Not answering").await;
        browser.screenshot("relay-away").await;
        let relay = stage.relay_port().to_string();
        assert!(browser.text(".needs").await.contains(&relay));
    }
}
