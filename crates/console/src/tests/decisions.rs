//! What people decide, what comes of it, and where it is found again.

use serde_json::Value;

use super::*;
use crate::state::plan::escape;

/// Nothing that was filled in is lost.
#[tokio::test]
async fn a_decision_that_lacks_something_is_asked_for_again_where_it_was_made() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let list = "/dead-letters?source=inbox&reason=down";
    let page = stage.get(list, &cookie).await.body;
    let ticked = format!("inbox {ID} {HOSTILE}");
    let form = format!("form={}&back={}", form_of(&page), escape(list));
    let letter = format!("&letter={}", escape(&ticked));
    for (fields, told) in [
        (format!("{form}{letter}&action=discard&why="), "needs a reason"),
        (format!("{form}&action=discard&why=no+good"), "tick those that are meant"),
    ] {
        let answer = stage.send("POST", "/dead-letters/selected", &cookie, Some(&fields)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.body.contains(told), "{told}: {}", answer.body);
        assert!(answer.body.contains("value=\"down\""), "the filter: {}", answer.body);
        assert_eq!(answer.body.contains(" checked"), fields.contains("letter="), "what was ticked");
        assert_eq!(answer.body.contains("value=\"no good\""), fields.contains("no+good"));
    }
    let one = format!("/dead-letters/relay/{ID}");
    let answer = stage.send("POST", &format!("{one}/discard"), &cookie, Some(&form)).await;
    assert!(answer.body.contains("needs a reason") && answer.body.contains("Decide"));
    let plan = format!("{form}&source=relay&action=discard&reason=down&why=");
    let answer = stage.send("POST", "/dead-letters/work", &cookie, Some(&plan)).await;
    assert!(answer.body.contains("needs a reason") && answer.body.contains("Discard 1"));
    assert!(stage.changes.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_decision_leads_back_to_the_list_that_it_came_from_and_is_said_there_once() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let page = stage.get("/dead-letters?source=relay&reason=down", &cookie).await.body;
    let (_, row) = page.split_once("data-open").expect("a row");
    assert!(page.contains("from=source%3Drelay%26reason%3Ddown"), "{row}");
    let path = format!("/dead-letters/relay/{ID}?from=source%3Drelay%26reason%3Ddown");
    let page = stage.get(&path, &cookie).await.body;
    let back = "/dead-letters?source=relay&reason=down";
    let fields = format!("form={}&back={}", form_of(&page), escape(back));
    assert!(page.replace("&#38;", "&").contains(&format!("name=\"back\" value=\"{back}\"")));
    let path = format!("/dead-letters/relay/{ID}/requeue");
    let answer = stage.send("POST", &path, &cookie, Some(&fields)).await;
    assert_eq!(answer.headers[header::LOCATION], back);
    let said = answer.headers[header::SET_COOKIE].to_str().expect("text");
    let both = format!("{cookie}; {}", said.split(';').next().expect("a pair"));
    let shown = stage.get(back, &both).await;
    assert!(shown.body.contains("is requeued: the relay publishes"), "{}", shown.body);
    let at = format!("/events/{ID}/outcome?source=relay&consumer=");
    let asks = format!("data-outcome=\"{at}\"");
    assert!(shown.body.replace("&#38;", "&").contains(&asks), "{}", shown.body);
    let outcome = stage.get(&at, &cookie).await;
    assert_eq!(outcome.headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert!(outcome.body.starts_with("Dead again at "), "{}", outcome.body);
    let gone = shown.headers[header::SET_COOKIE].to_str().expect("text");
    assert!(gone.contains("Max-Age=0"), "{gone}");
}

#[tokio::test]
async fn an_event_has_its_outcome_at_every_consumer_and_leads_to_its_letters() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("viewer").await.ok().expect("signed in");
    let page = stage.get(&format!("/events/{ID}"), &cookie).await.body;
    let (_, ends) = page.split_once("class=\"list ends\"").expect("the outcome");
    let (ends, _) = ends.split_once("</dl>").expect("its end");
    let letter = format!("/dead-letters/relay/{ID}");
    let consumer = format!("/consumers/inbox/{}", escape(HOSTILE));
    for told in ["a dead letter, not published", "fails, 1 attempt", &letter, &consumer] {
        assert!(ends.contains(told), "{told}: {ends}");
    }
    assert!(page.contains("All events of"), "{page}");
}

#[tokio::test]
async fn what_was_discarded_is_named_and_a_form_that_is_loaded_again_is_its_letter() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let form = form_of(&stage.get("/dead-letters", &cookie).await.body);
    let fields = format!("form={form}&action=discard&why=tests&letter=relay%20{ID}%20");
    let answer = stage.send("POST", "/dead-letters/selected", &cookie, Some(&fields)).await;
    let said = answer.headers[header::SET_COOKIE].to_str().expect("text");
    assert!(said.contains(&escape(&format!("\n/events/{ID}"))), "{said}");
    let letter = format!("/dead-letters/relay/{ID}");
    let answer = stage.get(&format!("{letter}/requeue"), &cookie).await;
    assert_eq!(answer.headers.get(header::LOCATION).expect("a place"), &*letter);
}

/// The upstream has a requeue under way that takes every letter.
#[tokio::test]
async fn what_is_requeued_already_is_shown_as_work() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    for path in ["/", "/dead-letters"] {
        let page = stage.get(path, &cookie).await.body;
        assert!(!page.contains("/dead-letters/plan?action=requeue&source=relay&reason"), "{path}");
        assert!(page.contains("Show the work") || page.contains("requeue runs"));
    }
    let page = stage.get("/work", &cookie).await.body;
    let (_, row) = page.split_once("data-label=\"By\"").expect("its row");
    let (by, rest) = row.split_once("data-label=\"State\"").expect("its state");
    assert_eq!(by.matches("onerror").count(), 2, "who, and why: {by}");
    assert!(rest.contains("in 12 s"), "{rest}");
}

/// Two sources, each with a requeue of many before what somebody looks for.
#[tokio::test]
async fn older_pages_of_the_audit_have_every_entry_of_every_source_once() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("viewer").await.ok().expect("signed in");
    let (mut path, mut pages) = ("/audit".to_owned(), Vec::new());
    loop {
        let page = stage.get(&path, &cookie).await.body;
        let next = page.split_once("rel=\"next\" href=\"").map(|(_, rest)| rest.to_owned());
        pages.push(page);
        let Some(next) = next else { break };
        path =
            next.split('"').next().expect("an address").replace("&#38;", "&").replace("&amp;", "&");
        assert!(pages.len() < 9, "it has an end: {path}");
    }
    let cell = |action: &str| format!("data-label=\"Did\">{action}<");
    let told =
        |action: &str| pages.iter().map(|it| it.matches(&cell(action)).count()).sum::<usize>();
    assert_eq!(["requeue", "pause", "discard"].map(told), [2, 120, 2]);
    assert!(pages[0].contains("1,200 events"), "{}", pages[0]);
    assert_eq!(pages.len(), 3);
    let file = stage.get("/audit/export", &cookie).await;
    assert_eq!(file.headers[header::CONTENT_TYPE], "application/jsonl");
    let entries = file.body.lines().map(|it| serde_json::from_str::<Value>(it).expect("JSON"));
    let entries: Vec<_> = entries.collect();
    let of = |source: &str| entries.iter().filter(|it| it["source"] == source).count();
    assert_eq!((of("relay"), of("inbox"), entries.len()), (1_261, 1_261, 2 * 1_261));
    let nobody = stage.get("/audit/export", "").await;
    assert_eq!(nobody.status, StatusCode::SEE_OTHER, "who may not read the list: {}", nobody.body);
}
