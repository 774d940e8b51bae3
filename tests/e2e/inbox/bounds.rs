//! What is much takes time, not memory.

use serde_json::json;

use super::{Inbox, Worker};

/// Of 200 MiB that wait: what it holds (16 MiB), and twice that for what is on its way.
const MEMORY_MAX: u64 = 48 << 20;

fn assert_bounded(worker: &Worker) {
    let peak = worker.peak_memory();
    eprintln!("peak of memory: {} KiB", peak >> 10);
    assert!(peak < MEMORY_MAX, "{peak} bytes of memory");
}

/// What is acknowledged is on the disk, whatever the role's default.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_recorded_is_durable_where_commits_do_not_wait_for_the_disk() {
    for mode in ["transactional", "leased"] {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MODE", mode);
        inbox
            .env
            .execute(
                "ALTER ROLE postgres SET synchronous_commit = off;
                 CREATE TABLE how (durable TEXT);
                 CREATE FUNCTION note() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
                     INSERT INTO how VALUES (current_setting('synchronous_commit'));
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER note BEFORE INSERT OR UPDATE ON inbox_messages
                     FOR EACH ROW EXECUTE FUNCTION note()",
            )
            .await;
        inbox.publish("o-1", json!({})).await;
        inbox.publish("o-2", json!({ "fail_before": 2 })).await;
        let worker = inbox.worker();
        inbox.wait_count("effects", 2).await;
        worker.stop().await;
        assert!(inbox.count("how WHERE durable = 'on'").await >= 2, "{mode}");
        assert_eq!(inbox.count("how WHERE durable <> 'on'").await, 0, "{mode}");
    }
}

mod long {
    use super::*;

    /// What a worker had when it was killed is read in portions that there is room for, what
    /// was acknowledged behind one event that is held as well as what was not.
    #[tokio::test(flavor = "multi_thread")]
    async fn many_large_events_behind_one_that_is_held_take_little_memory_after_a_crash() {
        const FOLLOWERS: u64 = 18_000;
        const DONE: u64 = 2_000;
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
        inbox.env.execute("CREATE TABLE closed ()").await;
        let large = json!({ "note": "x".repeat(10 << 10) });
        inbox.publish("held", json!({ "while_closed": true })).await;
        inbox.publish_quickly("held", FOLLOWERS, &large).await;
        inbox.publish_quickly("other", DONE, &large).await;
        let first = inbox.worker();
        inbox.wait_count("effects", DONE as i64).await;
        assert_bounded(&first);
        first.kill9().await;

        let second = inbox.worker();
        inbox.publish("new", json!({})).await;
        inbox.wait_count("effects", DONE as i64 + 1).await;
        second.wait_log("read from the stream what was delivered before").await;
        assert_bounded(&second);
        assert_eq!(inbox.count("effects WHERE aggregate_id = 'held'").await, 0);
    }
}
