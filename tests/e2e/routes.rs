//! Routes: events go where the first rule that takes them says, and dropped ones go nowhere, are
//! done with, and hold nothing up.

use std::io::Write;

use async_nats::jetstream::stream::Config;
use outbox::DROPPED;
use support::TestEnv;
use tempfile::NamedTempFile;
use uuid::Uuid;

const ROUTES: &str = r#"
    [[route]]
    aggregate_type = "order"
    event_type = "Order*"
    subject = "sales.{aggregate_id}"

    [[route]]
    aggregate_type = "us_r"
    event_type = "Kept%"
    subject = "outbox.kept.{aggregate_id}"

    [[route]]
    aggregate_type = "us_r"
    event_type = "*"
    drop = true

    [[route]]
    event_type = "*'\\beat"
    drop = true
"#;

/// Aggregate type, event type, and the subject, or none if a route drops it.
const KINDS: [(&str, &str, Option<&str>); 7] = [
    ("order", "OrderPlaced", Some("sales.a")),
    ("order", "Refunded", Some("outbox.order.Refunded")),
    ("us_r", "Kept%", Some("outbox.kept.a")),
    ("us_r", "Keptx", None),
    // What the same rules would take if SQL's wildcards meant anything.
    ("user", "Keptx", Some("outbox.user.Keptx")),
    ("machine", r"Heart'\beat", None),
    ("us_r", "", None),
];

/// Tells `tailpost` to use these routes.
fn with_routes(env: &mut TestEnv, routes: &str) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("create a file");
    file.write_all(routes.as_bytes()).expect("write the routes");
    env.set("TAILPOST_CONFIG", file.path().to_str().expect("UTF-8"));
    file
}

/// Inserts `n` events of all kinds in turn, in one transaction. Returns those to be published, with
/// their subjects and in order, and those to be dropped.
async fn insert(env: &TestEnv, n: usize) -> (Vec<(Uuid, String)>, Vec<Uuid>) {
    let mut client = env.client().await;
    let transaction = client.transaction().await.expect("begin");
    let (mut published, mut dropped) = (Vec::new(), Vec::new());
    for (aggregate_type, event_type, subject) in KINDS.iter().cycle().take(n) {
        let id = Uuid::new_v4();
        let sql =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   VALUES ($1, $2, 'a', $3, '{}')";
        let inserted = transaction.execute(sql, &[&id, aggregate_type, event_type]).await;
        inserted.expect("insert an event");
        match subject {
            Some(subject) => published.push((id, (*subject).to_owned())),
            None => dropped.push(id),
        }
    }
    transaction.commit().await.expect("commit");
    (published, dropped)
}

