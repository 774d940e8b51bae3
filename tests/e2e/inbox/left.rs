//! One aggregate without progress, and more followers than a worker holds in memory.

use serde_json::json;
use support::RigOptions;

use super::Inbox;

const OTHERS: i64 = 20;

/// R-INB-04: the followers of an event that fails take no room from other aggregates; a worker that
/// begins with them does as well. When it succeeds they follow, in order and once.
// proves: G-EFFECT-2
#[tokio::test(flavor = "multi_thread")]
async fn followers_of_a_failing_event_hold_up_nobody_else() {
    for (mode, followers) in [("transactional", 3_000), ("leased", 1_000)] {
        let mut inbox = Inbox::with(RigOptions::default(), inbox::Layout::Plain).await;
        inbox.set("WORKER_MODE", mode);
        inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
        inbox.rig.execute("CREATE TABLE closed ()").await;
        let hot = |_| "hot".to_owned();
        inbox.publish_as(hot, 0..1, &json!({ "while_closed": true })).await;
        inbox.publish_as(hot, 1..followers + 1, &json!({})).await;
        let others = "effects WHERE aggregate_id <> 'hot'";
        let mut first = inbox.worker();
        first.wait_log("are left in the stream").await;
        inbox.publish_many(0, OTHERS, &json!({})).await;
        inbox.wait_count(others, OTHERS).await;

        inbox.wait_count("inbox_messages WHERE status = 'PROCESSED'", OTHERS).await;
        first.kill();
        let second = inbox.worker();
        inbox.publish_many(OTHERS, OTHERS, &json!({})).await;
        inbox.wait_count(others, 2 * OTHERS).await;
        assert_eq!(inbox.count("effects WHERE aggregate_id = 'hot'").await, 0, "{mode}");
        second.wait_log("are left in the stream").await;

        inbox.rig.execute("DROP TABLE closed").await;
        let all = 1 + followers + 2 * OTHERS;
        inbox.wait_count("effects", all).await;
        inbox.wait_acked().await;
        inbox.assert_exact(all).await;
        let again = "inbox_messages WHERE attempts > 1";
        assert_eq!(inbox.count(again).await, 1, "{mode}: followers were begun once");
        second.stop().await;
    }
}
