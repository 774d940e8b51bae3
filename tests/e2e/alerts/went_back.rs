//! The database of the inbox comes back without the last of its records, and the stream loses what
//! the inbox has not read.

use support::{DEADLINE, TestEnv};

use super::watch;
use crate::inbox::http::wait_processed;
use crate::inbox::service::Service;

pub(super) const FIRES: &[&str] = &["TailpostConsumerWentBack", "TailpostConsumerMissedMessages"];

pub(super) const WRITES: &[&str] =
    &["tailpost_inbox_went_back_timestamp_seconds", "tailpost_inbox_unread"];

mod long {
    use super::*;

    // proves: G-ALERT-1, G-MET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn the_alert_about_a_consumer_that_went_back_fires_and_ends() {
        let mut env = TestEnv::new().await;
        env.setup().await;
        env.ends_with(0, &["inbox", "setup"]).await;
        let watch = watch(&mut env, true, &[]).await;
        let relay = env.relay();
        relay.announce("");
        let service = Service::start().await;
        let args = service.args();
        let args = args.each_ref().map(String::as_str);
        let inbox = env.spawn(&args);
        env.insert_each(10).await;
        wait_processed(&env, 10).await;
        watch.wait_quiet().await;
        inbox.sigterm();
        inbox.wait_exit(DEADLINE).await;

        // As an earlier state has it.
        env.execute("DELETE FROM inbox_messages WHERE stream_seq > 5").await;
        env.execute("UPDATE inbox_roles SET handled_to = 5, handled_stored_at = NULL").await;
        let inbox = env.spawn(&args);
        inbox.announce("the consumer goes back");
        watch.prometheus.wait_firing(&FIRES[..1]).await;
        wait_processed(&env, 10).await;
        inbox.sigterm();
        inbox.wait_exit(DEADLINE).await;

        env.insert_each(5).await;
        env.ends_with(0, &["wait", "--all"]).await;
        env.purge().await;
        let inbox = env.spawn(&args);
        inbox.announce("left the stream unread");
        watch.prometheus.wait_firing(&FIRES[1..]).await;
        watch.wait_written(WRITES).await;
        env.execute("UPDATE inbox_roles SET unread = 0").await;
        watch.wait_quiet().await;
    }
}
