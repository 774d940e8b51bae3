//! What somebody does in the browser, seen in the database and in the stream.

use support::{DEADLINE, until};

use super::stage::Stage;

/// An event fails at a consumer and blocks its aggregate. It is found from the first screen, with links
/// alone, and is tried as soon as its service is mended.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_fails_at_a_consumer_is_found_from_the_first_screen_and_tried() {
    let stage = Stage::with(
        &[],
        &[("TAILPOST_INBOX__MAX_ATTEMPTS", "20"), ("TAILPOST_INBOX__BACKOFF", "24h")],
    )
    .await;
    stage.service.answer_to("o-1", 500);
    let blocks = stage.emit("o-1", 10).await;
    let behind = stage.emit("o-1", 10).await;
    let browser = stage.browser("operator").await;
    browser.wait_text(".needs", "order:o-1 waits for an event that fails: 500").await;
    browser.wait_text(".needs", "1 event waits behind").await;
    browser.click_through(".needs .actions a").await;
    browser.wait_text("main", "Failing now").await;
    let row = browser.text("[data-part=consumer] table").await;
    assert!(row.contains(&blocks.to_string()) && row.contains("in "), "{row}");
    for (wide, scheme) in [(320, "dark"), (1440, "light")] {
        browser.size(wide, 900).await;
        browser.colours(scheme).await;
        browser.screenshot(&format!("failing-{wide}-{scheme}")).await;
        browser.assert_sound("a consumer with an event that fails").await;
    }
    stage.service.answer_to("o-1", 204);
    browser.click_through("a[href*='/try-now?']").await;
    browser.wait_text("main", "attempt 1 failed").await;
    browser.type_into("#why", "mended").await;
    browser.click_through(".plan button").await;
    browser.wait_text(".remark", "Handled at ").await;
    until(DEADLINE, "both are handled", async || stage.service.calls_of(behind) == 1).await;
    assert_eq!(stage.service.calls_of(blocks), 2);
    let sql = "SELECT decision || ' ' || decided_by || ' ' || reason FROM inbox_decisions";
    assert_eq!(stage.env.query::<String>(sql).await, "try_now postgres (operator) mended");
    browser.go(&stage.url(&format!("/consumers/inbox/billing/try-now?event={blocks}"))).await;
    browser.wait_text(".plan", "No attempt of it waits").await;
    browser.press("go").await;
    browser.wait_text(".needs", "Nothing").await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

