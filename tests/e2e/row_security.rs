//! Policies that hide rows of the outbox from the relay's role.

use support::{DEADLINE, TestEnv};

/// Hidden rows would be neither published nor marked, without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_hides_rows_is_an_error_with_a_remedy() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    env.execute(
        "CREATE ROLE courier LOGIN REPLICATION;
         GRANT ALL ON ALL TABLES IN SCHEMA public TO courier;
         GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO courier;
         ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY;
         CREATE POLICY others_only ON outbox_events USING (aggregate_type <> 'order')",
    )
    .await;
    let url = env.postgres.url("postgres").replace("postgres@", "courier@");
    assert!(url.contains("courier@"), "{url}");
    env.set("DATABASE_URL", &url);
    let (_, told) = env.ends_with(4, &["setup"]).await;
    assert!(told.contains("BYPASSRLS"), "{told}");
    let relay = env.relay();
    relay.announce("row-level security");
    let status = relay.wait_exit(DEADLINE).await;
    assert!(!status.success(), "{}", relay.log());
    assert!(relay.log().contains("BYPASSRLS"), "{}", relay.log());

    env.execute("ALTER ROLE courier BYPASSRLS").await;
    let _relay = env.relay();
    let ids = env.insert(10).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}
