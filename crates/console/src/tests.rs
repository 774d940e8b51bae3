//! The whole console on a relay and an inbox that answer what they are told to.

mod decisions;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::ServiceExt;

use self::upstream::{Changes, open_upstream, upstream};
use crate::app::App;
use crate::sessions::Role;
use crate::{Console, Credential, Kind, Peer, Settings, Upstream};

const HOSTILE: &str = "<img src=x onerror=alert(1)>";
const ID: &str = "0198f3f0-0000-7000-8000-000000000001";

/// A console, with what its upstreams were asked to change.
struct Stage {
    app: Arc<App>,
    router: Router,
    changes: Changes,
    _token: tempfile::NamedTempFile,
    asking: tokio::task::JoinHandle<()>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

async fn stage(change: impl FnOnce(&mut Settings)) -> Stage {
    let (authority, changes) = upstream().await;
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "viewer\n").expect("written");
    let of = |kind| Upstream {
        kind,
        authority: authority.clone(),
        credential: Credential::File(token.path().to_owned()),
    };
    let upstreams = vec![of(Kind::Relay), of(Kind::Inbox)];
    let mut settings = Settings { upstreams, ..Settings::default() };
    change(&mut settings);
    let console = Console::new(settings);
    let router = console.router().layer(middleware::from_fn(at_home));
    let app = Arc::clone(&console.app);
    let asking = tokio::spawn(async move { console.keep_asking().await });
    Stage { app, router, changes, _token: token, asking }
}

async fn at_home(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Peer([127, 0, 0, 1].into()));
    next.run(request).await
}

/// An answer, whole.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Stage {
    async fn send(&self, method: &str, path: &str, cookie: &str, form: Option<&str>) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        if !cookie.is_empty() {
            request = request.header("cookie", cookie);
        }
        if form.is_some() {
            request = request.header("content-type", "application/x-www-form-urlencoded");
        }
        let request = request.body(Body::from(form.unwrap_or_default().to_owned()));
        let request = request.expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("whole").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("text");
        Answer { status: parts.status, headers: parts.headers, body }
    }

    async fn get(&self, path: &str, cookie: &str) -> Answer {
        self.send("GET", path, cookie, None).await
    }

    /// Signs in, and says what cookie that gave.
    async fn sign_in(&self, token: &str) -> Result<String, Answer> {
        let form = form_of(&self.get("/sign-in", "").await.body);
        let fields = format!("form={form}&token={token}");
        let answer = self.send("POST", "/sign-in", "", Some(&fields)).await;
        match answer.headers.get(header::SET_COOKIE) {
            Some(cookie) => {
                let cookie = cookie.to_str().expect("text");
                assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
                Ok(cookie.split(';').next().expect("a pair").to_owned())
            }
            None => Err(answer),
        }
    }
}

/// One that went on would be cut off, and a browser calls that an error.
#[tokio::test]
async fn a_stream_ends_before_its_connection_does() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("viewer").await.ok().expect("signed in");
    let began = Instant::now();
    let closes = crate::ClosesAt(began + Duration::from_secs(1));
    let router = stage.router.clone().layer(axum::Extension(closes));
    let request = Request::builder().uri("/live").header("host", "127.0.0.1");
    let request = request.header("cookie", cookie).body(Body::empty()).expect("a request");
    let response = router.oneshot(request).await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    // By itself it would in a minute.
    let whole = tokio::time::timeout(Duration::from_secs(40), response.into_body().collect()).await;
    whole.expect("in time").expect("whole");
    assert!(Instant::now() >= closes.0, "{:?}", began.elapsed());
}

/// What a form of this page has to send along.
fn form_of(page: &str) -> String {
    let (_, rest) = page.split_once("name=\"form\" value=\"").expect("a form");
    rest.split('"').next().expect("a value").to_owned()
}

