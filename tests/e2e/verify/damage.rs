//! One damage after the other, each on events of its own; then all are found, and nothing else.

use async_nats::HeaderMap;
use support::{Stored, TestEnv};
use uuid::Uuid;

use super::{
    Found, findings, free, insert_aggregates, kinds, message_of, nothing_is_found, remove, store,
    wait_swept,
};

/// What is done to an aggregate's three events, and what is found about each.
struct Damage {
    name: &'static str,
    /// On the rows, with `{a}`, `{b}` and `{c}` in place of the events' ids, and `{new}` in place of
    /// that of an event which does not exist.
    sql: &'static str,
    /// On the messages, afterwards.
    stream: Stream,
    /// Of the events a, b and c, and of the new one.
    found: [&'static [&'static str]; 4],
}

enum Stream {
    Unchanged,
    /// The message of b is removed.
    RemoveB,
    /// The message of b is stored again, so that it has the event's id in this header only.
    CopyB(&'static str),
    /// The messages of b and c change places.
    SwapBAndC,
    /// The message of c is replaced by another.
    ReplaceC(fn(&mut Message)),
    /// The message of c is replaced by one that follows the stream's last one.
    FenceC,
    /// A message like that of c, with another id or none.
    Invent(Option<()>),
}

/// A message to be.
struct Message {
    subject: String,
    headers: HeaderMap,
    payload: String,
}

const NONE: &[&str] = &[];

const fn rows(name: &'static str, sql: &'static str, b: &'static [&'static str]) -> Damage {
    Damage { name, sql, stream: Stream::Unchanged, found: [NONE, b, NONE, NONE] }
}

const fn new(name: &'static str, sql: &'static str, new: &'static [&'static str]) -> Damage {
    Damage { name, sql, stream: Stream::Unchanged, found: [NONE, NONE, NONE, new] }
}

const fn messages(
    name: &'static str,
    stream: Stream,
    found: [&'static [&'static str]; 4],
) -> Damage {
    Damage { name, sql: "", stream, found }
}

const DAMAGES: [Damage; 32] = [
    rows("nothing", "", NONE),
    messages("a message is deleted", Stream::RemoveB, [NONE, &["gap"], NONE, NONE]),
    Damage {
        name: "a message is deleted, and its row's mark",
        sql: "UPDATE outbox_events SET published_at = NULL, stream = NULL, stream_seq = NULL
              WHERE id = '{b}'",
        stream: Stream::RemoveB,
        found: [NONE, &["gap"], NONE, NONE],
    },
    messages("a copy under another id", Stream::CopyB("Tailpost-Event-Id"), [NONE, &["duplicate"], NONE, NONE]),
    messages("a copy under the same id", Stream::CopyB("Nats-Msg-Id"), [NONE, &["duplicate"], NONE, NONE]),
    messages("two events change places", Stream::SwapBAndC, [NONE, &["mark", "disorder"], &["mark"], NONE]),
    messages("a position goes back", Stream::FenceC, [NONE, NONE, &["mark", "disorder"], NONE]),
    messages("another subject", Stream::ReplaceC(|it| it.subject = "outbox.x".into()), [NONE, NONE, &["subject", "mark"], NONE]),
    messages("another payload", Stream::ReplaceC(|it| it.payload = "{}".into()), [NONE, NONE, &["payload", "mark"], NONE]),
    messages("another header", Stream::ReplaceC(|it| it.headers.insert("tenant", "b")), [NONE, NONE, &["headers", "mark"], NONE]),
    messages("one header more", Stream::ReplaceC(|it| it.headers.insert("more", "b")), [NONE, NONE, &["headers", "mark"], NONE]),
    messages("a message nobody committed", Stream::Invent(Some(())), [NONE, NONE, NONE, &["phantom"]]),
    messages("a message of ours without an id", Stream::Invent(None), [NONE; 4]),
    Damage {
        name: "a message of a transaction that was rolled back",
        sql: "BEGIN; SELECT outbox_emit('order', 'r', 'OrderPlaced', '{}', id => '{new}'); ROLLBACK",
        stream: Stream::Invent(Some(())),
        found: [NONE, NONE, NONE, &["phantom"]],
    },
    rows("the payload", "UPDATE outbox_events SET payload = '{}' WHERE id = '{b}'", &["payload"]),
    rows("a header", "UPDATE outbox_events SET headers = '{\"tenant\": \"x\"}' WHERE id = '{b}'", &["headers"]),
    rows("no headers", "UPDATE outbox_events SET headers = NULL WHERE id = '{b}'", &["headers"]),
    rows("headers of which none can be made", "UPDATE outbox_events SET headers = '[1]' WHERE id = '{b}'", &["headers"]),
    rows("the type", "UPDATE outbox_events SET event_type = 'X' WHERE id = '{b}'", &["headers", "subject"]),
    rows("the aggregate", "UPDATE outbox_events SET aggregate_id = 'x' WHERE id = '{b}'", &["headers"]),
    rows("the version", "UPDATE outbox_events SET event_version = 9 WHERE id = '{b}'", &["headers"]),
    rows("the time", "UPDATE outbox_events SET occurred_at = '2020-01-01' WHERE id = '{b}'", &["headers"]),
    rows("the correlation", "UPDATE outbox_events SET correlation_id = id WHERE id = '{b}'", &["headers"]),
    rows(
        "a row without its mark",
        "UPDATE outbox_events SET published_at = NULL, stream = NULL, stream_seq = NULL
         WHERE id = '{b}'",
        &["unmarked"],
    ),
    rows("a row is deleted", "DELETE FROM outbox_events WHERE id = '{b}'", &["phantom"]),
    rows("a mark of another's place", "UPDATE outbox_events SET stream_seq = 1 WHERE id = '{b}'", &["mark"]),
    rows("a mark beyond the stream", "UPDATE outbox_events SET stream_seq = 1000000 WHERE id = '{b}'", &["mark"]),
    rows(
        "a mark that says dropped",
        "UPDATE outbox_events SET stream = NULL, stream_seq = NULL,
             publish_error = 'dropped by a route' WHERE id = '{b}'",
        &["dropped"],
    ),
    rows(
        "a dead letter",
        "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload, reason)
         SELECT id, aggregate_type, aggregate_id, event_type, payload, 'x' FROM outbox_events
         WHERE id = '{b}'; DELETE FROM outbox_events WHERE id = '{b}'",
        &["parked"],
    ),
    new(
        "a row that is said to be published",
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
             published_at, stream) VALUES ('{new}', 'order', 'n', 'X', '{}', now(), 'OUTBOX')",
        &["gap"],
    ),
    new(
        "a row that names another's place",
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
             published_at, stream, stream_seq)
         VALUES ('{new}', 'order', 'n', 'X', '{}', now(), 'OUTBOX', 1)",
        &["gap"],
    ),
    // Nobody says where it is.
    new(
        "a row that somebody else marked",
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
             published_at) VALUES ('{new}', 'order', 'n', 'X', '{}', now())",
        NONE,
    ),
];

