//! The relay's own columns, where the application made them or writes them.

use support::{DEADLINE, TestEnv};

use crate::scanner::DOCUMENTED_TABLE;

/// What an application made of a column, and whether doctor and relay are to refuse it.
const COLUMNS: &[(&str, &str)] = &[
    ("seq", "SERIAL"),
    ("seq", "BIGINT GENERATED ALWAYS AS (1) STORED"),
    ("stream_seq", "INT"),
    ("commit_lsn", "TEXT"),
    ("txid", "BIGINT DEFAULT pg_current_xact_id()::text::bigint"),
    ("next_attempt_at", "INTERVAL"),
];

/// The statement of a hint.
fn statement(log: &str) -> String {
    let line = log.lines().rfind(|it| it.contains("run `")).unwrap_or_else(|| panic!("{log}"));
    let (_, rest) = line.split_once("run `").expect("a hint");
    rest.split('`').next().expect("a statement").replace("\\\"", "\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_of_the_relays_with_another_type_is_refused_by_name() {
    for (name, kind) in COLUMNS {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
        env.execute(DOCUMENTED_TABLE).await;
        env.execute(&format!("ALTER TABLE outbox_events ADD COLUMN {name} {kind}")).await;
        let mut expected = env.insert(5).await;
        let named = format!("column \"{name}\"");
        let (_, log) = env.ends_with(4, &["setup"]).await;
        assert!(log.contains(&named), "{name} {kind}: {log}");
        let (report, _) = env.ends_with(1, &["doctor", "--pre"]).await;
        assert!(report.contains(&named), "{name} {kind}: {report}");
        env.execute(&statement(&log)).await;
        env.setup().await;
        let _relay = env.relay();
        expected.extend(env.insert(5).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected, "{name} {kind}");
    }
}

/// The log has the spaces at its end, and a SELECT as text has not.
#[tokio::test(flavor = "multi_thread")]
async fn a_domain_over_a_padded_type_is_refused_by_name() {
    let env = TestEnv::new().await;
    env.execute("CREATE DOMAIN kind AS char(20); CREATE DOMAIN kinds AS kind").await;
    env.execute(&DOCUMENTED_TABLE.replace("aggregate_type TEXT", "aggregate_type kinds")).await;
    let (_, log) = env.ends_with(4, &["setup"]).await;
    assert!(log.contains("column \"aggregate_type\" must be of type text"), "{log}");
    env.execute("ALTER TABLE outbox_events ALTER COLUMN aggregate_type TYPE text").await;
    env.setup().await;
}

/// Set up by an earlier version.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_does_not_start_on_a_column_of_another_type() {
    for mode in ["fenced", "poll"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.setup().await;
        env.execute("ALTER TABLE outbox_events ALTER COLUMN seq TYPE INT").await;
        let relay = env.relay();
        relay.announce("");
        assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
        env.execute(&statement(&relay.log())).await;
        let expected = env.insert(5).await;
        let _relay = env.relay();
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
    }
}

/// Types that are read as well as the documented ones.
#[tokio::test(flavor = "multi_thread")]
async fn times_without_a_zone_and_other_integers_are_taken() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.execute(
        &DOCUMENTED_TABLE
            .replace("published_at TIMESTAMPTZ", "published_at TIMESTAMP")
            .replace("publish_attempts INT", "publish_attempts SMALLINT"),
    )
    .await;
    env.execute(
        "ALTER TABLE outbox_events ADD COLUMN next_attempt_at TIMESTAMP, ADD COLUMN stream VARCHAR",
    )
    .await;
    let mut expected = env.insert(5).await;
    env.setup().await;
    let _relay = env.relay();
    expected.extend(env.insert(5).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    env.ends_with(0, &["doctor"]).await;
    let (told, _) = env.ends_with(0, &["verify"]).await;
    assert!(told.contains("findings       none"), "{told}");
    env.ends_with(0, &["explain", &expected[0].to_string()]).await;
}