/// Checks that the stream has exactly `published`, and that `dropped` are marked as such, and those
/// only.
async fn assert_routed(env: &TestEnv, published: &[(Uuid, String)], dropped: &[Uuid]) {
    env.wait_stored(published.len() as u64).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    let stored = env.stored().await.into_iter().map(|it| (it.id, it.subject));
    assert_eq!(stored.collect::<Vec<_>>(), published);
    let sql = "SELECT id FROM outbox_status
               WHERE stream IS NULL AND stream_seq IS NULL AND publish_error = $1
                   AND status = 'PUBLISHED'";
    let rows = env.client().await.query(sql, &[&DROPPED]).await.expect("dropped rows");
    let mut marked: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    let mut dropped = dropped.to_vec();
    marked.sort_unstable();
    dropped.sort_unstable();
    assert_eq!(marked, dropped);
    let rest =
        "SELECT count(*) FROM outbox_events WHERE stream = 'OUTBOX' AND publish_error IS NULL";
    assert_eq!(usize::try_from(env.query::<i64>(rest).await), Ok(published.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn routed_and_dropped_events_of_one_transaction_stay_in_order_and_are_done_with() {
    let mut env = TestEnv::new().await;
    let _routes = with_routes(&mut env, ROUTES);
    env.setup().await;
    let subjects = env.stream().await.cached_info().config.subjects.clone();
    assert_eq!(subjects, ["outbox.>", "sales.*"]);

    let relay = env.relay();
    let (mut published, mut dropped) = insert(&env, 500).await;
    assert_routed(&env, &published, &dropped).await;
    let (json, _) = env.ends_with(0, &["status", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["outbox"]["dropped"], dropped.len());
    assert_eq!(json["outbox"]["unpublished"], 0);
    let positions = "SELECT count(*) FROM outbox_events WHERE commit_lsn IS NOT NULL";
    assert_eq!(env.query::<i64>(positions).await, 500);

    // Nothing comes again: not to the stream, and no row is marked anew.
    let marks = "SELECT md5(string_agg(published_at::TEXT, ',' ORDER BY seq)) FROM outbox_events
                 WHERE seq <= 500";
    let before: String = env.query(marks).await;
    relay.kill9().await;
    drop(relay);
    let _relay = env.relay();
    let (more, gone) = insert(&env, 20).await;
    published.extend(more);
    dropped.extend(gone);
    assert_routed(&env, &published, &dropped).await;
    assert_eq!(env.query::<String>(marks).await, before);
}

/// The sweeper, which reads no row, judges as the relay did.
#[tokio::test(flavor = "multi_thread")]
async fn lost_marks_of_dropped_events_are_restored_as_they_were() {
    let mut env = TestEnv::new().await;
    let _routes = with_routes(&mut env, ROUTES);
    env.setup().await;
    let relay = env.relay();
    let (published, dropped) = insert(&env, 100).await;
    assert_routed(&env, &published, &dropped).await;
    relay.kill9().await;
    drop(relay);
    env.execute(
        "UPDATE outbox_events SET published_at = NULL, stream = NULL, stream_seq = NULL,
             commit_lsn = NULL, publish_error = NULL",
    )
    .await;
    let relay = env.relay();
    assert_routed(&env, &published, &dropped).await;
    relay.wait_log("marked rows whose marks were lost").await;
    assert!(!relay.log().contains("the scanner found rows"), "{}", relay.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scanner_drops_what_the_log_would_drop() {
    let mut env = TestEnv::new().await;
    let _routes = with_routes(&mut env, ROUTES);
    env.set("TAILPOST_RELAY__SCAN_BATCH", "10");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.setup().await;
    env.drop_slot("tailpost").await;
    let (mut published, mut dropped) = insert(&env, 100).await;
    let relay = env.relay();
    assert_routed(&env, &published, &dropped).await;
    relay.wait_log("the scanner found rows").await;
    relay.wait_log("the scanner is done").await;
    let (more, gone) = insert(&env, 20).await;
    published.extend(more);
    dropped.extend(gone);
    assert_routed(&env, &published, &dropped).await;
}

/// An outbox of which nothing is published retains no log, in either mode.
#[tokio::test(flavor = "multi_thread")]
async fn where_everything_is_dropped_nothing_waits() {
    for mode in ["fenced", "keyed"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        let _routes = with_routes(&mut env, "[[route]]\nevent_type = \"*\"\ndrop = true\n");
        env.setup().await;
        let _relay = env.relay();
        let ids = env.insert(2_000).await;
        assert_routed(&env, &[], &ids).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_lacks_a_routes_subjects_is_refused_with_what_mends_it() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let _routes = with_routes(&mut env, ROUTES);
    for command in ["setup", "relay"] {
        let (_, log) = env.ends_with(4, &[command]).await;
        assert!(log.contains("sales.* is missing"), "{log}");
        assert!(log.contains("nats stream edit OUTBOX --subjects 'outbox.*.*,sales.*'"), "{log}");
    }
    let mended = Config {
        subjects: vec!["outbox.*.*".into(), "sales.*".into()],
        ..env.stream().await.cached_info().config.clone()
    };
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(mended).await.expect("mend the stream");
    let _relay = env.relay();
    let (published, dropped) = insert(&env, 20).await;
    assert_routed(&env, &published, &dropped).await;
}
