//! The stream comes back without its end.

use support::TestEnv;

use super::watch;
use crate::gone_back::StoreCopy;

const LOST: &[&str] = &["TailpostStreamLostMessages"];
const LACKS: &[&str] = &["TailpostStreamLacksMessages"];

pub(super) const FIRES: &[&str] = &["TailpostStreamLostMessages", "TailpostStreamLacksMessages"];

pub(super) const WRITES: &[&str] = &[
    "tailpost_stream_lost_timestamp_seconds",
    "tailpost_stream_compared_timestamp_seconds",
    "tailpost_stream_lost_unanswered",
    "tailpost_outbox_missing_total",
];

mod long {
    use super::*;

    // proves: G-ALERT-1, G-MET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn the_alert_about_lost_messages_fires_and_ends() {
        let mut env = TestEnv::new().await;
        env.setup().await;
        let watch = watch(&mut env, false, &[]).await;
        let relay = env.relay();
        relay.announce("the stream has lost acknowledged messages");
        relay.announce("the stream lacks what a row says it has");
        env.insert_each(5).await;
        env.wait_marked().await;
        let copy = StoreCopy::take(&mut env).await;
        env.insert_each(5).await;
        env.wait_marked().await;
        watch.wait_quiet().await;

        copy.put_back(&mut env).await;
        watch.prometheus.wait_firing(LOST).await;
        watch.wait_written(&WRITES[..1]).await;
        let (status, _) = env.ends_with(0, &["status"]).await;
        assert!(status.contains("without 5 messages that it had acknowledged: 5 rows"), "{status}");
        watch.wait_quiet().await;

        // Rows of lost messages are gone.
        let copy = StoreCopy::take(&mut env).await;
        env.insert_each(5).await;
        env.wait_marked().await;
        env.execute("DELETE FROM outbox_events WHERE stream_seq > 13").await;
        copy.put_back(&mut env).await;
        watch.prometheus.wait_firing(LOST).await;
        watch.wait_written(&WRITES[..3]).await;
        env.wait_stored(13).await;
        env.insert_each(1).await;
        env.wait_marked().await;
        let (status, _) = env.ends_with(0, &["status"]).await;
        assert!(
            status.contains("3 rows are published again, and no row tells of the other 2"),
            "{status}"
        );
        let (_, statement) = status.split_once("Once that is done: ").expect("a statement");
        env.execute(statement.lines().next().expect("a line")).await;
        watch.prometheus.wait_ended(LOST).await;
        let (status, _) = env.ends_with(0, &["status"]).await;
        assert!(!status.contains("no row tells"), "{status}");

        // Somebody removes what no limit of the stream does. A session compares soon after it began.
        env.execute("UPDATE outbox_events SET published_at = published_at + interval '1 minute'")
            .await;
        let jetstream = env.nats.jetstream().await.expect("connect to NATS");
        let stream = jetstream.get_stream("OUTBOX").await.expect("the stream");
        stream.purge().sequence(9).await.expect("purge it");
        env.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
        )
        .await;
        watch.prometheus.wait_firing(LACKS).await;
        watch.wait_written(WRITES).await;
        let (status, _) = env.ends_with(0, &["status"]).await;
        assert!(status.contains("of stream OUTBOX, which has no message there"), "{status}");
        assert!(relay.log().contains("the stream lacks what a row says it has"), "{}", relay.log());
        watch.prometheus.wait_ended(LACKS).await;
    }
}
