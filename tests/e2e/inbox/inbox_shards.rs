//! The streams of several shards, each with a consumer of its own, in one process.

use std::collections::HashSet;
use std::fs;

use support::{DEADLINE, TestEnv, until};

use super::service::Service;

mod long {
    use super::*;

    /// Every event of every shard has one effect, and each aggregate's are in order.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_consumer_for_each_shard_handles_every_event_once_in_order() {
        const EVENTS: i32 = 200;
        let mut env = TestEnv::new().await;
        env.set_shards(2);
        let service = Service::start().await;
        let folder = tempfile::tempdir().expect("create a folder");
        let path = folder.path().join("tailpost.toml");
        // As docs/modes.md#several-shards has it.
        let section = |shard: u32| {
            let handler = service.url();
            format!(
                "[inbox.billing_{shard}]\nstream = \"OUTBOX_{shard}\"\nhandler = \"{handler}\"\n"
            )
        };
        fs::write(&path, section(0) + &section(1)).expect("write the configuration");
        let config = path.to_str().expect("UTF-8");
        env.ends_with(0, &["setup", "--config", config]).await;
        let _relay = env.relay();
        let inbox = env.spawn(&["inbox", "run", "--config", config]);
        let ids = env.insert(EVENTS).await;
        service.wait_calls(ids.len()).await;
        let processed = "SELECT count(*) FROM inbox_messages WHERE status = 'PROCESSED'";
        until(DEADLINE, "all is processed", async || {
            env.query::<i64>(processed).await == i64::from(EVENTS)
        })
        .await;
        let calls = service.calls();
        assert_eq!(calls.len(), ids.len(), "an event was handled twice");
        let handled: HashSet<_> = calls.iter().map(|it| it.id).collect();
        assert_eq!(handled, ids.iter().copied().collect());
        for aggregate in 0..10 {
            let id = format!("o-{aggregate}");
            let of_it = calls.iter().filter(|it| it.header("aggregate-id") == id);
            let order: Vec<_> = of_it.map(|it| ids.iter().position(|id| *id == it.id)).collect();
            assert!(!order.is_empty() && order.is_sorted(), "{id}: {order:?}");
        }
        let consumers = "SELECT count(DISTINCT consumer) FROM inbox_messages";
        assert_eq!(env.query::<i64>(consumers).await, 2, "one of the streams has nothing");
        inbox.sigterm();
        assert!(inbox.wait_exit(DEADLINE).await.success());
    }
}
