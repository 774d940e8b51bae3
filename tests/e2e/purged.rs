//! The stream loses messages while no relay runs. How many they were is counted.

use std::collections::{BTreeMap, BTreeSet};

use lab::Direction;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

/// Every message that the stream ever had, by sequence.
#[derive(Default)]
struct History(BTreeMap<u64, Uuid>);

impl History {
    async fn note(&mut self, env: &TestEnv) {
        self.0.extend(env.stored().await.into_iter().map(|it| (it.sequence, it.id)));
    }

    /// Takes down what there is, and removes it but for the newest `keep`.
    async fn purge(&mut self, env: &TestEnv, keep: u64) {
        env.removes_messages();
        self.note(env).await;
        let stream = env.stream().await;
        let last = self.0.keys().next_back().copied().unwrap_or_default();
        stream.purge().sequence((last + 1).saturating_sub(keep)).await.expect("purge the stream");
    }

    async fn assert_each_once(&mut self, env: &TestEnv) {
        self.note(env).await;
        let rows = env.client().await.query("SELECT id FROM outbox_events", &[]).await;
        let mut rows: Vec<Uuid> = rows.expect("ids").iter().map(|row| row.get(0)).collect();
        let mut stored: Vec<Uuid> = self.0.values().copied().collect();
        rows.sort_unstable();
        stored.sort_unstable();
        let twice = stored.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert_eq!((stored.len() - twice, twice), (rows.len(), 0), "(events, twice)");
        assert_eq!(stored, rows);
    }
}

async fn env() -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.removes_messages();
    env
}

/// A place is written down with a sequence.
async fn wait_counted(env: &TestEnv) {
    let counted = "SELECT count(resolved_stream_seq) FROM tailpost_state";
    until(DEADLINE, "the place in the stream is written down", async || {
        env.query::<i64>(counted).await == 1
    })
    .await;
}

/// Which messages go while others stay.
enum Removal {
    Half,
    AllButNewest,
}

impl Removal {
    async fn remove(self, env: &TestEnv) {
        let mut stream = env.stream().await;
        match self {
            Self::Half => {
                for message in env.stored().await.iter().filter(|it| it.sequence % 2 == 0) {
                    stream.delete_message(message.sequence).await.expect("delete a message");
                }
            }
            Self::AllButNewest => {
                let info = stream.info().await.expect("the stream's state");
                let last = info.state.last_sequence;
                stream.purge().filter("outbox.>").keep(1).await.expect("purge the subjects");
                let after = stream.info().await.expect("the stream's state").state.last_sequence;
                assert_eq!(after, last, "a purge gives out no sequence");
            }
        }
    }
}

/// Kills the relay under load, and purges the stream, a few times.
async fn survives_purges(mut env: TestEnv, seed: u64, keep: &[u64]) {
    env.setup().await;
    let mut history = History::default();
    let load = env.load(seed, 3000.0).await;
    for keep in keep {
        let relay = env.relay();
        relay.wait_active().await;
        load.wait_committed(400).await;
        // Once the first scan of a new slot is over, and with every session from then on.
        wait_counted(&env).await;
        relay.kill9().await;
        history.purge(&env, *keep).await;
    }
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let _relay = env.relay();
    load.wait_committed(400).await;
    load.stop().await;
    env.wait_covered().await;
    history.assert_each_once(&env).await;
}

/// Others' messages are not taken for events, whether they are there or gone.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn foreign_messages_that_are_purged_cost_no_event() {
    let env = env().await;
    env.setup().await;
    let mut history = History::default();
    for clean in [true, false] {
        let relay = env.relay();
        relay.wait_active().await;
        env.insert_each(100).await;
        env.wait_marked().await;
        if clean {
            relay.sigterm();
            assert!(relay.wait_exit(DEADLINE).await.success());
        } else {
            relay.kill9().await;
        }
        history.note(&env).await;
        let jetstream = env.nats.jetstream().await.expect("connect");
        for _ in 0..10 {
            let stored = jetstream.publish("outbox.x.y", "test".into()).await;
            stored.expect("publish").await.expect("stored");
        }
        env.purge().await;
        // What commits so much later than the place was written down is not counted.
        env.execute("SELECT pg_sleep(5.1)").await;
        env.insert_each(100).await;
        let relay = env.relay();
        env.wait_marked().await;
        relay.kill9().await;
        history.note(&env).await;
    }
    // After the unclean end they are published once more: nothing could be counted.
    let rows = env.client().await.query("SELECT id FROM outbox_events", &[]).await.expect("ids");
    let stored: BTreeSet<Uuid> = history.0.values().copied().collect();
    assert_eq!(stored, rows.iter().map(|row| row.get(0)).collect(), "an event is lost");
}

