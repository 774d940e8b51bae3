//! What the relay writes down beside the slot, and what it may confirm of that.

use lab::{Direction, Port};
use support::{DEADLINE, TestEnv, until};

/// Who finds the slot beyond what is written down takes it for somebody else's, and begins
/// anew.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_confirmed_that_could_not_be_written_down() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    let mut ids = env.insert(10).await;
    env.wait_stored(10).await;
    env.wait_confirmed().await;
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE tailpost_state").await.expect("lock the table");
    for failures in 1..4 {
        ids.extend(env.insert(10).await);
        env.wait_stored(ids.len() as u64).await;
        until(DEADLINE, "it cannot be written down", async || {
            let held = "cannot write down what may be confirmed";
            relay.log().matches(held).count() >= failures
        })
        .await;
    }
    let sql = "SELECT confirmed_flush_lsn <= checkpoint_lsn FROM pg_replication_slots
               JOIN tailpost_state ON slot = slot_name";
    assert!(lock.query_one(sql, &[]).await.expect("positions").get::<_, bool>(0));
    relay.kill9().await;
    lock.rollback().await.expect("let go");
    drop(relay);
    let _relay = env.relay();
    ids.extend(env.insert(10).await);
    env.wait_confirmed().await;
    assert_eq!(env.epochs().await, 1, "its own slot was taken for another one");
    assert_eq!(env.stored_ids().await, ids);
}

/// What was resolved is to be written down while the relay reads the stream's tail,
/// so that nobody knows where the stream is. It waits: from the place before it can be counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_resync_does_not_forget_how_far_the_stream_had_got() {
    let mut env = TestEnv::proxied().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    env.setup().await;
    let relay = env.relay();
    env.insert(10).await;
    env.wait_stored(10).await;
    env.wait_confirmed().await;
    // Ten more are resolved, which cannot be written down.
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE tailpost_state").await.expect("lock the table");
    env.insert(10).await;
    relay.wait_log("cannot write down what may be confirmed").await;
    // Of the next one nobody hears that it is stored.
    env.to_nats().blackhole(Direction::ToClient);
    env.insert(1).await;
    env.wait_stored(21).await;
    relay.wait_log("reading the stream's tail").await;
    lock.rollback().await.expect("let go");
    relay.wait_log("the stream does not answer").await;
    relay.kill9().await;
    drop(relay);
    env.purge().await;
    env.to_nats().restore().await.expect("restore the network");
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let _relay = env.relay();
    env.wait_confirmed().await;
    env.wait_marked().await;
    assert_eq!(env.epochs().await, 1);
    assert_eq!(env.stored_count().await, 0, "published twice");
}

/// A trigger keeps updates out of the relay's own table: no other relay is blamed for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_a_trigger_swallows_is_named() {
    let mut env = TestEnv::new().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    let relay = env.relay();
    env.insert(5).await;
    env.wait_marked().await;
    env.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER no BEFORE UPDATE ON tailpost_state FOR EACH ROW EXECUTE FUNCTION no()",
    )
    .await;
    env.insert(5).await;
    until(DEADLINE, "status names the cause", async || {
        env.ends_with(0, &["status"]).await.0.contains("tailpost_state keeps no update: a trigger")
    })
    .await;
    assert!(!relay.log().contains("standing by"), "{}", relay.log());
    env.execute("ALTER TABLE tailpost_state DISABLE TRIGGER no").await;
    env.wait_marked().await;
    env.wait_confirmed().await;
}