impl Message {
    /// The same message, to be stored again.
    fn again(message: &Stored) -> Self {
        let (subject, payload) = (message.subject.clone(), message.payload.clone());
        Self { subject, headers: free(message), payload }
    }

    async fn store(&self, env: &TestEnv) {
        store(env, &self.subject, &self.headers, &self.payload).await;
    }
}

impl Stream {
    async fn apply(&self, env: &TestEnv, ids: &[Uuid], new: Uuid) {
        let [_, b, c] = *ids else { panic!("three events") };
        match self {
            Self::Unchanged => {}
            Self::RemoveB => drop(remove(env, b).await),
            Self::CopyB(header) => {
                let mut copy = Message::again(&message_of(env, b).await);
                copy.headers.insert("Nats-Msg-Id", Uuid::new_v4().to_string());
                copy.headers.insert(*header, b.to_string());
                copy.store(env).await;
            }
            Self::SwapBAndC => {
                let (b, c) = (remove(env, b).await, remove(env, c).await);
                Message::again(&c).store(env).await;
                Message::again(&b).store(env).await;
            }
            Self::ReplaceC(change) => {
                let mut message = Message::again(&remove(env, c).await);
                change(&mut message);
                message.store(env).await;
            }
            Self::FenceC => {
                let mut message = Message::again(&remove(env, c).await);
                let last = env.stream().await.cached_info().state.last_sequence;
                message.headers.insert("Nats-Expected-Last-Sequence", last.to_string());
                message.store(env).await;
            }
            Self::Invent(id) => {
                let mut message = Message::again(&message_of(env, c).await);
                let id = id.map_or_else(|| "none".to_owned(), |()| new.to_string());
                message.headers.insert("Nats-Msg-Id", id);
                message.store(env).await;
            }
        }
    }
}

// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_damage_is_found_and_named_and_nothing_else() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    let aggregates = insert_aggregates(&env, DAMAGES.len(), 3).await;
    wait_swept(&env).await;
    relay.sigterm();
    relay.wait_exit(support::DEADLINE).await;
    nothing_is_found(&env).await;

    let mut expected = Found::from([(None, kinds(&["phantom"]))]);
    let mut names = Vec::new();
    for (damage, ids) in DAMAGES.iter().zip(&aggregates) {
        let new = Uuid::new_v4();
        let [a, b, c] = ids[..] else { panic!("three events") };
        let sql = [("{a}", a), ("{b}", b), ("{c}", c), ("{new}", new)]
            .iter()
            .fold(damage.sql.to_owned(), |sql, (name, id)| sql.replace(name, &id.to_string()));
        env.execute(&sql).await;
        damage.stream.apply(&env, ids, new).await;
        for (id, found) in [a, b, c, new].into_iter().zip(damage.found) {
            names.push((id, damage.name));
            if !found.is_empty() {
                expected.insert(Some(id), kinds(found));
            }
        }
    }
    let mut found = findings(&env).await;
    for (id, name) in names {
        let (found, expected) = (found.remove(&Some(id)), expected.remove(&Some(id)));
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(found, expected);
}
