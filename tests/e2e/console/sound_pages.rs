//! Every page, with data in it: nothing that the browser complains about, and nothing that keeps
//! somebody from using it.

use support::Browser;
use uuid::Uuid;

use super::stage::Stage;

/// What names may be, as far as PostgreSQL and NATS take them.
const HOSTILE: &str = "<img src=x onerror=alert(1)>/../%2e\u{202e}x";

/// All pages of the bar and behind it.
async fn pages(stage: &Stage) -> Vec<(&'static str, String)> {
    let poisoned = stage.poison(HOSTILE).await;
    let behind: Uuid = stage.emit(HOSTILE, 10).await;
    let refused = stage.refuse("o-17").await;
    let audited = "INSERT INTO outbox_dead_letter_audit (action, event_id, aggregate_type,
        aggregate_id, event_type, actor, via, why) VALUES ('discard', $1, $2, $2, $2, $2, 'http', $2)";
    let client = stage.env.client().await;
    client.execute(audited, &[&poisoned, &HOSTILE]).await.expect("an entry of the audit");
    let of = |it: Uuid| it.to_string();
    vec![
        ("overview", "/".into()),
        ("overview-day", "/?reach=day".into()),
        ("dead-letters", "/dead-letters".into()),
        ("dead-letters-of-a-cause", "/dead-letters?source=relay&reason=payload".into()),
        ("letter-plan", "/dead-letters/plan?source=relay&action=requeue&reason=payload".into()),
        ("letter", format!("/dead-letters/relay/{}", of(poisoned))),
        ("letter-of-a-consumer", format!("/dead-letters/inbox/{}?consumer=billing", of(refused))),
        ("events", "/events".into()),
        ("event", format!("/events/{}", of(refused))),
        ("event-that-waits", format!("/events/{}", of(behind))),
        ("consumers", "/consumers".into()),
        ("consumer", "/consumers/inbox/billing".into()),
        ("rewind", "/consumers/inbox/billing/rewind?to_sequence=1&again=yes".into()),
        (
            "mark-processed",
            format!("/consumers/inbox/billing/mark-processed?event={}", of(refused)),
        ),
        ("work", "/work".into()),
        ("log", "/log".into()),
        ("checks", "/checks".into()),
        ("audit", "/audit".into()),
        ("try-now", format!("/consumers/inbox/billing/try-now?event={}", of(refused))),
        ("settings", "/settings".into()),
        ("replay-plan", "/work/replays/new?aggregate=order:o-17&per_second=50".into()),
    ]
}

async fn look(
    browser: &Browser,
    stage: &Stage,
    (name, path): &(&str, String),
    wide: u32,
    scheme: &str,
) {
    browser.size(wide, 900).await;
    browser.colours(scheme).await;
    browser.go(&stage.url(path)).await;
    let what = format!("{name}-{wide}-{scheme}");
    browser.screenshot(&what).await;
    browser.assert_sound(&what).await;
    assert!(browser.script("return document.images.length").await == 0, "{what}: a name is text");
}

/// The first screen and the two that somebody goes to from it.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_pages_are_sound_on_a_telephone_and_in_the_dark() {
    let stage = Stage::new(&[]).await;
    let pages = pages(&stage).await;
    let browser = stage.browser("operator").await;
    for (name, wide, scheme) in [("overview", 320, "dark"), ("dead-letters", 1440, "light")] {
        let page = pages.iter().find(|(it, _)| *it == name).expect("a page of this name");
        look(&browser, &stage, page, wide, scheme).await;
    }
}

mod long {
    use super::*;

    /// Every page, on a telephone, a desk and a wall, in both colours, for each role.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_page_is_sound_in_every_size_for_every_role() {
        let stage = Stage::new(&[]).await;
        let pages = pages(&stage).await;
        for role in ["viewer", "operator", "admin"] {
            let browser = stage.browser(role).await;
            for page in &pages {
                // A viewer may not plan a replay: the page says so, and is a refusal otherwise.
                for (wide, scheme) in
                    [(320, "light"), (320, "dark"), (1440, "light"), (1440, "dark"), (3840, "dark")]
                {
                    look(&browser, &stage, page, wide, scheme).await;
                }
            }
        }
    }

    /// Without scripts every page can be read and every form be sent.
    #[tokio::test(flavor = "multi_thread")]
    async fn without_scripts_a_dead_letter_is_found_and_discarded() {
        let stage = Stage::new(&[]).await;
        let id = stage.poison("o-1").await;
        let browser = Browser::without_scripts().await;
        stage.sign_in(&browser, "operator").await;
        browser.wait_text(".needs", "1 dead letter").await;
        browser.click(".needs .actions a").await;
        browser.click("[data-open][href*='/dead-letters/relay/']").await;
        browser.type_into("#why", "no good").await;
        browser.click("button[formaction$='/discard']").await;
        browser.wait_text("main", "No dead letter matches").await;
        let sql = format!(
            "SELECT count(*) FROM outbox_dead_letter WHERE id = '{id}' AND discarded_at IS NOT NULL"
        );
        assert_eq!(stage.env.query::<i64>(&sql).await, 1);
    }
}
