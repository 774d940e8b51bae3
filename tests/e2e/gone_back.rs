//! The stream comes back without the last of what it has acknowledged.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use async_nats::jetstream::stream::DiscardPolicy;
use lab::Port;
use support::{DEADLINE, Relay, TestEnv, get, until};

pub(crate) fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(done.success(), "copy the store");
}

/// The broker's store, as it is now.
pub(crate) struct StoreCopy(PathBuf);

impl StoreCopy {
    pub(crate) async fn take(env: &mut TestEnv) -> Self {
        env.nats.stop().await.expect("stop the broker");
        let copied = env.nats.copy_store().expect("copy the store");
        env.nats.start_again().await.expect("start the broker");
        Self(copied)
    }

    /// The broker ends as by a power cut, and starts from the copy.
    pub(crate) async fn put_back(self, env: &mut TestEnv) {
        env.nats.kill().await.expect("kill the broker");
        self.restore(env).await;
    }

    /// The stream is the copy's, and its consumers are not.
    pub(crate) async fn put_stream_back(self, env: &mut TestEnv) {
        env.nats.stop().await.expect("stop the broker");
        let store = env.nats.store_dir();
        let consumers = |store: &Path| store.join("jetstream/$G/streams/OUTBOX/obs");
        std::fs::remove_dir_all(consumers(&self.0)).expect("remove the copied consumers");
        copy(&consumers(&store), &consumers(&self.0));
        self.restore(env).await;
    }

    /// The consumers are the copy's, and the stream is not.
    pub(crate) async fn put_consumers_back(self, env: &mut TestEnv) {
        env.nats.stop().await.expect("stop the broker");
        let store = env.nats.store_dir();
        let consumers = |store: &Path| store.join("jetstream/$G/streams/OUTBOX/obs");
        std::fs::remove_dir_all(consumers(&store)).expect("remove the consumers");
        copy(&consumers(&self.0), &consumers(&store));
        std::fs::remove_dir_all(&self.0).expect("remove the copy");
        env.nats.start_again().await.expect("start the broker");
    }

    /// The broker, which has ended, starts from the copy.
    pub(crate) async fn restore(self, env: &mut TestEnv) {
        env.removes_messages();
        env.nats.put_store_back(&self.0).expect("put the copy back");
        env.nats.start_again().await.expect("start the broker");
    }
}

/// Each row's message is where its mark says, and nothing is stored twice.
async fn assert_whole(env: &TestEnv) {
    until(DEADLINE, "each row names a message of the stream", async || {
        let rows = "SELECT id, stream_seq FROM outbox_events ORDER BY stream_seq";
        let rows = env.client().await.query(rows, &[]).await.expect("rows");
        let marked: Vec<_> = rows
            .iter()
            .map(|row| (row.get::<_, uuid::Uuid>(0), row.get::<_, Option<i64>>(1)))
            .collect();
        let stored = env.stored().await;
        let stored: Vec<_> =
            stored.iter().map(|it| (it.id, Some(it.sequence.cast_signed()))).collect();
        marked == stored
    })
    .await;
}

pub(crate) async fn is_noticed(env: &TestEnv, lost: i64) {
    let noted =
        "SELECT coalesce(max(lost_rows), 0) FROM tailpost_streams WHERE lost_at IS NOT NULL";
    until(DEADLINE, "the loss is written down", async || env.query::<i64>(noted).await == lost)
        .await;
}

/// Of 50 events and so many `more` the copy has the first.
async fn published_beyond_a_copy(mode: &str, more: usize) -> (TestEnv, Relay, StoreCopy) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    env.setup().await;
    let relay = env.relay();
    env.insert_each(50).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    env.insert_each(more).await;
    env.wait_marked().await;
    (env, relay, copy)
}