/// What a database says of a failure has several lines. All of its group are requeued, from the list.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_reason_has_several_lines_is_requeued_whole() {
    let stage = Stage::new(&[]).await;
    let mended = stage.refuse("o-1").await;
    stage.refuse("o-2").await;
    for aggregate in ["o-1", "o-2"] {
        stage.service.answer_to(aggregate, 204);
    }
    let lines = "UPDATE inbox_dead_letter
        SET reason = E'the row violates check address_known\\nDETAIL: (' || stream_seq || ').'";
    stage.env.execute(lines).await;
    let browser = stage.browser("operator").await;
    browser.wait_text(".needs", "violates check address_known").await;
    browser.click_through(".needs .actions a").await;
    browser.click_through("form[role=search] button").await;
    browser.size(1280, 900).await;
    browser.screenshot("dead-letters-lines").await;
    browser.assert_sound("dead letters with long reasons").await;
    browser.click_through("[data-selection] [data-requeue]").await;
    browser.wait_text("h1", "Requeue 2 dead letters").await;
    browser.wait_text("main", "They are of billing.").await;
    browser.click_through("form[action$='/dead-letters/work'] button").await;
    browser.wait_text("main", "2 of 2").await;
    stage.service.wait_calls(4).await;
    // What it was is in its life, although no letter is left.
    let letters = "SELECT count(*) FROM inbox_dead_letter";
    until(DEADLINE, "none is left", async || stage.env.query::<i64>(letters).await == 0).await;
    browser.go(&stage.url(&format!("/events/{mended}"))).await;
    browser.wait_text("main", "requeue by operator").await;
    let steps = "return [...document.querySelectorAll('.branches b')].map((it) => it.innerText)";
    let steps = browser.script(steps).await.to_string();
    assert!(steps.contains(r#""dead letter","requeue by operator""#), "{steps}");
    for (wide, scheme) in [(320, "dark"), (1440, "light")] {
        browser.size(wide, 900).await;
        browser.colours(scheme).await;
        browser.screenshot(&format!("event-requeued-{wide}-{scheme}")).await;
        browser.assert_sound("the life of an event that was requeued").await;
    }
    stage.refuse("o-3").await;
    browser.press("gd").await;
    browser.wait_text("[data-row] th", "422 Unprocessable Entity").await;
    stage.refuse("o-4").await;
    browser.wait_text("[data-changed]:not([hidden])", "There are 2 dead letters now").await;
    browser.go(&stage.url("/events?q=o-3")).await;
    browser.wait_text("[data-row]", "published · dead at billing").await;
    browser.go(&stage.url("/events?state=dead_at_consumer")).await;
    browser.wait_text("[data-row]", "order:o-4").await;
    let rows = "return document.querySelectorAll('[data-row]').length";
    assert_eq!(browser.script(rows).await, 2, "those of o-1 and o-2 are handled by now");
}

/// It says what came of it, without being asked.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_requeued_at_a_consumer_is_dead_again_or_handled() {
    let stage = Stage::new(&[]).await;
    let id = stage.refuse("o-1").await;
    let browser = stage.browser("operator").await;
    let requeue = async || {
        browser.go(&stage.url(&format!("/dead-letters/inbox/{id}?consumer=billing"))).await;
        browser.click_through("[data-requeue-button]").await;
    };
    requeue().await;
    browser.wait_text(".remark", "Dead again at ").await;
    browser.wait_text(".remark", "422 Unprocessable Entity").await;
    stage.service.answer_to("o-1", 204);
    requeue().await;
    browser.wait_text(".remark", "Handled at ").await;
    browser.click_through(".remark a").await;
    browser.wait_text("main", "requeue by operator").await;
    // What is tried again is dead no more, and has no cause.
    let id = stage.refuse("o-2").await;
    stage.service.answer_to("o-2", 503);
    browser.go(&stage.url(&format!("/dead-letters/inbox/{id}?consumer=billing"))).await;
    browser.click_through("[data-requeue-button]").await;
    browser.wait_text(".remark", "503").await;
    // It is asked for again although the database does not answer.
    let told = async |condition| {
        let all =
            "performance.getEntriesByType('resource').filter((it) => it.name.includes('/outcome'))";
        let script = format!(
            "const all = {all}.map((it) => it.responseStatus);
            const failed = all.findIndex((it) => it >= 500); return {condition}"
        );
        until(DEADLINE, condition, async || browser.script(&script).await == true).await;
    };
    stage.env.postgres.pause().expect("pause PostgreSQL");
    told("failed >= 0").await;
    stage.env.postgres.resume().expect("resume PostgreSQL");
    told("failed >= 0 && all.slice(failed).includes(202)").await;
    browser.reload().await;
    browser.wait_text("[data-selection] [data-label=Since]", "requeued").await;
    assert!(!browser.text("main").await.contains("Causes"), "none is dead");
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

    /// The relay is killed in the middle: what was not done is still a dead letter, the page says so, and
    /// begun again it is done once each.
    #[tokio::test(flavor = "multi_thread")]
    async fn work_on_many_ends_with_its_process_and_can_be_begun_again() {
        let stage = Stage::new(&[]).await;
        for number in 0..30 {
            stage.emit(&format!("o-{number}"), 5_000).await;
        }
        let open = "SELECT count(*) FROM outbox_dead_letter WHERE discarded_at IS NULL";
        let count = async || stage.env.query::<i64>(open).await;
        until(DEADLINE, "all are dead letters", async || count().await == 30).await;
        let browser = stage.browser("operator").await;
        let discard = async |rate: &str, left: i64| {
            let plan = "/dead-letters/plan?source=relay&action=discard&reason=payload";
            browser.go(&stage.url(plan)).await;
            if left > 10 {
                browser.type_into("#typed", &left.to_string()).await;
            }
            browser.type_into("#why", "tests").await;
            browser.script(&format!("document.querySelector('#rate').value = '{rate}'")).await;
            browser.click_through("button.final").await;
            browser.wait_text("h1", "Work").await;
        };
        discard("2", 30).await;
        browser.wait_text("main", "running").await;
        until(DEADLINE, "some are discarded", async || count().await < 30).await;
        stage.relay.kill9().await;
        let left = count().await;
        assert!(left > 0, "the test proves nothing");
        let relay = stage.env.relay();
        relay.wait_active().await;
        until(DEADLINE, "the page says so", async || {
            browser.reload().await;
            browser.text("main").await.contains("not known any more")
        })
        .await;
        browser.size(1440, 900).await;
        browser.screenshot("work-interrupted").await;
        browser.assert_sound("work that was interrupted").await;
        assert_eq!(count().await, left, "nobody goes on by themselves");
        discard("100", left).await;
        until(DEADLINE, "all are discarded", async || count().await == 0).await;
        let noted = "SELECT count(*) FROM outbox_dead_letter_audit WHERE action = 'discard'";
        assert_eq!(stage.env.query::<i64>(noted).await, 30, "each of them once");
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
        stage.env.delete_message(1).await;
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

    /// A consumer goes back for a lost effect, and an effect that was made by hand is not made again: each
    /// is found from the consumer's page, says first what it does, and is in the audit.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_consumer_is_rewound_and_an_event_marked_as_processed() {
        let stage = Stage::new(&[]).await;
        let event = stage.emit("o-1", 10).await;
        stage.service.wait_calls(1).await;
        let refused = stage.refuse("o-2").await;
        let browser = stage.browser("operator").await;
        browser.size(1440, 900).await;
        browser.go(&stage.url("/consumers/inbox/billing")).await;
        browser.click_through("a[href$='/rewind']").await;
        browser.type_into("#to_sequence", "1").await;
        browser.click("[name=again]").await;
        browser.click_through("form[method=get] button").await;
        browser.wait_text("main", "THEIR EFFECTS REPEAT").await;
        browser.screenshot("rewind-plan").await;
        browser.assert_sound("the plan of a rewind").await;
        browser.type_into("#why", "a lost effect").await;
        browser.click_through(".plan button").await;
        until(DEADLINE, "it has gone back", async || {
            browser.reload().await;
            browser.text("main").await.contains("handled again")
        })
        .await;
        browser.screenshot("rewound").await;
        browser.assert_sound("a consumer that went back").await;
        assert_eq!(stage.service.calls_of(event), 2);

        let letter = format!("/dead-letters/inbox/{refused}?consumer=billing");
        browser.go(&stage.url(&letter)).await;
        browser.click_through("a[href*='/mark-processed?']").await;
        browser.wait_text("main", "422 Unprocessable Entity").await;
        browser.screenshot("mark-processed").await;
        browser.assert_sound("an event to be marked").await;
        browser.type_into("#why", "by hand").await;
        browser.click_through(".plan button").await;
        let dead = "SELECT count(*) FROM inbox_dead_letter";
        assert_eq!(stage.env.query::<i64>(dead).await, 0);
        browser.press("ga").await;
        browser.wait_text("main", "a lost effect").await;
        browser.wait_text("main", "mark as processed").await;
    }

    /// Two people at one letter: the second decision is refused, and the page says what the first was.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_second_of_two_people_sees_what_the_first_decided() {
        let stage = Stage::new(&[]).await;
        let id = stage.poison("o-1").await;
        let path = stage.url(&format!("/dead-letters/relay/{id}"));
        let (first, second) = (stage.browser("operator").await, stage.browser("admin").await);
        first.go(&path).await;
        second.go(&path).await;
        first.type_into("#why", "no customer of ours").await;
        first.click_through("button[formaction$='/discard']").await;
        second.click_through("[data-requeue-button]").await;
        second.wait_text("main", "discard by operator").await;
        second.wait_text("main", "no customer of ours").await;
        second.size(1440, 900).await;
        second.screenshot("decided-already").await;
        let open = "SELECT count(*) FROM outbox_dead_letter WHERE discarded_at IS NULL";
        assert_eq!(stage.env.query::<i64>(open).await, 0);
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
        browser.wait_text("main", "This needs the role operator").await;
        let open = "SELECT count(*) FROM outbox_dead_letter WHERE discarded_at IS NULL";
        assert_eq!(stage.env.query::<i64>(open).await, 1);
        stage.revoke("viewer");
        until(DEADLINE, "nobody is signed in", async || {
            browser.go(&stage.url("/")).await;
            browser.address().await.ends_with("/sign-in?why=revoked")
        })
        .await;
        browser.wait_text("main", "it was revoked or replaced").await;
    }

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
        browser.wait_text("[data-live=behind-letters]", "1 event waits behind it").await;
        browser.wait_text("[data-live=letters]", "1").await;
        let tally = "return document.querySelector('[data-go=d] .tally').hidden";
        until(DEADLINE, "there is a figure", async || browser.script(tally).await == false).await;
        browser.press("gd").await;
        browser.wait_text("h1", "Dead letters").await;
        browser.wait_text(".lead", "1 dead letter, 1 event waits behind it.").await;
        browser.go(&stage.url(&format!("/dead-letters/relay/{id}"))).await;
        assert!(!browser.text("main").await.contains("9007199254740993"), "hidden until asked for");
        let facts = browser.text("main").await;
        assert!(facts.contains("4.9 KiB") && facts.contains("1 event waits"), "{facts}");
        let buttons = "form[action$='/dead-letters/relay/{id}'] button";
        browser.wait_text(&buttons.replace("{id}", &id.to_string()), "to edit it").await;
        browser.size(1440, 900).await;
        browser.screenshot("letter-that-blocks").await;
        browser.click_through("button[formaction$='#content']").await;
        let shown = browser.script("return document.querySelector('#payload').value").await;
        assert!(shown.as_str().expect("a text").contains("9007199254740993"), "{shown}");
        let mend = "document.querySelector('#payload').value = '{\"n\": 9007199254740993, \"x\": \"mended\"}'";
        browser.script(mend).await;
        browser.type_into("#edit-why", "the note was too long").await;
        browser.click("form:has(#payload) button.main").await;
        browser.wait_text("h1", "Dead letters").await;
        browser.wait_text(".remark", "Published at ").await;
        for (wide, scheme) in [(320, "dark"), (1440, "light")] {
            browser.size(wide, 900).await;
            browser.colours(scheme).await;
            browser.screenshot(&format!("outcome-{wide}-{scheme}")).await;
            browser.assert_sound("what came of a decision").await;
        }
        let stored = async || stage.env.stored_ids().await;
        until(DEADLINE, "both are published", async || stored().await.len() == 2).await;
        assert_eq!(stored().await, [id, behind]);
        until(DEADLINE, "no figure is left", async || browser.script(tally).await == true).await;
        browser.reload().await;
        browser.wait_text("main", "No dead letters").await;
        let sql = format!(
            "SELECT string_agg(concat_ws(' ', action, actor, why), ', ' ORDER BY id)
             FROM outbox_dead_letter_audit WHERE event_id = '{id}'"
        );
        let done = "read operator, requeue operator the note was too long";
        assert_eq!(stage.env.query::<String>(&sql).await, done);
        for about in [&*id.to_string(), "order:o-1"] {
            browser.go(&stage.url("/audit")).await;
            browser.type_into("#about", about).await;
            browser.click_through("form[role=search] button").await;
            browser.wait_text("main", "the note was too long").await;
        }
        browser.click_through(".reach a").await;
        browser.wait_text("main", "the note was too long").await;
        browser.go(&stage.url("/audit?about=order:o-2")).await;
        browser.wait_text("main", "No entry matches.").await;
        assert_eq!(browser.complaints().await, Vec::<String>::new());
    }
}
