//! Rows without marks of their own.

use super::{env, left, maintain, sorted, stop};

/// With `relay.mark = "lean"` rows go once the watermark has covered them for long
/// enough, and no others do.
// proves: G-RET-1
#[tokio::test(flavor = "multi_thread")]
async fn rows_go_that_a_watermark_covered_long_ago() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    env.setup().await;
    let relay = env.relay();
    let old = env.insert(20).await;
    env.wait_covered().await;
    assert_eq!(maintain(&env, &[]).await["published"], 0, "nobody knows for how long");
    // It was noted; an hour goes by.
    let noted: i64 = env.query("SELECT count(*) FROM tailpost_published_history").await;
    assert_eq!(noted, 1);
    env.execute("UPDATE tailpost_published_history SET seen_at = now() - interval '2 hours'").await;
    let young = env.insert(10).await;
    env.wait_covered().await;

    env.nats.pause().expect("pause NATS");
    let unpublished = env.insert(10).await;
    let (owed, dead) = (old[1], old[2]);
    let plant = format!(
        "INSERT INTO tailpost_owed (id, parked) VALUES ('{owed}', true);
         INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
             reason)
         VALUES ('{dead}', 'order', 'o-1', 'Placed', '{{}}', 'parked beside its row')"
    );
    // What is owed a removal is removed as soon as a relay looks: in one statement with the look.
    let mut client = env.client().await;
    let hold = client.transaction().await.expect("begin");
    let lock = "SELECT FROM outbox_events WHERE id = ANY($1) FOR UPDATE";
    hold.execute(lock, &[&vec![owed, dead]]).await.expect("lock rows");
    env.execute(&plant).await;
    assert_eq!(maintain(&env, &[]).await["published"], 18);
    assert_eq!(left(&env).await, sorted(&[&old[1..3], &young, &unpublished]));
    // A copy of the database in another cluster: transactions have other numbers there.
    env.execute("UPDATE tailpost_published_history SET seen_at = now() - interval '2 hours'").await;
    env.execute("DELETE FROM tailpost_owed; DELETE FROM outbox_dead_letter").await;
    let id: String = env.query("SELECT system_identifier FROM tailpost_state").await;
    env.execute("UPDATE tailpost_state SET system_identifier = '7'").await;
    assert_eq!(maintain(&env, &[]).await["published"], 0);
    env.execute(&format!("UPDATE tailpost_state SET system_identifier = '{id}'")).await;
    hold.commit().await.expect("let go of the rows");
    env.nats.resume().expect("resume NATS");
    env.wait_stored(40).await;
    assert_eq!(env.stored_ids().await, [&old[..], &young, &unpublished].concat());
    stop(relay).await;
}
