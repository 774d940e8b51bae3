//! Events, slots and replays over HTTP.

use std::net::SocketAddr;

use lab::Port;
use serde_json::{Value, json};
use support::{DEADLINE, Relay, TestEnv, ask, until};
use tokio::net::TcpStream;
use uuid::Uuid;

/// A relay, and its address for operators.
struct Scene {
    env: TestEnv,
    api: SocketAddr,
    _port: Port,
    _relay: Relay,
}

impl Scene {
    async fn new() -> Self {
        let mut env = TestEnv::new().await;
        env.setup().await;
        let port = Port::reserve().expect("a free port");
        let api = port.addr();
        env.set("TAILPOST_ADMIN__LISTEN", &api.to_string());
        let relay = env.relay();
        until(DEADLINE, "the API listens", async || TcpStream::connect(api).await.is_ok()).await;
        Self { env, api, _port: port, _relay: relay }
    }

    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let stream = TcpStream::connect(self.api).await.expect("connect");
        let headers = format!("Host: {}\r\nContent-Type: application/json", self.api);
        let body = body.map_or_else(String::new, |it| it.to_string());
        let path = format!("/api/v1/{path}");
        let told = ask(stream, method, &path, &headers, &body).await.expect("an answer");
        let (head, body) = told.split_once("\r\n\r\n").expect("a whole answer");
        let code = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        (code, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// All ids of a list, page by page.
    async fn pages(&self, path: &str, list: &str) -> Vec<Uuid> {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let (code, page) = self.ask("GET", &format!("{path}{cursor}"), None).await;
            assert_eq!(code, 200, "{page}");
            let found = page[list].as_array().expect("a list");
            ids.extend(found.iter().map(|it| it["id"].as_str().expect("an id").parse::<Uuid>()));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return ids.into_iter().map(|it| it.expect("a UUID")).collect(),
            }
        }
    }
}

/// Events of one transaction happened at the same time: a page ends among them.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_found_page_by_page_and_explained() {
    let scene = Scene::new().await;
    let ids = scene.env.insert(25).await;
    scene.env.wait_marked().await;
    let dead = Uuid::new_v4();
    let sql = "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type,
                   payload, reason, occurred_at)
               VALUES ($1, 'order', 'o-dead', 'Placed', '{}', 'too large', NULL)";
    scene.env.client().await.execute(sql, &[&dead]).await.expect("a dead letter");

    let mut expected = ids.clone();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    expected.push(dead);
    assert_eq!(scene.pages("events?limit=7", "events").await, expected);
    assert_eq!(scene.pages("events?limit=7&state=published", "events").await, expected[..25]);
    assert_eq!(scene.pages("events?limit=5&state=dead", "events").await, [dead]);
    assert_eq!(scene.pages("events?limit=5&state=pending", "events").await, [] as [Uuid; 0]);
    // There is no inbox.
    assert_eq!(
        scene.pages("events?limit=5&dead_at_consumer=true", "events").await,
        [] as [Uuid; 0]
    );
    assert_eq!(
        scene.pages("events?limit=5&until=2020-01-01T00:00:00Z", "events").await,
        [] as [Uuid; 0]
    );
    assert_eq!(scene.pages("events?limit=5&aggregate=order:o-dead", "events").await, [dead]);
    let since = "events?limit=9&since=2020-01-01T00:00:00Z";
    assert_eq!(scene.pages(since, "events").await, expected[..25]);
    let (code, page) = scene.ask("GET", "events?state=dead", None).await;
    assert_eq!((code, page["events"][0]["error"].as_str()), (200, Some("too large")), "{page}");
    for wrong in ["cursor=nonsense", "limit=1001", "state=gone", "aggregate=order", "since=now"] {
        let (code, told) = scene.ask("GET", &format!("events?{wrong}"), None).await;
        assert_eq!(code, 400, "{wrong}: {told}");
    }

    let (code, story) = scene.ask("GET", &format!("events/{}", ids[0]), None).await;
    assert_eq!((code, story["row"]["status"].as_str()), (200, Some("PUBLISHED")), "{story}");
    assert_eq!(story["message"]["stream"], "OUTBOX", "{story}");
    let (code, told) = scene.ask("GET", &format!("events/{}", Uuid::new_v4()), None).await;
    assert_eq!(code, 404, "{told}");
    let (code, slots) = scene.ask("GET", "slots", None).await;
    assert_eq!((code, &slots["slots"][0]["is_configured"]), (200, &json!(true)), "{slots}");
    // The log is kept from where it began.
    let open = scene.env.client().await;
    let begin = "SET application_name = 'month-end'; BEGIN; SELECT pg_current_xact_id()";
    open.batch_execute(begin).await.expect("a transaction that has written");
    let (_, slots) = scene.ask("GET", "slots", None).await;
    assert_eq!(slots["oldest_transaction"]["name"], "month-end", "{slots}");
}

/// As `tailpost outbox dlq list`, page by page: several died in one transaction.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_page_by_page() {
    let scene = Scene::new().await;
    let sql = "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type,
                   payload, reason, seq)
               SELECT gen_random_uuid(), 'order', 'o-1', 'Placed', '{}', 'tests',
                   nullif(n % 4, 0)
               FROM generate_series(1, 23) n";
    scene.env.client().await.execute(sql, &[]).await.expect("dead letters");
    let expected: Vec<Uuid> = scene
        .env
        .query(
            "SELECT array_agg(id ORDER BY dead_at DESC, coalesce(seq, 0) DESC, id DESC)
             FROM outbox_dead_letter",
        )
        .await;
    let found = scene.pages("outbox/dead-letter?limit=4", "dead_letters").await;
    assert_eq!(found, expected);
}

