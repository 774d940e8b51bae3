//! What somebody finds who has never seen the console: from the first screen, with links and buttons
//! alone.

use support::{DEADLINE, until};
use uuid::Uuid;

use super::stage::Stage;

/// Dead letters of a consumer whose service is mended are requeued, 50 a second. The browser is closed
/// meanwhile, and the work is done and listed.
async fn requeue_a_group(count: i64) {
    let stage = Stage::new(&[]).await;
    stage.service.answer(422);
    let many = format!(
        "SELECT outbox_emit('order', 'o-' || n, 'Placed', '{{}}') FROM generate_series(1, {count}) n"
    );
    stage.env.execute(&many).await;
    let dead = "SELECT count(*) FROM inbox_dead_letter";
    let is_dead = async |n: i64| stage.env.query::<i64>(dead).await == n;
    until(DEADLINE, "all are dead letters", async || is_dead(count).await).await;
    stage.service.answer(204);

    let browser = stage.browser("operator").await;
    browser.wait_text(".needs", "dead letters").await;
    browser.wait_text(".headline.look .word", " dead letters").await;
    browser.size(320, 900).await;
    browser.assert_sound("dead letters").await;
    browser.size(1440, 900).await;
    browser.screenshot("story-letters").await;
    browser.click(".needs .actions a[href*='/dead-letters?']").await;
    browser.wait_text("h1", "Dead letters").await;
    browser.screenshot("story-group").await;
    browser.click("tr [data-requeue]").await;
    browser.wait_text("main", "At 50 a second").await;
    browser.screenshot("story-plan").await;
    browser.type_into("#why", "the service is mended").await;
    browser.click("form[action$='/dead-letters/work'] button").await;
    browser.wait_text("h1", "Work").await;
    browser.wait_text("main", "50/s").await;
    browser.screenshot("story-running").await;
    drop(browser);

    until(4 * DEADLINE, "all are handled", async || is_dead(0).await).await;
    let browser = stage.browser("viewer").await;
    browser.press("gw").await;
    browser.wait_text("h1", "Work").await;
    let told = format!("{} of {}", thousands(count), thousands(count));
    browser.wait_text("main", &told).await;
    browser.wait_text("main", "requeued").await;
    browser.size(1440, 900).await;
    browser.screenshot("story-done").await;
    browser.press("ga").await;
    browser.wait_text("main", "the service is mended").await;
    assert!(browser.text("main").await.contains("operator"), "who did it");
    browser.screenshot("story-audit").await;
    browser.assert_sound("the audit").await;
}

fn thousands(count: i64) -> String {
    if count < 1_000 {
        count.to_string()
    } else {
        format!("{},{:03}", count / 1_000, count % 1_000)
    }
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thousand_dead_letters_are_requeued_while_no_browser_is_open() {
        requeue_a_group(1_000).await;
    }

    /// (a) Why nothing is published while the broker is away, (b) which event blocks an aggregate, (c)
    /// what became of one, (d) which consumer is behind and why, (e) who discarded a letter.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_newcomer_finds_what_is_wrong_and_who_did_what() {
        let mut stage = Stage::new(&[]).await;
        let browser = stage.browser("operator").await;
        browser.size(1440, 900).await;
        browser.wait_text(".word", "Working").await;

        stage.env.nats.kill().await.expect("kill the broker");
        browser.wait_text(".word", "Broker away").await;
        browser.wait_text(".needs", "NATS is away: nothing is published").await;
        browser.screenshot("story-a-broker").await;
        stage.env.nats.start_again().await.expect("start the broker");
        browser.wait_text(".word", "Working").await;

        let blocks = stage.poison("o-1").await;
        stage.emit("o-1", 10).await;
        browser.wait_text(".needs", "1 event waits behind").await;
        browser.screenshot("story-b-blocked").await;
        browser.click(".needs .actions a").await;
        browser.wait_text("h1", "Dead letters").await;
        let letter = format!("[data-open][href*='{blocks}']");
        browser.click(&letter).await;
        browser.wait_text("main", "Later events of its aggregate wait").await;
        browser.type_into("#why", "no customer of ours").await;
        browser.click_through("button[formaction$='/discard']").await;
        let published = async || stage.env.stored_ids().await.len() == 1;
        until(DEADLINE, "the event behind it is published", published).await;

        let event: Uuid = stage.env.stored_ids().await[0];
        browser.press("ge").await;
        browser.wait_text("h1", "Events").await;
        browser.type_into("#q", &event.to_string()).await;
        browser.click("form[role=search] button").await;
        browser.wait_text("main", "processed").await;
        browser.screenshot("story-c-event").await;

        stage.service.answer(503);
        stage.emit("o-2", 10).await;
        browser.press("go").await;
        browser.wait_text(".needs", "breaker open").await;
        assert!(browser.text(".needs").await.contains("503"), "it says why");
        browser.screenshot("story-d-consumer").await;

        browser.press("ga").await;
        browser.wait_text("main", "no customer of ours").await;
        let row = "return [...document.querySelectorAll('tbody tr')].map((it) => it.innerText)
            .find((it) => it.includes('no customer of ours'))";
        let row = browser.script(row).await;
        let row = row.as_str().expect("a row");
        assert!(row.contains("operator") && row.contains("discard"), "{row}");
        browser.screenshot("story-e-audit").await;
        assert_eq!(browser.complaints().await, Vec::<String>::new());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_group_is_requeued_at_a_rate_while_no_browser_is_open() {
        requeue_a_group(200).await;
    }
}
