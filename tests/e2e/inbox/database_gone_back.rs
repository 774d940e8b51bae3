//! The inbox's database is put back to an earlier state: records and effects are undone, and
//! acknowledgements are not.

use std::path::PathBuf;

use lab::Postgres;
use serde_json::json;
use support::{DEADLINE, TestEnv, until};

use super::{Inbox, Worker};
use crate::gone_back::copy;

/// The server's data folder, as it is now.
pub(crate) struct DatabaseCopy(PathBuf);

impl DatabaseCopy {
    pub(crate) async fn take(env: &mut TestEnv) -> Self {
        env.postgres.stop_fast().await.expect("stop PostgreSQL");
        let data = env.postgres.data_dir();
        let copied = data.with_file_name("data copied");
        copy(&data, &copied);
        env.postgres.start_again().await.expect("start PostgreSQL");
        Self(copied)
    }

    pub(crate) async fn put_back(self, env: &mut TestEnv) {
        env.postgres.kill().await.expect("kill PostgreSQL");
        let data = env.postgres.data_dir();
        std::fs::remove_dir_all(&data).expect("remove the data");
        std::fs::rename(&self.0, &data).expect("put the copy back");
        env.postgres.start_again().await.expect("start PostgreSQL");
    }
}

async fn begun(mode: &str) -> (Inbox, Worker) {
    let mut inbox = Inbox::new().await;
    inbox.env.setup().await;
    inbox.set("WORKER_MODE", mode);
    let worker = inbox.worker();
    worker.wait_active().await;
    inbox.publish_many(0, 36, &json!({})).await;
    inbox.wait_acked().await;
    (inbox, worker)
}

async fn assert_whole(inbox: &Inbox, worker: Worker) {
    inbox.wait_count("effects", 100).await;
    inbox.wait_acked().await;
    inbox.assert_exact(100).await;
    let rewinds = "inbox_rewinds WHERE outcome = 'rewound' AND from_seq <= 37";
    assert_eq!(inbox.count(rewinds).await, 1);
    let (status, _) = inbox.env.ends_with(0, &["status"]).await;
    assert!(status.contains("the inbox's database lacks what was acknowledged"), "{status}");
    worker.stop().await;
}

/// Of 100 events that were handled the database knows the first 36 when it comes back.
async fn is_put_back(mode: &str, is_running: bool) {
    let (mut inbox, mut worker) = begun(mode).await;
    let copied = DatabaseCopy::take(&mut inbox.env).await;
    inbox.publish_many(36, 64, &json!({})).await;
    inbox.wait_acked().await;
    inbox.wait_count("effects", 100).await;
    if !is_running {
        worker.kill9().await;
    }
    copied.put_back(&mut inbox.env).await;
    if !is_running {
        let all = ["wait", "--all", "--processed-by", "worker", "--timeout", "1s"];
        inbox.env.ends_with(6, &all).await;
        worker = inbox.worker();
    }
    worker.announce("the consumer goes back");
    assert_whole(&inbox, worker).await;
    let all = ["wait", "--all", "--processed-by", "worker", "--timeout", "5m"];
    inbox.env.ends_with(0, &all).await;
}

// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_put_back_gets_its_effects_again() {
    is_put_back("transactional", false).await;
}

// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_put_back_under_a_worker_gets_its_effects_again() {
    is_put_back("transactional", true).await;
}

// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn under_leases_a_database_that_was_put_back_gets_its_effects_again() {
    is_put_back("leased", false).await;
}

// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn under_leases_a_database_that_is_put_back_under_a_worker_gets_its_effects_again() {
    is_put_back("leased", true).await;
}

/// The standby lacks the last 64 of 100 events that were handled.
async fn is_failed_over(mode: &str) {
    let mut inbox = Inbox::new().await;
    let standby = Postgres::start_standby_of(&inbox.env.postgres, "standby_1", false).await;
    let standby = standby.expect("start a standby");
    let (first, second) = (inbox.env.postgres.port(), standby.port());
    let either = format!("127.0.0.1:{first},127.0.0.1:{second}");
    let url = format!("postgres://postgres@{either}/postgres?target_session_attrs=read-write");
    inbox.set("DATABASE_URL", &url);
    inbox.set("WORKER_MODE", mode);
    let worker = inbox.worker();
    worker.wait_active().await;
    inbox.publish_many(0, 36, &json!({})).await;
    inbox.wait_acked().await;
    let on_standby = standby.client("postgres").await.expect("connect to the standby");
    until(DEADLINE, "the standby has the first ones", async || {
        let count = "SELECT count(*) FROM effects";
        on_standby.query_one(count, &[]).await.expect(count).get::<_, i64>(0) == 36
    })
    .await;
    on_standby.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.expect("cut it off");
    standby.reload().await.expect("reload");
    until(DEADLINE, "the standby is cut off", async || {
        let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
        on_standby.query_one(receivers, &[]).await.expect(receivers).get::<_, i64>(0) == 0
    })
    .await;
    inbox.publish_many(36, 64, &json!({})).await;
    inbox.wait_acked().await;
    worker.announce("the consumer goes back");
    inbox.env.postgres.kill().await.expect("kill the primary");
    on_standby.batch_execute("SELECT pg_promote()").await.expect("promote the standby");
    inbox.env.postgres = standby;
    inbox.env.set("DATABASE_URL", &inbox.env.postgres.url("postgres"));
    assert_whole(&inbox, worker).await;
}

// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lacks_records_gets_their_effects_again() {
    is_failed_over("transactional").await;
}

// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn under_leases_a_standby_that_lacks_records_gets_their_effects_again() {
    is_failed_over("leased").await;
}
