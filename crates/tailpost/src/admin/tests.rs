use std::time::Instant;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use operate::{RetentionStatus, RewindStatus};
use outbox::waiting::Waiting;
use relay::{DeadLetterCounts, Role, Sample, SlotSample, Status};
use tokio::sync::watch;
use tower::ServiceExt;

use super::*;
use crate::config::{AdminSettings, BearerToken, Count, Settings};

/// Old rows were deleted in 2026.
fn kept() -> watch::Receiver<RetentionStatus> {
    let last_success_at = Some("2026-10-19T08:00:00Z".parse().expect("a time"));
    let kept =
        RetentionStatus { last_success_at, published_deleted_total: 7, ..Default::default() };
    watch::channel(kept).1
}

/// Two rows wait, and a replay is paused.
fn sampled() -> watch::Receiver<Option<Sample>> {
    let replays = [("paused".to_owned(), 1)].into();
    let slot = SlotSample { wal_status: Some("lost".into()), ..SlotSample::default() };
    let slots = [(0, slot)].into();
    let oldest_unpublished = Duration::from_secs(40);
    let taken = Instant::now().checked_sub(Duration::from_secs(400));
    watch::channel(Some(Sample {
        taken,
        unpublished: 2,
        oldest_unpublished,
        replays,
        slots,
        refused: None,
    }))
    .1
}

/// A rewind slot that keeps a little.
fn rewound() -> watch::Receiver<Option<RewindStatus>> {
    let from = Some("2026-10-19T08:00:00Z".parse().expect("a time"));
    let kept = RewindStatus {
        exists: true,
        from,
        retained_bytes: 9,
        made_total: 2,
        ..RewindStatus::default()
    };
    watch::channel(Some(kept)).1
}

fn admin(status: Status, token: Option<&str>) -> Router {
    let mut settings = Settings::default();
    settings.postgres.url = Some("postgres://ada:s3cret@localhost/shop".into());
    let Ok(config) = settings.relay_config() else { panic!("valid settings") };
    let (_, receiver) = watch::channel(status);
    let watched = vec![Watched::new(&config, receiver, rewound())];
    router(Admin::new(
        Relay::new(watched, &config, Waiting::default(), ("production", sampled()), kept()),
        access(token),
        shown(&settings),
    ))
}

fn access(token: Option<&str>) -> Access {
    let token = token.map(str::to_owned);
    let settings = Settings::default().admin;
    Access::new(&AdminSettings { token: token.map(BearerToken), ..settings }).expect("no files")
}

/// Two shards.
fn sharded(statuses: [Status; 2]) -> Router {
    let mut settings = Settings::default();
    settings.postgres.url = Some("postgres://ada@localhost/shop".into());
    settings.relay.shards = Count(2);
    let Ok(config) = settings.relay_config() else { panic!("valid settings") };
    let shards = config.each_shard();
    let watched = shards.iter().zip(statuses);
    let watched =
        watched.map(|(shard, status)| Watched::new(shard, watch::channel(status).1, rewound()));
    let metrics = ("production", sampled());
    router(Admin::new(
        Relay::new(watched.collect(), &config, Waiting::default(), metrics, kept()),
        access(None),
        shown(&settings),
    ))
}

async fn get(router: Router, path: &str, authorization: Option<&str>) -> (StatusCode, String) {
    let mut request = Request::builder().uri(path);
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request.body(Body::empty()).expect("a valid request");
    let response = router.oneshot(request).await.expect("infallible");
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    (status, String::from_utf8(body.to_vec()).expect("text"))
}

fn busy() -> Status {
    let mut status = Status {
        role: Role::Active,
        postgres_connected: true,
        published_total: 41,
        duplicates_total: 2,
        dead_letters_total: 1,
        dead_letters_by_reason: DeadLetterCounts { refused: 1, ..DeadLetterCounts::default() },
        dropped_total: 5,
        in_flight_events: 3,
        owed_rows: 7,
        unidentified_rows: 6,
        last_progress: Some(Instant::now()),
        ..Status::default()
    };
    status.received_lsn.0 = 1000;
    status.resolved_lsn.0 = 900;
    status.confirmed_flush_lsn.0 = 900;
    status.commit_to_ack.record(Duration::from_millis(3));
    status.commit_to_ack.record(Duration::from_secs(100));
    status.publish_to_ack.record(Duration::from_millis(2));
    status
}