fn pages() -> Vec<String> {
    let name = crate::state::plan::escape(HOSTILE);
    vec![
        "/".into(),
        "/?reach=day".into(),
        "/dead-letters".into(),
        "/dead-letters?source=inbox".into(),
        format!("/dead-letters?source=relay&reason={name}&aggregate={name}"),
        format!("/dead-letters/plan?action=discard&source=relay&reason={name}"),
        format!("/dead-letters/relay/{ID}"),
        format!("/dead-letters/inbox/{ID}?consumer={name}"),
        "/events".into(),
        format!("/events?q={name}"),
        format!("/events/{ID}"),
        "/consumers".into(),
        format!("/consumers/inbox/{name}"),
        format!("/consumers/inbox/{name}/rewind?to_sequence=7&again=yes&aggregate={name}"),
        format!("/consumers/inbox/{name}/mark-processed?event={name}"),
        format!("/consumers/inbox/{name}/try-now?event={name}"),
        "/work".into(),
        "/log".into(),
        "/checks".into(),
        "/audit".into(),
        "/settings".into(),
        format!("/work/replays/relay/{ID}"),
        format!("/work/replays/new?aggregate={name}"),
        "/nothing".into(),
    ]
}

#[tokio::test]
async fn whatever_a_name_is_it_is_text_on_every_page() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("admin").await.ok().expect("signed in");
    for path in pages() {
        assert_eq!(Console::has(path.split('?').next().expect("a path")), path != "/nothing");
        let answer = stage.get(&path, &cookie).await;
        let is_there = path != "/nothing";
        assert_eq!(
            answer.status.is_success(),
            is_there,
            "{path}: {} {}",
            answer.status,
            answer.body
        );
        assert!(!answer.body.contains("<img"), "{path}: {}", answer.body);
        if path == "/log" {
            assert!(answer.body.contains("process 17, open for 2 h"), "{}", answer.body);
        }
        if is_there && !path.contains("reach=day") {
            assert!(answer.body.contains("onerror"), "{path} shows the name");
        }
    }
}

#[tokio::test]
async fn every_answer_tells_the_browser_what_it_may_do() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("viewer").await.ok().expect("signed in");
    for path in pages().iter().map(String::as_str).chain(["/sign-in"]) {
        let headers = stage.get(path, &cookie).await.headers;
        let of = |name: &str| headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or_default();
        let policy = of("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(policy.ends_with("require-trusted-types-for 'script'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        let others = ["cache-control", "referrer-policy", "x-content-type-options"].map(of);
        assert_eq!(others, ["no-store", "no-referrer", "nosniff"], "{path}");
    }
    let page = stage.get("/", &cookie).await.body;
    let (_, rest) = page.split_once("/assets/").expect("an asset");
    let name = rest.split('"').next().expect("a name");
    let asset = stage.get(&format!("/assets/{name}"), "").await;
    assert_eq!(asset.status, StatusCode::OK);
    assert!(asset.headers["cache-control"].to_str().expect("text").contains("immutable"));
}

