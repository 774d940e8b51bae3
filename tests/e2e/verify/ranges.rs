//! Parts of the stream, a part of the events, and what lies outside of what is held.

use async_nats::jetstream::stream::DiscardPolicy;
use support::{DEADLINE, TestEnv};
use uuid::Uuid;

use super::{
    findings, found, insert_aggregates, kinds, nothing_is_found, remove, report, unjudged,
    wait_swept,
};
use crate::any_stream::edit;

/// Twenty aggregates' events, published one after the other; the relay has ended.
async fn published() -> (TestEnv, Vec<Uuid>) {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    insert_aggregates(&env, 20, 3).await;
    wait_swept(&env).await;
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    let ids = env.stored_ids().await;
    assert_eq!(ids.len(), 60);
    (env, ids)
}

/// What a limit has removed is no gap; what is missing behind it is.
// proves: G-VERIFY-1, G-VERIFY-2
#[tokio::test(flavor = "multi_thread")]
async fn what_a_limit_removed_is_out_of_reach_and_not_missing() {
    let (env, ids) = published().await;
    env.removes_messages();
    edit(&env, |it| (it.discard, it.max_messages) = (DiscardPolicy::Old, 30)).await;
    let compared = nothing_is_found(&env).await;
    assert_eq!(unjudged(&compared, "out_of_reach"), 30);
    assert_eq!(compared["matched"], 30);
    remove(&env, ids[40]).await;
    assert_eq!(findings(&env).await, [(Some(ids[40]), kinds(&["gap"]))].into());
    // What says nothing of its place may have been removed as well.
    let forget =
        "UPDATE outbox_events SET stream_seq = NULL, occurred_at = '2020-01-01' WHERE id = ";
    env.execute(&format!("{forget} '{}'", ids[40])).await;
    assert_eq!(unjudged(&nothing_is_found(&env).await, "out_of_reach"), 31);
}

/// Rows that are deleted from the oldest on are no phantoms.
// proves: G-VERIFY-2
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_were_deleted_from_the_oldest_on_are_no_findings() {
    let (env, ids) = published().await;
    env.execute("DELETE FROM outbox_events WHERE stream_seq <= 25").await;
    let compared = nothing_is_found(&env).await;
    assert_eq!((unjudged(&compared, "without_row"), compared["rows"].as_u64()), (25, Some(35)));
    env.execute("DELETE FROM outbox_events WHERE stream_seq = 50").await;
    assert_eq!(findings(&env).await, [(Some(ids[49]), kinds(&["phantom"]))].into());
    env.execute("DELETE FROM outbox_events").await;
    assert_eq!(unjudged(&nothing_is_found(&env).await, "without_row"), 60);
}

// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn a_range_leaves_out_what_was_stored_before() {
    let (env, ids) = published().await;
    let stored = env.stored().await;
    remove(&env, ids[10]).await;
    remove(&env, ids[50]).await;
    let both = [(Some(ids[10]), kinds(&["gap"])), (Some(ids[50]), kinds(&["gap"]))];
    assert_eq!(findings(&env).await, both.clone().into());

    // The position is `system/timeline/UPPER-LOWER/ordinal`.
    let position = stored[30].header("Tailpost-Position").expect("a position");
    let lsn = position.split('/').nth(2).expect("a position").replace('-', "/");
    let compared = report(&env, 1, &["--from-lsn", &lsn]).await;
    assert_eq!(found(&compared), [both[1].clone()].into());
    let stream = &compared["streams"][0];
    assert_eq!(
        (stream["first_sequence"].as_u64(), stream["messages"].as_u64()),
        (Some(31), Some(29))
    );

    let info = env.stream().await.get_raw_message(31).await.expect("a message");
    let nanos = info.time.unix_timestamp_nanos();
    let since = jiff::Timestamp::from_nanosecond(nanos).expect("a time").to_string();
    let compared = report(&env, 1, &["--since", &since]).await;
    assert_eq!(found(&compared), [both[1].clone()].into());
    assert_eq!(compared["streams"][0]["first_sequence"], 31);
    let compared = report(&env, 0, &["--since", "0s"]).await;
    assert_eq!(compared["streams"][0]["messages"], 0);
    let compared = report(&env, 1, &["--since", "1d"]).await;
    assert_eq!(found(&compared), both.into());
}

/// Rows and messages are chosen alike.
// proves: G-VERIFY-1, G-VERIFY-2
#[tokio::test(flavor = "multi_thread")]
async fn a_sample_is_the_same_of_rows_and_messages() {
    let (env, ids) = published().await;
    let compared = report(&env, 0, &["--sample", "3"]).await;
    let rows = compared["rows"].as_u64().expect("a number");
    assert!((1..60).contains(&rows), "{compared}");
    assert_eq!(compared["matched"], rows);
    for id in &ids[1..] {
        remove(&env, *id).await;
    }
    let compared = report(&env, 1, &["--sample", "3"]).await;
    let gaps = found(&compared).len() as u64;
    assert!(gaps == rows || gaps + 1 == rows, "{gaps} of {rows}");
}

// proves: G-VERIFY-2
#[tokio::test(flavor = "multi_thread")]
async fn what_no_relay_has_published_yet_is_pending() {
    let (env, _) = published().await;
    env.insert(7).await;
    let compared = nothing_is_found(&env).await;
    assert_eq!((compared["pending"].as_u64(), compared["matched"].as_u64()), (Some(7), Some(60)));
    assert!(compared["oldest_pending_seconds"].as_f64().is_some(), "{compared}");
    let (told, said) = env.ends_with(0, &["verify"]).await;
    assert!(told.contains("7 rows to be published, the oldest"), "{told}");
    assert!(told.contains("findings       none"), "{told}");
    assert!(said.contains("of temporary files in "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named_and_the_code_says_so() {
    let mut env = TestEnv::new().await;
    let (_, said) = env.ends_with(3, &["verify"]).await;
    assert!(said.contains("tailpost setup"), "{said}");
    env.setup().await;
    nothing_is_found(&env).await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    let (_, said) = env.ends_with(3, &["verify"]).await;
    assert!(said.contains("stream \"OUTBOX\" does not exist"), "{said}");
    env.setup().await;
    let temporary = std::env::temp_dir().join(format!("none-{}", Uuid::new_v4()));
    env.set("TMPDIR", temporary.to_str().expect("UTF-8"));
    let (_, said) = env.ends_with(1, &["verify"]).await;
    assert!(said.contains("hint: TMPDIR names another folder"), "{said}");
    env.nats.kill().await.expect("kill the broker");
    env.ends_with(5, &["verify"]).await;
    env.set("TAILPOST_NATS__CREDS", "/nowhere");
    env.ends_with(78, &["verify"]).await;
    env.ends_with(2, &["verify", "--sample", "0"]).await;
    env.ends_with(2, &["verify", "--from-lsn", "x"]).await;
}
