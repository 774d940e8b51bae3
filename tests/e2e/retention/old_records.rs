//! The inbox's records and decisions.

use async_nats::jetstream::stream;
use serde_json::Value;
use std::time::Duration;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use crate::inbox::Inbox;

const DAY: Duration = Duration::from_hours(24);

/// A record of an event that happened so many days ago.
fn record(id: Uuid, days: u32, status: &str) -> String {
    format!(
        "INSERT INTO inbox_messages (consumer, message_id, event_time, subject, status, attempts,
             processed_at, expires_at)
         VALUES ('worker', '{id}', date_trunc('day', now()) - interval '{days} days', 's',
             '{status}', 1, CASE '{status}' WHEN 'PROCESSED' THEN now() END,
             CASE '{status}' WHEN 'PROCESSING' THEN now() END);"
    )
}

fn letter(id: Uuid) -> String {
    format!(
        "INSERT INTO inbox_dead_letter (consumer, message_id, event_time, subject, stream,
             stream_seq, headers, payload, attempts, cause, reason)
         SELECT consumer, message_id, event_time, 's', 'OUTBOX', 1, '{{}}', '', 1, 'dead', 'x'
         FROM inbox_messages WHERE message_id = '{id}';"
    )
}

/// Of each event an attempt that failed.
const FAILED: &str =
    "; INSERT INTO inbox_attempts (consumer, message_id, event_time, attempt, took_ms,
        reason)
    SELECT consumer, message_id, event_time, 1, 5, 'no' FROM inbox_messages";

/// Attempts, and those of them that belong to a record.
async fn attempts(env: &TestEnv) -> (i64, i64) {
    let of_record = "SELECT count(*) FROM inbox_attempts JOIN inbox_messages
        USING (consumer, message_id, event_time)";
    (env.query("SELECT count(*) FROM inbox_attempts").await, env.query(of_record).await)
}

async fn statuses(env: &TestEnv) -> Vec<String> {
    env.query(
        "SELECT coalesce(array_agg(status || ' ' || current_date - event_time::date
             ORDER BY event_time, status), '{}') FROM inbox_messages",
    )
    .await
}

async fn limited(inbox: &Inbox) {
    let mut config: stream::Config = inbox.env.stream().await.cached_info().config.clone();
    config.max_age = 2 * DAY;
    let jetstream = inbox.env.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(config).await.expect("limit the stream");
}

/// Records go when they are terminal and nothing needs them; a locked one, or one that is
/// requeued at that moment, stays.
// proves: G-RET-3
#[tokio::test(flavor = "multi_thread")]
async fn records_go_when_nothing_needs_them() {
    for is_partitioned in [true, false] {
        let mut inbox =
            if is_partitioned { Inbox::new().await } else { Inbox::unpartitioned().await };
        limited(&inbox).await;
        let env = &mut inbox.env;
        env.set("TAILPOST_INBOX__RETENTION", "10d");
        let mut script = String::new();
        if is_partitioned {
            // Days of their own, so that they can go as a whole.
            for days in [30, 20, 15] {
                script += &format!(
                    "DO $$ BEGIN EXECUTE format('CREATE TABLE inbox_messages_d{days}
                         PARTITION OF inbox_messages FOR VALUES FROM (%L) TO (%L)',
                         date_trunc('day', now()) - interval '{days} days',
                         date_trunc('day', now()) - interval '{} days'); END $$;",
                    days - 1
                );
            }
        }
        let new = Uuid::new_v4;
        let (dead, locked) = (new(), new());
        script += &record(new(), 30, "PROCESSED");
        script += &record(new(), 20, "PROCESSED");
        script += &record(dead, 20, "DEAD");
        script += &letter(dead);
        script += &record(locked, 15, "REJECTED");
        script += &record(new(), 15, "DEAD");
        script += &record(new(), 1, "PROCESSED");
        script += "INSERT INTO inbox_decisions (decided_at, decision, decided_by, consumer,
                       message_id, event_time)
                   SELECT now() - interval '100 days', 'discard', 'ada', 'worker', message_id,
                       event_time FROM inbox_messages";
        script += FAILED;
        script += "; INSERT INTO inbox_rewinds (consumer, stream, from_seq, until_seq, again,
                       requested_by, removed_to, ended_at, outcome)
                   SELECT 'worker', 'OUTBOX', 1, 2, false, 'ada', 0, at,
                       CASE WHEN at IS NOT NULL THEN 'rewound' END FROM unnest(ARRAY[
                       now() - interval '91 days', now() - interval '89 days', NULL]) AS at";
        env.execute(&script).await;
        let mut client = env.client().await;
        let lock = client.transaction().await.expect("begin");
        let sql = "SELECT FROM inbox_messages WHERE message_id = $1 FOR UPDATE";
        lock.execute(sql, &[&locked]).await.expect("lock a record");

        let told = async |args: &[&str]| {
            let args = [&["maintain", "--json"], args].concat();
            let (told, said) = env.ends_with(0, &args).await;
            eprintln!("{told}{said}");
            serde_json::from_str::<Value>(&told).expect("one JSON object")["inbox"].clone()
        };
        let before = statuses(env).await;
        assert_eq!(told(&["--dry-run"]).await["decisions"], 6);
        assert_eq!(statuses(env).await, before, "a dry run deletes nothing");
        let done = told(&[]).await;
        assert_eq!(done["decisions"], 6, "what was decided about a letter stays");
        assert_eq!(env.query::<i64>("SELECT count(*) FROM inbox_rewinds").await, 2);
        let kept = ["DEAD 20", "REJECTED 15", "PROCESSED 1"];
        assert_eq!(statuses(env).await, kept);
        assert_eq!(attempts(env).await, (3, 3));
        lock.commit().await.expect("let go of the record");
        told(&[]).await;
        assert_eq!(statuses(env).await, ["DEAD 20", "PROCESSED 1"]);
        // Somebody requeues the letter: what is unfinished stays, and so does all that is younger.
        let requeue =
            format!("UPDATE inbox_messages SET status = 'FAILED' WHERE message_id = '{dead}'");
        env.execute(&requeue).await;
        told(&[]).await;
        assert_eq!(statuses(env).await, ["FAILED 20", "PROCESSED 1"]);
        let status = env.ends_with(0, &["status"]).await.0;
        assert!(status.contains("inbox upkeep"), "{status}");
    }
}

