//! What somebody does in the browser, seen in the database and in the stream.

use support::{DEADLINE, until};

use super::stage::Stage;

/// An event blocks its aggregate. It is found from the first screen, its payload is mended, and it is
/// published before what waits for it, once.
#[tokio::test(flavor = "multi_thread")]
async fn what_blocks_an_aggregate_is_found_mended_and_published_once() {
    let stage = Stage::new(&[]).await;
    let browser = stage.browser("operator").await;
    browser.wait_text(".word", "Working").await;
    browser.wait_text(".needs", "Nothing").await;
    let id = stage.poison("o-1").await;
    let behind = stage.emit("o-1", 10).await;
    // The page changes by itself.
    browser.wait_text(".needs", "1 event waits behind").await;
    browser.press("gd").await;
    browser.wait_text("h1", "Dead letters").await;
    browser.go(&stage.url(&format!("/dead-letters/relay/{id}"))).await;
    assert!(!browser.text("main").await.contains("9007199254740993"), "hidden until asked for");
    browser.click_through(&format!("form[action$='/dead-letters/relay/{id}'] button")).await;
    let shown = browser.script("return document.querySelector('#payload').value").await;
    assert!(shown.as_str().expect("a text").contains("9007199254740993"), "{shown}");
    let mend =
        "document.querySelector('#payload').value = '{\"n\": 9007199254740993, \"x\": \"mended\"}'";
    browser.script(mend).await;
    browser.type_into("#edit-why", "the note was too long").await;
    browser.click("form:has(#payload) button.main").await;
    browser.wait_text("h1", "Dead letters").await;
    let stored = async || stage.env.stored_ids().await;
    until(DEADLINE, "both are published", async || stored().await.len() == 2).await;
    assert_eq!(stored().await, [id, behind]);
    browser.reload().await;
    browser.wait_text("main", "No dead letters").await;
    let sql = format!(
        "SELECT string_agg(concat_ws(' ', action, actor, why), ', ' ORDER BY id)
         FROM outbox_dead_letter_audit WHERE event_id = '{id}'"
    );
    let done = "read operator, requeue operator the note was too long";
    assert_eq!(stage.env.query::<String>(&sql).await, done);
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

mod long {
    use super::*;

    /// Many are discarded by the relay: the browser is closed meanwhile.
    #[tokio::test(flavor = "multi_thread")]
    async fn work_on_many_goes_on_when_the_browser_is_closed() {
        let stage = Stage::new(&[]).await;
        for number in 0..30 {
            stage.emit(&format!("o-{number}"), 5_000).await;
        }
        let open = "SELECT count(*) FROM outbox_dead_letter WHERE discarded_at IS NULL";
        let count = async || stage.env.query::<i64>(open).await;
        until(DEADLINE, "all are dead letters", async || count().await == 30).await;
        let browser = stage.browser("operator").await;
        browser
            .go(&stage.url("/dead-letters/plan?source=relay&action=discard&reason=payload"))
            .await;
        browser.wait_text("main", "30 aggregates").await;
        browser.type_into("#typed", "30").await;
        browser.type_into("#why", "tests").await;
        browser.script("document.querySelector('#rate').value = '10'").await;
        browser.click("button.final").await;
        browser.wait_text("h1", "Work").await;
        drop(browser);
        until(DEADLINE, "all are discarded", async || count().await == 0).await;
        let browser = stage.browser("viewer").await;
        browser.go(&stage.url("/work")).await;
        browser.wait_text("main", "30 of 30").await;
    }

    /// Table and stream are compared by the relay, and a message that is gone is found.
    #[tokio::test(flavor = "multi_thread")]
    async fn table_and_stream_are_compared_by_the_relay() {
        let stage = Stage::new(&[]).await;
        stage.emit("o-1", 10).await;
        stage.env.wait_marked().await;
        let browser = stage.browser("operator").await;
        browser.press("gw").await;
        browser.wait_text("main", "Not compared since").await;
        let compare = async || {
            browser.click_through("form[action$='/work/comparisons/relay'] button").await;
            browser.wait_text("h1", "Work").await;
            until(DEADLINE, "it has ended", async || {
                browser.reload().await;
                !browser.text("main").await.contains("Comparing since")
            })
            .await;
        };
        compare().await;
        browser.wait_text("main", "No finding: 1 of 1 rows").await;
        stage.env.stream().await.delete_message(1).await.expect("delete a message");
        compare().await;
        browser.wait_text("main", "Findings:").await;
        browser.size(1440, 900).await;
        browser.screenshot("compared").await;
        browser.assert_sound("the comparison").await;
    }

    /// A consumer whose service is away: the first screen says why, and what to do. It is paused and
    /// resumed, and pausing the page stops the page alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_consumer_that_waits_says_why_and_is_paused_and_resumed() {
        let stage = Stage::new(&[]).await;
        let browser = stage.browser("operator").await;
        stage.service.answer(503);
        stage.emit("o-1", 10).await;
        browser.wait_text(".needs", "breaker open").await;
        assert!(browser.text(".needs").await.contains("503"), "it says why");
        browser.go(&stage.url("/consumers/inbox/billing")).await;
        browser.type_into("#why", "repair").await;
        browser.click("form[action$='/pause'] button").await;
        browser.wait_text("main", "Paused by operator").await;
        let sql = "SELECT count(*) FROM inbox_controls WHERE consumer = 'billing' AND paused_at IS NOT NULL";
        assert_eq!(stage.env.query::<i64>(sql).await, 1);
        browser.go(&stage.url("/")).await;
        browser.wait_text(".needs", "paused by operator: repair").await;
        browser.press("p").await;
        browser.wait_text(".as-of", "paused at").await;
        stage.service.answer(204);
        browser.script("document.querySelector('.needs form').requestSubmit()").await;
        stage.service.wait_calls(2).await;
        browser.wait_text(".needs", "Nothing").await;
    }

    /// Somebody with a viewer's token sees what there is to do and may not, and is out when the token is.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_viewer_may_look_and_is_out_when_the_token_is_gone() {
        let stage = Stage::new(&[]).await;
        let id = stage.poison("o-1").await;
        let browser = stage.browser("viewer").await;
        browser.wait_text(".needs", "1 dead letter").await;
        let path = format!("/dead-letters/relay/{id}");
        browser.go(&stage.url(&path)).await;
        let enabled = "return document.querySelectorAll('main button:not(:disabled)').length";
        assert_eq!(browser.script(enabled).await, 0);
        // By hand.
        browser
            .script("for (const it of document.querySelectorAll(':disabled')) it.disabled = false")
            .await;
        browser.click("[data-requeue-button]").await;
        browser.wait_text("main", "this needs the role operator").await;
        let open = "SELECT count(*) FROM outbox_dead_letter WHERE discarded_at IS NULL";
        assert_eq!(stage.env.query::<i64>(open).await, 1);
        stage.revoke("viewer");
        until(DEADLINE, "nobody is signed in", async || {
            browser.go(&stage.url("/")).await;
            browser.address().await.ends_with("/sign-in")
        })
        .await;
    }
}