#[tokio::test]
async fn liveness_does_not_depend_on_anything() {
    let stopped = Status { role: Role::Stopped, ..Status::default() };
    assert_eq!(get(admin(stopped, Some("t0ken")), "/livez", None).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_wrong_path_is_told_the_right_ones() {
    let (code, body) = get(admin(busy(), None), "/", None).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    for path in ["/livez", "/readyz", "/metrics", "/api/v1/status"] {
        assert!(body.contains(path), "{body}");
        assert_ne!(get(admin(busy(), None), path, None).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn readiness_is_told_by_code_and_body() {
    let (code, body) = get(admin(busy(), Some("t0ken")), "/readyz", None).await;
    let retention = r#""retention":{"ok":true,"last_success_at":"2026-10-19T08:00:00Z"}"#;
    assert_eq!(code, StatusCode::OK);
    assert_eq!(body, format!(r#"{{"ready":true,"role":"active",{retention}}}"#));
    let (code, body) = get(admin(Status::default(), None), "/readyz", None).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
    let starting = r#"{"ready":false,"role":"starting","reason":"starting""#;
    assert_eq!(body, format!("{starting},{retention}}}"));
}

#[tokio::test]
async fn metrics_show_the_status_under_their_documented_names() {
    let (code, body) = get(admin(busy(), None), "/metrics", None).await;
    assert_eq!(code, StatusCode::OK);
    let labels = r#"env="production",pipeline="tailpost/tailpost",stream="OUTBOX""#;
    for line in [
        format!("tailpost_replication_connected{{{labels}}} 1.0"),
        format!("tailpost_jetstream_connected{{{labels}}} 0.0"),
        format!("tailpost_replication_received_lsn_bytes{{{labels}}} 1000.0"),
        format!("tailpost_replication_lag_bytes{{{labels}}} 100.0"),
        format!("tailpost_outbox_inflight{{{labels}}} 3.0"),
        format!("tailpost_outbox_dropped_total{{{labels}}} 5"),
        format!("tailpost_outbox_owed_rows{{{labels}}} 7.0"),
        format!("tailpost_outbox_unidentified_rows{{{labels}}} 6.0"),
        format!("tailpost_outbox_published_total{{{labels},result=\"stored\"}} 41"),
        format!("tailpost_outbox_published_total{{{labels},result=\"duplicate\"}} 2"),
        format!("tailpost_dead_letters_total{{{labels},source=\"outbox\",reason=\"refused\"}} 1"),
        format!("tailpost_replication_slot_wal_status{{{labels},status=\"lost\"}} 1.0"),
        format!("tailpost_outbox_backlog{{{labels}}} 2.0"),
        format!("tailpost_outbox_oldest_unpublished_age_seconds{{{labels}}} 40.0"),
        format!("tailpost_replays{{{labels},status=\"paused\"}} 1.0"),
        format!("tailpost_outbox_publish_duration_seconds_count{{{labels}}} 1"),
        format!("tailpost_retention_last_success_timestamp_seconds{{{labels}}} 1792396800.0"),
        format!("tailpost_retention_deleted_total{{{labels},what=\"published\"}} 7"),
        format!("tailpost_retention_deleted_total{{{labels},what=\"audit\"}} 0"),
        format!("tailpost_retention_failures_total{{{labels}}} 0"),
        format!("tailpost_rewind_slot_exists{{{labels}}} 1.0"),
        format!("tailpost_rewind_retained_bytes{{{labels}}} 9.0"),
        format!("tailpost_rewind_oldest_timestamp_seconds{{{labels}}} 1792396800.0"),
        format!("tailpost_rewind_made_total{{{labels}}} 2"),
        format!("tailpost_relay_role{{{labels},role=\"active\"}} 1.0"),
        format!("tailpost_relay_role{{{labels},role=\"standby\"}} 0.0"),
        format!("tailpost_outbox_commit_to_ack_seconds_count{{{labels}}} 2"),
        format!("tailpost_outbox_commit_to_ack_seconds_bucket{{{labels},le=\"0.0025\"}} 0"),
        format!("tailpost_outbox_commit_to_ack_seconds_bucket{{{labels},le=\"0.005\"}} 1"),
        format!("tailpost_outbox_commit_to_ack_seconds_bucket{{{labels},le=\"60.0\"}} 1"),
        format!("tailpost_outbox_commit_to_ack_seconds_bucket{{{labels},le=\"+Inf\"}} 2"),
    ] {
        assert!(body.lines().any(|it| it == line), "{line}\nis missing in\n{body}");
    }
    assert!(body.ends_with("# EOF\n"), "{body}");
}

#[tokio::test]
async fn each_shard_has_its_own_figures_below_one_head() {
    let other = Status { published_total: 7, ..busy() };
    let (code, body) = get(sharded([busy(), other]), "/metrics", None).await;
    assert_eq!(code, StatusCode::OK);
    let labels = |shard| {
        format!(
            r#"env="production",pipeline="tailpost/tailpost",shard="{shard}",stream="OUTBOX_{shard}""#
        )
    };
    for (shard, published) in [(0, 41), (1, 7)] {
        let labels = labels(shard);
        for line in [
            format!("tailpost_outbox_inflight{{{labels}}} 3.0"),
            format!("tailpost_outbox_published_total{{{labels},result=\"stored\"}} {published}"),
            format!("tailpost_outbox_commit_to_ack_seconds_count{{{labels}}} 2"),
        ] {
            assert!(body.lines().any(|it| it == line), "{line}\nis missing in\n{body}");
        }
    }
    let mut heads: Vec<_> = body.lines().filter(|it| it.starts_with("# TYPE")).collect();
    let count = heads.len();
    heads.dedup();
    assert_eq!(heads.len(), count, "a family is told twice:\n{body}");
}

#[tokio::test]
async fn shards_are_ready_when_all_of_them_are() {
    let (code, body) = get(sharded([busy(), busy()]), "/readyz", None).await;
    assert_eq!(code, StatusCode::OK, "{body}");
    let (code, body) = get(sharded([busy(), Status::default()]), "/readyz", None).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        body,
        r#"{"ready":false,"reason":"shard 1: starting","shards":[{"shard":0,"ready":true,"role":"active"},{"shard":1,"ready":false,"role":"starting","reason":"starting"}],"retention":{"ok":true,"last_success_at":"2026-10-19T08:00:00Z"}}"#
    );
    let (_, body) = get(sharded([busy(), Status::default()]), "/api/v1/status", None).await;
    let json: serde_json::Value = serde_json::from_str(&body).expect("valid JSON");
    assert_eq!(json["shards"][0]["published_total"], 41);
    assert_eq!(json["shards"][1]["role"], "starting");
    assert_eq!(json["shards"][1]["stream"], "OUTBOX_1");
}

#[tokio::test]
async fn the_status_is_json_without_secrets() {
    let (code, body) = get(admin(busy(), None), "/api/v1/status", None).await;
    assert_eq!(code, StatusCode::OK);
    let json: serde_json::Value = serde_json::from_str(&body).expect("valid JSON");
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["confirmed_flush_lsn"], "0/384");
    assert_eq!(json["published_total"], 41);
    assert!(!body.contains("s3cret"), "{body}");
}

#[tokio::test]
async fn a_token_guards_metrics_and_the_api() {
    for path in ["/metrics", "/api/v1/status"] {
        for (authorization, expected) in [
            (None, StatusCode::UNAUTHORIZED),
            (Some("Bearer t0keX"), StatusCode::UNAUTHORIZED),
            (Some("Bearer t0ken1"), StatusCode::UNAUTHORIZED),
            (Some("Bearer "), StatusCode::UNAUTHORIZED),
            (Some("Basic t0ken"), StatusCode::UNAUTHORIZED),
            (Some("Bearer t0ken"), StatusCode::OK),
            (Some("bearer t0ken"), StatusCode::OK),
        ] {
            let (code, _) = get(admin(busy(), Some("t0ken")), path, authorization).await;
            assert_eq!(code, expected, "{path} {authorization:?}");
        }
    }
}

#[tokio::test]
async fn unknown_paths_are_not_found() {
    assert_eq!(get(admin(busy(), None), "/", None).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_address_of_another_machine_is_an_error_with_a_hint() {
    let socket: std::net::SocketAddr = "192.0.2.1:9464".parse().expect("an address");
    let mut settings = Settings::default();
    settings.postgres.url = Some("postgres://ada@localhost/shop".into());
    let Ok(config) = settings.relay_config() else { panic!("valid settings") };
    let (_, receiver) = watch::channel(Status::default());
    let relay = Relay::new(
        vec![Watched::new(&config, receiver, rewound())],
        &config,
        Waiting::default(),
        ("production", sampled()),
        kept(),
    );
    let address = Address { key: "admin.listen", socket };
    let Err(error) = serve(address, Admin::new(relay, access(None), shown(&settings))).await else {
        panic!("the address is not this machine's");
    };
    assert!(error.to_string().contains(&socket.to_string()), "{error}");
    assert!(crate::errors::hint(&error.into()).is_some_and(|it| it.contains("admin.listen")));
}

/// Routes are added together with what the document says of them, and in no other way.
#[tokio::test]
async fn each_operation_of_the_document_has_a_route() {
    let (code, text) = get(admin(busy(), None), openapi::PATH, None).await;
    assert_eq!(code, StatusCode::OK);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 15, "{text}");
    for (path, operations) in paths {
        let nil = uuid::Uuid::nil().to_string();
        let of_one = path.replace("{id}", &nil).replace("{number}", "1");
        let of_one = of_one.replace("{aggregate}", "order:1");
        for method in operations.as_object().expect("operations").keys() {
            let method = method.to_ascii_uppercase();
            // No JSON: a change gets no further than the route.
            let request = Request::builder().method(&*method).uri(&of_one);
            let request = request.body(Body::empty()).expect("a valid request");
            let router = admin(busy(), None);
            let response = router.oneshot(request).await.expect("infallible");
            let code = response.status();
            let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
            let is_unknown = body.starts_with(b"{\"title\":\"Not Found\"")
                && code == 404
                && String::from_utf8_lossy(&body).contains("there are /livez");
            assert!(!is_unknown && code != 405, "{method} {path}: {code}");
        }
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin");
    for file in std::fs::read_dir(folder).expect("a folder").filter_map(Result::ok) {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let is_here = file.file_name() == "openapi.rs" || file.file_name() == "tests.rs";
        assert!(is_here || !text.contains(".route("), "{:?} adds a route of its own", file.path());
    }
}