/// The plan first, then the replay, and who asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_planned_asked_for_and_cancelled_over_http() {
    let scene = Scene::new().await;
    scene.env.insert(40).await;
    scene.env.wait_marked().await;
    let (code, told) = scene.ask("POST", "replays", Some(json!({ "dry_run": true }))).await;
    assert_eq!(code, 400, "nothing is said of which events: {told}");
    let plan = json!({ "all": true, "source": "table", "dry_run": true });
    let (code, told) = scene.ask("POST", "replays", Some(plan)).await;
    assert_eq!((code, &told["replays"]), (200, &json!([])), "{told}");
    assert_eq!(told["plans"][0]["stream"], "OUTBOX", "{told}");
    let asked = "SELECT count(*) FROM tailpost_replays";
    assert_eq!(scene.env.query::<i64>(asked).await, 0, "a plan changes nothing");

    let start = json!({ "all": true, "source": "table", "per_second": 1 });
    let (code, told) = scene.ask("POST", "replays", Some(start.clone())).await;
    assert_eq!(code, 400, "no reason is given: {told}");
    let mut start = start;
    start["why"] = "tests".into();
    start["by"] = "ada".into();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (code, told) = scene.ask("POST", "replays", Some(start.clone())).await;
        assert_eq!(code, 202, "{told}");
        ids.push(told["replays"][0].as_str().expect("an id").parse::<Uuid>().expect("a UUID"));
        let path = format!("replays/{}/cancel", ids[ids.len() - 1]);
        let (code, told) = scene.ask("POST", &path, Some(json!({ "by": "bob" }))).await;
        assert_eq!((code, told["status"].as_str()), (200, Some("cancelled")), "{told}");
        assert_eq!(told["asked_by"], "ada", "{told}");
        assert_eq!(told["decisions"][0]["by"], "bob", "{told}");
        let (code, told) = scene.ask("POST", &path, Some(json!({}))).await;
        assert_eq!(code, 409, "{told}");
    }
    ids.reverse();
    assert_eq!(scene.pages("replays?limit=2", "replays").await, ids);
    let (code, _) = scene.ask("GET", &format!("replays/{}", Uuid::new_v4()), None).await;
    assert_eq!(code, 404);
    until(DEADLINE, "connections go back", async || {
        let held = "SELECT count(*) FROM pg_stat_activity
                    WHERE application_name = 'tailpost admin' AND state <> 'idle'";
        scene.env.query::<i64>(held).await == 0
    })
    .await;
}

/// A plan counts rows: what nobody waits for any more ends on the server, and the answer says what
/// has no such bound.
// proves: G-DOOR-2
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_takes_too_long_is_ended_on_the_server() {
    let scene = Scene::new().await;
    scene.env.insert(1).await;
    scene.env.wait_marked().await;
    // As long as a scan of a large table.
    scene
        .env
        .execute(
            "ALTER TABLE tailpost_epochs RENAME TO real_epochs;
             CREATE VIEW tailpost_epochs AS
                 SELECT * FROM real_epochs WHERE pg_sleep(600) IS NOT NULL",
        )
        .await;
    let plan = json!({ "from_lsn": "0/1", "source": "table", "dry_run": true });
    let (code, told) = scene.ask("POST", "replays", Some(plan)).await;
    assert_eq!(code, 503, "{told}");
    assert!(told["hint"].as_str().expect("a hint").contains("`tailpost replay`"), "{told}");
    let counting = "SELECT count(*) FROM pg_stat_activity
                    WHERE application_name = 'tailpost admin' AND state = 'active'";
    let is_over = async || scene.env.query::<i64>(counting).await == 0;
    until(DEADLINE, "the server counts no more", is_over).await;
}

/// Entries of one moment, too, and by the index of their time, however many there are.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_listed_page_by_page_by_its_index() {
    let scene = Scene::new().await;
    let entries = "INSERT INTO outbox_dead_letter_audit (at, action, event_id, aggregate_type,
            aggregate_id, event_type, actor, via)
        SELECT now() - n / 700 * interval '1 s', 'discard', gen_random_uuid(), 'order', 'o-' || n,
            'Placed', 'ada', 'http'
        FROM generate_series(1, 20000) n";
    scene.env.execute(entries).await;
    scene.env.execute("ANALYZE outbox_dead_letter_audit").await;
    let (mut seen, mut cursor) = (std::collections::BTreeSet::new(), String::new());
    for _ in 0..3 {
        let path = format!("audit?limit=1000{cursor}");
        let (code, page) = scene.ask("GET", &path, None).await;
        assert_eq!(code, 200, "{page}");
        let entries = page["entries"].as_array().expect("a list");
        seen.extend(entries.iter().filter_map(|it| it["event_id"].as_str()).map(str::to_owned));
        cursor = format!("&cursor={}", page["next"].as_str().expect("another page"));
    }
    let newest = "SELECT string_agg(event_id::text, ' ') FROM (SELECT event_id
        FROM outbox_dead_letter_audit ORDER BY at DESC, id DESC LIMIT 3000) it";
    let newest = scene.env.query::<String>(newest).await;
    assert_eq!(seen, newest.split(' ').map(str::to_owned).collect());
    let scans = "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_user_indexes
        WHERE indexrelname = 'idx_outbox_dead_letter_audit_at'";
    let what = "the pages were read by the index";
    until(DEADLINE, what, async || scene.env.query::<i64>(scans).await >= 3).await;
}