/// A partition that somebody reads for long is left to the next pass, and the inbox's
/// statements do not queue behind that.
// proves: G-RET-2
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_somebody_reads_is_dropped_later() {
    let mut inbox = Inbox::new().await;
    limited(&inbox).await;
    let env = &mut inbox.env;
    env.set("TAILPOST_INBOX__RETENTION", "10d");
    env.execute(
        "CREATE TABLE inbox_messages_old PARTITION OF inbox_messages
             FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')",
    )
    .await;
    let mut client = env.client().await;
    let reader = client.transaction().await.expect("begin");
    reader.execute("SELECT FROM inbox_messages_old", &[]).await.expect("read");
    let (told, _) = env.ends_with(0, &["maintain", "--json"]).await;
    assert!(told.contains("\"dropped\":0"), "{told}");
    reader.rollback().await.expect("end reading");
    let (told, _) = env.ends_with(0, &["maintain", "--json"]).await;
    assert!(told.contains("\"dropped\":1"), "{told}");
}

/// A worker looks after the tables by itself, one at a time, and a failure ends nothing.
// proves: G-RET-2
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_looks_after_the_tables_by_itself() {
    let inbox = Inbox::new().await;
    inbox.env.execute("ALTER TABLE inbox_decisions RENAME TO elsewhere").await;
    let mut inbox = inbox;
    inbox.set("WORKER_DECISIONS_DAYS", "90");
    let worker = inbox.worker();
    inbox.publish("o-1", serde_json::json!({})).await;
    inbox.wait_count("effects", 1).await;
    inbox.wait_count("inbox_retention WHERE failure IS NOT NULL", 1).await;
    inbox.env.execute("ALTER TABLE elsewhere RENAME TO inbox_decisions").await;
    let old = record(Uuid::new_v4(), 1, "PROCESSED")
        + "INSERT INTO inbox_decisions (decided_at, decision, decided_by, consumer, message_id,
               event_time)
           SELECT now() - interval '100 days', 'discard', 'ada', 'gone', message_id, event_time
           FROM inbox_messages";
    inbox.env.execute(&old).await;
    until(DEADLINE, "old decisions are gone", async || inbox.count("inbox_decisions").await == 0)
        .await;
    inbox.wait_count("inbox_retention WHERE failure IS NULL AND decisions_deleted > 0", 1).await;
    assert_eq!(worker.log().matches("could not look after").count(), 1, "{}", worker.log());
    worker.stop().await;
}