/// With the relay running, and after it was killed.
async fn comes_back(mode: &str, is_running: bool) {
    let (mut env, relay, copy) = published_beyond_a_copy(mode, 200).await;
    let relay = match is_running {
        true => Some(relay),
        false => {
            relay.kill9().await;
            None
        }
    };
    copy.put_back(&mut env).await;
    let relay = relay.unwrap_or_else(|| env.relay());
    relay.announce("the stream has lost acknowledged messages");
    is_noticed(&env, 200).await;
    env.insert_each(30).await;
    assert_whole(&env).await;
    assert_eq!(env.stored().await.len(), 280);
    drop(relay);
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_its_end_gets_it_again_from_the_rows() {
    comes_back("fenced", true).await;
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_lost_its_end_while_no_relay_ran_gets_it_again() {
    comes_back("fenced", false).await;
}

/// A trigger or a constraint lets no published row be published again: nothing goes on, out of order,
/// until the statement is run that is named.
async fn what_keeps_marks_is_named(mode: &str) {
    for keeps in [
        "CREATE FUNCTION frozen() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE 'it is published'; END $$;
         CREATE TRIGGER frozen BEFORE UPDATE ON outbox_events FOR EACH ROW
             WHEN (NEW.published_at IS NULL) EXECUTE FUNCTION frozen()",
        "ALTER TABLE outbox_events ADD CONSTRAINT \"Frozen\"
             CHECK (published_at IS NOT NULL OR occurred_at > '2026-01-01') NOT VALID",
    ] {
        let (mut env, relay, copy) = published_beyond_a_copy(mode, 20).await;
        if keeps.contains("CHECK") {
            env.execute("UPDATE outbox_events SET occurred_at = '2025-01-01'").await;
        }
        env.execute(keeps).await;
        copy.put_back(&mut env).await;
        let mends =
            crate::not_logged::ends(&relay, "rows of messages that the stream has lost").await;
        env.execute(&mends).await;
        let relay = env.relay();
        relay.announce("the stream has lost acknowledged messages");
        is_noticed(&env, 20).await;
        env.insert_each(30).await;
        assert_whole(&env).await;
        assert_eq!(env.stored().await.len(), 100);
    }
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_keeps_lost_rows_marked_stops_the_relay_and_is_named() {
    what_keeps_marks_is_named("fenced").await;
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn in_poll_mode_a_trigger_that_keeps_lost_rows_marked_stops_the_relay_and_is_named() {
    what_keeps_marks_is_named("poll").await;
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn in_keyed_mode_a_stream_without_its_end_gets_it_again() {
    comes_back("keyed", true).await;
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn in_poll_mode_a_stream_without_its_end_gets_it_again() {
    comes_back("poll", true).await;
}

pub(crate) async fn others_publish(env: &TestEnv, messages: usize) {
    let client = async_nats::connect(env.nats.url()).await.expect("connect");
    let jetstream = async_nats::jetstream::new(client);
    for _ in 0..messages {
        let stored = jetstream.publish("outbox.others", "{}".into()).await.expect("send");
        stored.await.expect("an acknowledgement");
    }
}

/// The stream ends before what it has acknowledged, and further than it came back.
async fn others_are_stored_in_between(mode: &str) {
    let (mut env, relay, copy) = published_beyond_a_copy(mode, 400).await;
    relay.kill9().await;
    copy.put_back(&mut env).await;
    others_publish(&env, 300).await;
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    is_noticed(&env, 400).await;
    assert_eq!(env.query::<i64>("SELECT lost FROM tailpost_streams").await, 400);
    assert_rows_are_stored(&env, 450).await;
    drop(relay);
}

/// Each row's message is where its mark says.
async fn assert_rows_are_stored(env: &TestEnv, rows: usize) {
    until(DEADLINE, "each row names its message", async || {
        let ids: HashMap<_, _> = env.stored().await.iter().map(|it| (it.sequence, it.id)).collect();
        let marked = "SELECT id, stream_seq FROM outbox_events WHERE stream_seq > 0";
        let marked = env.client().await.query(marked, &[]).await.expect("rows");
        let is_there = |row: &&tokio_postgres::Row| {
            ids.get(&row.get::<_, i64>(1).cast_unsigned()) == Some(&row.get(0))
        };
        marked.iter().filter(is_there).count() == rows
    })
    .await;
}

/// The stream is not shorter than it was, and lacks what it has acknowledged.
async fn grows_again(mode: &str, is_running: bool) {
    let (mut env, relay, copy) = published_beyond_a_copy(mode, 100).await;
    let relay = match is_running {
        true => Some(relay),
        false => {
            relay.kill9().await;
            None
        }
    };
    if let Some(relay) = &relay {
        relay.pause();
    }
    copy.put_back(&mut env).await;
    others_publish(&env, 150).await;
    let relay = relay.unwrap_or_else(|| env.relay());
    relay.resume();
    relay.announce(
        "the stream has lost acknowledged messages, and others are stored in their places",
    );
    is_noticed(&env, 100).await;
    env.insert_each(10).await;
    assert_rows_are_stored(&env, 160).await;
    let events = env.stored_ids().await.into_iter().filter(|id| !id.is_nil()).count();
    assert_eq!(events, 160, "each once");
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_lost_its_end_and_grew_again_gets_its_events_again() {
    grows_again("fenced", false).await;
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_lost_its_end_and_grew_again_under_a_session_gets_its_events_again() {
    grows_again("keyed", true).await;
}

/// Such a row names no message: it may have one that is lost, or one that is there.
// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn what_was_marked_on_trust_and_is_lost_is_published_again() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    let mut ids = env.insert_each(50).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    ids.extend(env.insert_each(50).await);
    env.wait_marked().await;
    env.wait_confirmed().await;
    relay.kill9().await;
    env.execute(
        "UPDATE outbox_events SET stream_seq = NULL, commit_lsn = NULL
         WHERE stream_seq BETWEEN 40 AND 60 OR stream_seq > 95",
    )
    .await;
    copy.put_back(&mut env).await;
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    relay.announce("rows came into the outbox without passing the log");
    ids.extend(env.insert_each(10).await);
    let trusted = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
    until(DEADLINE, "the stream has each event", async || {
        env.stored_count().await >= 110 && env.query::<i64>(trusted).await == 0
    })
    .await;
    let mut stored = env.stored_ids().await;
    stored.sort_unstable();
    ids.sort_unstable();
    assert_eq!(stored, ids, "each once");
}

/// No row tells of them, and the log does not bring them again once they are confirmed.
// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn events_without_a_row_that_a_stream_lost_are_counted() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "true");
    env.setup().await;
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    env.insert_each(5).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    for _ in 0..7 {
        env.execute("SELECT outbox_emit_wal('order', 'o-1', 'Placed', '{}')").await;
    }
    env.insert_each(5).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    copy.put_back(&mut env).await;
    is_noticed(&env, 5).await;
    assert_whole(&env).await;
    let unanswered = "SELECT lost - lost_rows FROM tailpost_streams";
    assert_eq!(env.query::<i64>(unanswered).await, 7);
    drop(relay);
}

/// Of the remedies of `doctor`, the command and the statement.
fn remedies(report: &str) -> (Vec<String>, String) {
    let of = |shell: &str| {
        let mut lines = report.lines().filter_map(|it| it.trim().strip_prefix(shell));
        lines.next().unwrap_or_else(|| panic!("no {shell}: {report}")).to_owned()
    };
    let command = of("-> $ tailpost ");
    let (args, why) = command.split_once(" '").expect("why");
    let args = args.split(' ').chain([why.trim_end_matches('\'')]);
    let statement = of("-> psql> ").trim_end_matches(';').to_owned();
    (args.map(str::to_owned).collect(), statement)
}

/// Rows of lost messages are gone as well. What is printed then is run.
// proves: G-LOSS-6, G-REPLAY-1
#[tokio::test(flavor = "multi_thread")]
async fn what_no_row_tells_of_comes_from_the_kept_log_by_what_doctor_prints() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_REWIND__RETAIN", "64MiB");
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    let kept = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tailpost_rewind'";
    until(DEADLINE, "the log is kept", async || env.query::<i64>(kept).await == 1).await;
    let mut ids = env.insert_each(10).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    ids.extend(env.insert_each(10).await);
    env.wait_marked().await;
    env.wait_confirmed().await;
    env.execute("DELETE FROM outbox_events WHERE stream_seq > 15").await;
    copy.put_back(&mut env).await;
    is_noticed(&env, 5).await;
    env.wait_marked().await;
    let (status, _) = env.ends_with(0, &["status"]).await;
    let (_, told) = status.split_once("no row tells of the other 5: `tailpost ").expect(&status);
    let (report, _) = env.ends_with(1, &["doctor", "--only", "stream-end"]).await;
    let (args, statement) = remedies(&report);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert!(args.join(" ").starts_with(told.split('`').next().expect("a command")), "{report}");
    env.ends_with(0, &args).await;
    let mut stored = env.stored_ids().await;
    stored.sort_unstable();
    stored.dedup();
    ids.sort_unstable();
    assert_eq!(stored, ids);
    assert!(status.contains(&statement), "{status}");
    env.execute(&statement).await;
    env.ends_with(0, &["doctor", "--only", "stream-end"]).await;
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(!status.contains("no row tells"), "{status}");
}

async fn readyz(admin: &Port) -> String {
    get(admin.addr(), "/readyz").await.unwrap_or_default()
}

pub(crate) async fn limit(env: &TestEnv, max_messages: i64) {
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let stream = jetstream.get_stream("OUTBOX").await.expect("the stream");
    let mut config = stream.cached_info().config.clone();
    (config.max_messages, config.discard) = (max_messages, DiscardPolicy::New);
    jetstream.update_stream(config).await.expect("change the stream");
}

/// The stream has no room for what it has lost.
// proves: G-SEEN-2
#[tokio::test(flavor = "multi_thread")]
async fn while_a_lost_end_is_brought_back_the_relay_is_not_ready() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    env.insert_each(20).await;
    env.wait_marked().await;
    limit(&env, 25).await;
    let copy = StoreCopy::take(&mut env).await;
    limit(&env, -1).await;
    env.insert_each(30).await;
    env.wait_marked().await;
    until(DEADLINE, "it is ready", async || readyz(&admin).await.contains(" 200 OK")).await;
    copy.put_back(&mut env).await;
    let told = "the rows that name them are being published again";
    until(DEADLINE, "it is not ready", async || readyz(&admin).await.contains(told)).await;
    limit(&env, -1).await;
    until(DEADLINE, "it is ready", async || readyz(&admin).await.contains(" 200 OK")).await;
    assert_whole(&env).await;
    assert_eq!(env.stored().await.len(), 50);
}

/// As docs/limits.md#durability says.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_power_cut_status_counts_what_was_lost_and_verify_finds_nothing() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    env.insert_each(50).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    env.insert_each(200).await;
    env.wait_marked().await;
    copy.put_back(&mut env).await;
    is_noticed(&env, 200).await;
    env.wait_marked().await;
    relay.announce("the stream has lost acknowledged messages");
    assert!(relay.log().contains("acknowledged=250 last_sequence=50 messages=200 rows=200"));
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains(": 200 rows named them\n"), "{status}");
    assert!(status.contains("without 200 messages that it had acknowledged"), "{status}");
    let (verified, _) = env.ends_with(0, &["verify"]).await;
    assert!(verified.contains("matched      250 rows with their messages\nfindings       none"));
}

/// What nobody looks for is found by comparing some rows now and then.
// proves: G-LOSS-8
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_somebody_removed_is_named() {
    for mode in ["fenced", "poll"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        env.setup().await;
        let relay = env.relay();
        env.insert_each(8).await;
        env.wait_marked().await;
        relay.sigterm();
        relay.wait_exit(DEADLINE).await;
        env.execute("UPDATE outbox_events SET published_at = published_at + interval '1 minute'")
            .await;
        let jetstream = env.nats.jetstream().await.expect("connect to NATS");
        let stream = jetstream.get_stream("OUTBOX").await.expect("the stream");
        stream.delete_message(5).await.expect("delete it");
        let relay = env.relay();
        relay.announce("the stream lacks what a row says it has");
        until(DEADLINE, "the row is named", async || {
            let (status, _) = env.ends_with(0, &["status"]).await;
            status.contains("says sequence 5 of stream OUTBOX, which has no message there")
                && status.contains("  compared     with the stream at ")
        })
        .await;
    }
}

mod long {
    use super::*;

    // proves: G-LOSS-6
    #[tokio::test(flavor = "multi_thread")]
    async fn in_poll_mode_rows_are_published_again_where_others_are_stored_in_their_places() {
        others_are_stored_in_between("poll").await;
    }

    // proves: G-LOSS-6
    #[tokio::test(flavor = "multi_thread")]
    async fn in_poll_mode_a_stream_that_grew_again_gets_its_events_again() {
        for is_running in [false, true] {
            grows_again("poll", is_running).await;
        }
    }

    // proves: G-LOSS-6
    #[tokio::test(flavor = "multi_thread")]
    async fn where_others_are_stored_in_the_places_of_lost_messages_rows_are_published_again() {
        others_are_stored_in_between("fenced").await;
    }

    // proves: G-LOSS-6
    #[tokio::test(flavor = "multi_thread")]
    async fn in_poll_mode_a_stream_that_lost_its_end_while_no_relay_ran_gets_it_again() {
        comes_back("poll", false).await;
    }
}