#[tokio::test]
async fn nobody_sees_anything_before_signing_in() {
    let stage = stage(|_| {}).await;
    for path in pages() {
        let answer = stage.get(&path, "").await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{path}");
        let to = answer.headers[header::LOCATION].to_str().expect("text");
        assert!(to.starts_with("/sign-in") && answer.body.is_empty(), "{path}: {to}");
    }
    assert_eq!(stage.get("/live", "").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(stage.get("/", "tailpost=0000").await.status, StatusCode::SEE_OTHER);
    let posted = stage.send("POST", "/work/replays/new", "", Some("aggregate=a:b")).await;
    assert_eq!(posted.status, StatusCode::UNAUTHORIZED);
    assert!(!posted.body.contains("<nav"), "no page around it: {}", posted.body);
    let page = stage.get("/sign-in", "").await.body;
    assert!(!page.contains("<nav"), "{page}");
}

#[tokio::test]
async fn five_wrong_tokens_are_enough_for_a_minute() {
    let stage = stage(|_| {}).await;
    for _ in 0..5 {
        let refused = stage.sign_in("wrong").await.expect_err("nobody knows it");
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
    }
    let refused = stage.sign_in("operator").await.expect_err("too many");
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
}

/// A relay without tokens beside an inbox that has some.
#[tokio::test]
async fn a_side_that_admits_everybody_lets_nobody_in() {
    let (open, changes) = open_upstream().await;
    let stage = stage(|it| it.upstreams[0].authority = open).await;
    let refused = stage.sign_in("wrong").await.expect_err("nobody knows it");
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let operator = stage.sign_in("operator").await.ok().expect("signed in");
    let page = stage.get("/", &operator).await.body;
    assert!(page.contains("<bdi>ada (operator)</bdi>"), "as the audit has it: {page}");
    // Its role at the inbox limits what somebody may do to the relay.
    let viewer = stage.sign_in("viewer").await.ok().expect("signed in");
    let path = format!("/dead-letters/relay/{ID}");
    let form = format!("form={}", form_of(&stage.get(&path, &viewer).await.body));
    for path in [&path, &format!("{path}/requeue")] {
        let answer = stage.send("POST", path, &viewer, Some(&form)).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert!(changes.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_form_without_its_token_changes_nothing() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let path = format!("/dead-letters/relay/{ID}/requeue");
    for form in ["", "form=", "form=0123"] {
        let answer = stage.send("POST", &path, &cookie, Some(form)).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{form}");
    }
    // That of a page before signing in is another's.
    let foreign = form_of(&stage.get("/sign-in", "").await.body);
    let answer = stage.send("POST", &path, &cookie, Some(&format!("form={foreign}"))).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(stage.changes.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_viewer_who_posts_by_hand_is_refused() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("viewer").await.ok().expect("signed in");
    let page = stage.get(&format!("/dead-letters/relay/{ID}"), &cookie).await.body;
    assert!(page.contains("disabled title=\"needs the role operator\""), "{page}");
    let form = form_of(&page);
    for (path, fields) in [
        (format!("/dead-letters/relay/{ID}/requeue"), String::new()),
        (format!("/dead-letters/relay/{ID}/discard"), "&why=x".into()),
        ("/dead-letters/work".into(), "&source=relay&action=requeue".into()),
        ("/dead-letters/selected".into(), format!("&action=requeue&letter=relay%20{ID}%20")),
        ("/consumers/inbox/mailer/pause".into(), String::new()),
        ("/consumers/inbox/mailer/rewind?to_sequence=1&again=yes".into(), "&why=x".into()),
        ("/consumers/inbox/mailer/rewind/cancel".into(), String::new()),
        (format!("/consumers/inbox/mailer/mark-processed?event={ID}"), "&why=x".into()),
        (format!("/consumers/inbox/mailer/try-now?event={ID}"), String::new()),
        ("/work/replays/new".into(), "&source=relay&aggregate=a:b&why=x".into()),
        (format!("/work/replays/relay/{ID}/cancel"), String::new()),
    ] {
        let answer =
            stage.send("POST", &path, &cookie, Some(&format!("form={form}{fields}"))).await;
        assert!(answer.status.is_client_error(), "{path}: {}", answer.status);
        assert!(answer.body.contains("yours is viewer"), "{path}: {}", answer.body);
    }
    assert!(stage.changes.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn an_edited_payload_is_one_decision_and_an_unedited_one_sends_none() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let path = format!("/dead-letters/relay/{ID}");
    let form = form_of(&stage.get(&path, &cookie).await.body);
    let shown = stage.send("POST", &path, &cookie, Some(&format!("form={form}"))).await;
    assert!(shown.body.contains("9007199254740993"), "its digits are kept: {}", shown.body);
    let main = shown.body.matches("class=\"main\"").count();
    assert_eq!((main, shown.body.contains("Requeue as it was")), (1, true), "{}", shown.body);
    let original = "&original=%7B%22n%22%3A1%7D&why=mended";
    for payload in ["%7B%22n%22%3A1%7D", "%7B%22n%22%3A2%7D"] {
        let fields = format!("form={form}{original}&payload={payload}");
        let answer = stage.send("POST", &format!("{path}/requeue"), &cookie, Some(&fields)).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER);
    }
    let changes = stage.changes.lock().expect("no panic").clone();
    let asked = format!("POST /api/v1/outbox/dead-letter/{ID}/requeue");
    let expected = [
        (asked.clone(), r#"{"why":"mended"}"#.to_owned()),
        (asked, r#"{"payload":"{\"n\":2}","why":"mended"}"#.to_owned()),
    ];
    assert_eq!(changes, expected);
}

#[tokio::test]
async fn work_on_many_is_asked_of_the_inbox_with_how_many_and_how_fast() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let plan = "/dead-letters/plan?action=requeue&source=inbox&consumer=a%20b&first=10";
    let form = form_of(&stage.get(plan, &cookie).await.body);
    let fields = "&source=inbox&action=requeue&consumer=a+b&reason=down+&first=10&rate=50";
    let fields = format!("form={form}{fields}");
    let begun = stage.send("POST", "/dead-letters/work", &cookie, Some(&fields)).await;
    assert_eq!(begun.status, StatusCode::SEE_OTHER);
    let changes = stage.changes.lock().expect("no panic").clone();
    let body =
        r#"{"action":"requeue","consumer":"a b","filter":{"reason":"down "},"first":10,"rate":50}"#;
    let expected = ("POST /api/v1/inbox/dead-letter/operations".to_owned(), body.to_owned());
    assert_eq!(changes, [expected]);
}

#[tokio::test]
async fn a_consumers_page_lists_what_fails_and_what_waits_for_it() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let path = format!("/consumers/inbox/{}", crate::state::plan::escape(HOSTILE));
    let page = stage.get(&path, &cookie).await.body;
    let (_, failing) = page.split_once("Failing now").expect("what fails");
    for told in ["data-label=\"Wait behind\">17<", "data-until>in 3", &format!("/events/{ID}")] {
        assert!(failing.contains(told), "{told}: {failing}");
    }
    let path = format!("{path}/try-now?event={ID}");
    let form = form_of(&stage.get(&path, &cookie).await.body);
    let answer = stage.send("POST", &path, &cookie, Some(&format!("form={form}&why=mended"))).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    let (asked, body) = stage.changes.lock().expect("no panic").last().cloned().expect("a change");
    assert!(asked.ends_with(&format!("/events/{ID}/try-now")), "{asked}");
    assert_eq!(body, r#"{"why":"mended"}"#);
    let fields = format!("form={form}&why=too+late");
    let late = stage.send("POST", &path, &cookie, Some(&fields)).await;
    assert_eq!(late.status, StatusCode::SEE_OTHER, "{}", late.body);
    let said = late.headers[header::SET_COOKIE].to_str().expect("text");
    assert!(said.contains("nothing%20to%20try") && said.contains(ID), "{said}");
}

#[tokio::test]
async fn what_is_for_good_needs_a_reason_and_a_count() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let form = form_of(&stage.get("/", &cookie).await.body);
    let path = format!("/dead-letters/relay/{ID}/discard");
    let answer = stage.send("POST", &path, &cookie, Some(&format!("form={form}&why=+"))).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let fields = format!("form={form}&source=relay&action=discard");
    let answer = stage.send("POST", "/dead-letters/work", &cookie, Some(&fields)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(stage.changes.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_console_without_tokens_answers_to_names_of_this_machine_alone() {
    let open =
        |it: &mut Settings| it.upstreams.iter_mut().for_each(|it| it.credential = Credential::None);
    let stage = stage(open).await;
    assert_eq!(stage.get("/", "").await.status, StatusCode::OK);
    for host in ["evil.example", "10.0.0.1:9466"] {
        let request = Request::builder().uri("/").header("host", host).body(Body::empty());
        let request = request.expect("a request");
        let answer = stage.router.clone().oneshot(request).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST, "{host}");
    }
}

#[tokio::test]
async fn a_read_only_console_changes_nothing_whoever_asks() {
    let stage = stage(|it| it.read_only = true).await;
    let cookie = stage.sign_in("admin").await.ok().expect("signed in");
    let form = form_of(&stage.get("/", &cookie).await.body);
    let path = format!("/dead-letters/relay/{ID}/requeue");
    let answer = stage.send("POST", &path, &cookie, Some(&format!("form={form}"))).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(stage.changes.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn pages_work_below_a_prefix_whether_the_proxy_keeps_it_or_not() {
    let stage = stage(|it| it.base_path = "/ops/tailpost".into()).await;
    let answer = stage.get("/ops/tailpost/work", "").await;
    let to = answer.headers[header::LOCATION].to_str().expect("text");
    assert_eq!(to, "/ops/tailpost/sign-in?next=%2Fwork");
    let cookie = stage.sign_in("viewer").await.ok().expect("signed in, without the prefix");
    for path in ["/ops/tailpost", "/ops/tailpost/", "/", "/ops/tailpost/work"] {
        let answer = stage.get(path, &cookie).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        let links = answer.body.split("href=\"").skip(1);
        let foreign: Vec<_> = links
            .filter_map(|it| it.split('"').next())
            .filter(|it| !it.starts_with("/ops/tailpost") && !it.starts_with('#'))
            .collect();
        assert!(foreign.is_empty(), "{path}: {foreign:?}");
    }
}

#[tokio::test]
async fn a_token_that_is_gone_ends_its_session() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("operator").await.ok().expect("signed in");
    let form = form_of(&stage.get("/", &cookie).await.body);
    let out = stage.send("POST", "/sign-out", &cookie, Some(&format!("form={form}"))).await;
    assert_eq!(out.status, StatusCode::SEE_OTHER);
    assert_eq!(stage.get("/", &cookie).await.status, StatusCode::SEE_OTHER);
}

/// The page that it was about is where signing in leads to.
#[tokio::test]
async fn a_session_that_has_ended_says_why_and_leads_back() {
    let stage = stage(|_| {}).await;
    let id = stage.app.sessions.begin("gone", Role::Operator, Some("ben".into()));
    let form = stage.app.sessions.get(&id).expect("a session").form_token;
    let (cookie, letter) = (format!("tailpost={id}"), format!("/dead-letters/relay/{ID}"));
    let fields = format!("form={form}&why=tests");
    let discard = format!("{letter}/discard");
    let link = format!("/sign-in?next=%2Fdead-letters%2Frelay%2F{ID}&amp;why=revoked");
    let posted = stage.send("POST", &discard, &cookie, Some(&fields)).await;
    for answer in [stage.get(&letter, &cookie).await, posted] {
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert!(answer.body.contains("revoked or replaced"), "{}", answer.body);
        assert!(answer.body.replace("&#38;", "&amp;").contains(&link), "{}", answer.body);
        assert!(!answer.body.contains("ben") && !answer.body.contains("<nav"), "{}", answer.body);
    }
    stage.app.sessions.revoke(&id);
    for (cookie, to, says) in [
        (&*cookie, "/sign-in?next=%2Fwork&why=revoked", "revoked or replaced"),
        ("tailpost=0000", "/sign-in?next=%2Fwork&why=forgotten", "the console was restarted"),
    ] {
        let answer = stage.get("/work", cookie).await;
        assert_eq!(answer.headers[header::LOCATION].to_str().expect("text"), to);
        let page = stage.get(to, cookie).await.body;
        assert!(page.contains(says) && page.contains("value=\"/work\""), "{page}");
    }
}

#[tokio::test]
async fn the_next_page_after_signing_in_is_one_of_the_console() {
    let stage = stage(|_| {}).await;
    let form = form_of(&stage.get("/sign-in", "").await.body);
    for (next, to) in
        [("%2Fwork", "/work"), ("%2F%2Fevil.example", "/"), ("https%3A%2F%2Fevil", "/")]
    {
        let fields = format!("form={form}&token=viewer&next={next}");
        let answer = stage.send("POST", "/sign-in", "", Some(&fields)).await;
        assert_eq!(answer.headers[header::LOCATION].to_str().expect("text"), to);
    }
}

#[tokio::test]
async fn the_settings_say_whom_a_console_asks_and_who_somebody_is_whatever_the_role() {
    let stage = stage(|_| {}).await;
    let cookie = stage.sign_in("viewer").await.ok().expect("signed in");
    let page = stage.get("/settings", &cookie).await.body;
    let relay = format!("http://{}/api/v1", stage.app.settings.upstreams[0].authority);
    for told in [env!("CARGO_PKG_VERSION"), &relay, "ada (viewer)", "docs/console.md"] {
        assert!(page.contains(told), "{told}: {page}");
    }
}