/// The broker remembers its id, and answers that it has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_message_whose_row_comes_again_is_stored_again() {
    for mode in ["fenced", "keyed"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "5s");
        env.set("TAILPOST_RELAY__MODE", mode);
        env.removes_messages();
        env.setup().await;
        let _relay = env.relay();
        let ids = env.insert(3).await;
        env.wait_marked().await;
        let removed = env.stored().await.into_iter().find(|it| it.id == ids[1]).expect("stored");
        env.delete_message(removed.sequence).await;
        env.execute(&format!(
            "CREATE TABLE kept AS SELECT id, aggregate_type, aggregate_id, event_type, payload
                FROM outbox_events WHERE id = '{0}';
             DELETE FROM outbox_events WHERE id = '{0}';
             INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                SELECT * FROM kept",
            ids[1]
        ))
        .await;
        let more = env.insert(2).await;
        env.wait_marked().await;
        let mut stored: Vec<_> = env.stored_ids().await;
        let mut expected = [ids, more].concat();
        stored.sort_unstable();
        expected.sort_unstable();
        assert_eq!(stored, expected, "{mode}");
    }
}

mod long {
    use super::*;

    /// All messages are gone, or all but the newest.
    // proves: G-ONCE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_under_load_and_the_stream_purged_no_event_is_stored_twice() {
        survives_purges(env().await, 1, &[0, 0, 20, 0]).await;
    }

    /// The stream got events whose answers the relay waited for in vain until it
    /// ended.
    // proves: G-ONCE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn stopped_without_an_answer_and_the_stream_purged_no_event_is_stored_twice() {
        let mut env = TestEnv::proxied().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        env.insert_each(20).await;
        env.wait_marked().await;
        env.wait_confirmed().await;
        env.to_nats().blackhole(Direction::ToClient);
        env.insert(1).await;
        env.wait_stored(21).await;
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
        env.to_nats().restore().await.expect("restore the connection");
        let mut history = History::default();
        history.purge(&env, 0).await;
        let _relay = env.relay();
        env.insert_each(20).await;
        env.wait_marked().await;
        history.assert_each_once(&env).await;
    }

    /// No mark says anything of what was published.
    // proves: G-ONCE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn without_marks_a_purge_makes_no_event_be_stored_twice() {
        for (name, value) in
            [("TAILPOST_RELAY__MARK_INTERVAL", "1h"), ("TAILPOST_RELAY__MARK", "lean")]
        {
            let mut env = env().await;
            env.set(name, value);
            survives_purges(env, 2, &[0, 0]).await;
        }
    }

    /// Messages go from within the stream: by subject, by age, all but the newest of
    /// each subject. The others stay.
    // proves: G-ONCE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn messages_removed_from_within_the_stream_make_no_event_be_stored_twice() {
        let env = env().await;
        env.setup().await;
        let mut history = History::default();
        let load = env.load(3, 3000.0).await;
        for removal in [Removal::Half, Removal::AllButNewest, Removal::Half] {
            let relay = env.relay();
            relay.wait_active().await;
            load.wait_committed(400).await;
            wait_counted(&env).await;
            relay.kill9().await;
            history.note(&env).await;
            removal.remove(&env).await;
        }
        let _relay = env.relay();
        load.wait_committed(400).await;
        load.stop().await;
        env.wait_covered().await;
        history.assert_each_once(&env).await;
    }
}
