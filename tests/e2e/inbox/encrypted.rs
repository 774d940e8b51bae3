//! Producers encrypt, as docs/encryption.md shows: everything on the way has the same bytes and none of
//! the clear text, and whose key is destroyed is forgotten.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use support::{DEADLINE, Relay, Stored, TestEnv, until};
use tempfile::TempDir;
use uuid::Uuid;

use super::programs::{self, Program};
use crate::pages::example;

const PAGE: &str = include_str!("../../../docs/encryption.md");
const KEYS: &str = include_str!("../../../examples/encryption/keys.sql");
const PRODUCER: &str = include_str!("../../../examples/encryption/producer.py");

const ADA: &str = "ada.lovelace@example.org";
const BEN: &str = "ben@example.org";
/// Of an event that is not encrypted: it is found where the others are not.
const CLEAR: &str = "clear@example.org";

/// A producer, its keys, and a handler in each language behind relay and inbox.
struct Shop {
    env: TestEnv,
    /// Where the outbox and the keys are.
    variables: [(String, String); 2],
    producer: PathBuf,
    handlers: [(&'static str, Program); 2],
    processes: [Relay; 2],
    _folder: TempDir,
}

impl Shop {
    /// `producer` is the program that writes events.
    async fn open(producer: &str, prepare: &str) -> Self {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_INBOX__BACKOFF", "200ms");
        env.setup().await;
        env.execute(prepare).await;
        env.setup().await;
        env.postgres.create_database("keys").await.expect("a database");
        let variables = [("DATABASE_URL", "postgres"), ("KEYS_URL", "keys")];
        let variables = variables.map(|(name, it)| (name.to_owned(), env.postgres.url(it)));
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("producer.py");
        std::fs::write(&program, producer).expect("write");
        let of_keys = &variables[1..];
        let handlers = [
            ("python", Program::start("encryption", "handler.py", &[], of_keys).await),
            ("node", Program::start("encryption", "handler.js", &[], of_keys).await),
        ];
        let consumer =
            |(name, it): &(_, Program)| format!("[inbox.{name}]\nhandler = '{}'\n", it.url());
        let file = folder.path().join("tailpost.toml");
        std::fs::write(&file, handlers.iter().map(consumer).collect::<String>()).expect("write");
        env.set("TAILPOST_CONFIG", file.to_str().expect("Unicode"));
        env.ends_with(0, &["inbox", "setup"]).await;
        let processes = [env.relay(), env.spawn(&["inbox", "run"])];
        let shop = Self { env, variables, producer: program, handlers, processes, _folder: folder };
        shop.keys(KEYS).await;
        shop
    }

    /// Runs statements where the keys are, each by itself.
    async fn keys(&self, sql: &str) {
        let client = self.env.postgres.client("keys").await.expect("connect");
        for statement in sql.split_inclusive(";\n") {
            client.batch_execute(statement).await.expect(statement);
        }
    }

    async fn key(&self, column: &str, person: &str) -> String {
        let client = self.env.postgres.client("keys").await.expect("connect");
        let sql = format!("SELECT {column} FROM person_keys WHERE person = '{person}'");
        client.query_one(&sql, &[]).await.expect(&sql).get(0)
    }

    /// Whether the file of the table of keys has this text.
    async fn table_has(&self, text: &str) -> bool {
        let client = self.env.postgres.client("keys").await.expect("connect");
        let sql = "SELECT pg_relation_filepath('person_keys')";
        let path: String = client.query_one(sql, &[]).await.expect(sql).get(0);
        let bytes = std::fs::read(self.env.postgres.data_dir().join(path)).expect("read");
        contains(&bytes, text)
    }

    /// How the producer ends, and what it says.
    async fn produce(&self, person: &str, email: &str) -> (Option<i32>, String, String) {
        let args = [person, email];
        let producer = programs::start("encryption", &self.producer, &args, &self.variables);
        let ended = producer.wait_exit(DEADLINE).await;
        (ended.code(), producer.stdout(), producer.log())
    }

    async fn register(&self, person: &str, email: &str) -> Uuid {
        let (code, id, said) = self.produce(person, email).await;
        assert_eq!(code, Some(0), "{said}");
        id.trim().parse().expect("an id")
    }

    /// Waits until both handlers have done so many events, and the last of this id with this data.
    async fn wait_handled(&self, id: Uuid, times: usize, data: &Value) {
        for (name, handler) in &self.handlers {
            let done = || {
                let mut lines = handler.lines();
                lines.retain(|it| it["id"] == json!(id));
                lines
            };
            let what = format!("{name} has handled {id} {times} times");
            until(DEADLINE, &what, async || done().len() >= times).await;
            let done = done();
            assert_eq!((done.len(), &done[times - 1]["data"]), (times, data), "{name}: {done:?}");
        }
    }

    /// Both consumers handle everything once more.
    async fn rewind(&self) {
        for (consumer, _) in &self.handlers {
            let again = "--to-sequence 1 --again --execute --why again";
            let args = ["inbox", "rewind", "--consumer", consumer];
            let args: Vec<_> = args.into_iter().chain(again.split(' ')).collect();
            self.env.ends_with(0, &args).await;
        }
    }

    async fn verify(&self) {
        let (told, _) = self.env.ends_with(0, &["verify"]).await;
        assert!(told.contains("findings       none"), "{told}");
    }

    /// What operators are shown of an event, and what is said meanwhile.
    async fn shown(&self, ids: &[Uuid]) -> String {
        let mut shown: String = self.processes.iter().map(|it| it.log() + &it.stdout()).collect();
        for id in ids.iter().map(Uuid::to_string) {
            for args in [&["explain", &id][..], &["explain", &id, "--json"]] {
                let (told, said) = self.env.ends_with(0, args).await;
                shown += &(told + &said);
            }
        }
        for args in [
            &["status", "--json"][..],
            &["outbox", "dlq", "list", "--json"],
            &["inbox", "dlq", "list", "--json"],
            &["verify", "--json"],
        ] {
            let process = self.env.spawn(args);
            process.wait_exit(DEADLINE).await;
            shown += &(process.stdout() + &process.log());
        }
        shown
    }

    /// Whether any file of either server has this text.
    fn servers_have(&self, text: &str) -> [bool; 2] {
        [self.env.postgres.data_dir(), self.env.nats.store_dir()].map(|it| has(&it, text))
    }
}

/// Whether a file below a folder has this text.
fn has(folder: &Path, text: &str) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|it| it.path()).any(|path| match path.is_dir() {
        true => has(&path, text),
        // It may just have been removed.
        false => contains(&std::fs::read(&path).unwrap_or_default(), text),
    })
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|it| it == text.as_bytes())
}

fn header_of(jwe: &str) -> Value {
    let part = jwe.split('.').next().expect("a part");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).expect("base64")).expect("JSON")
}

/// The messages of an event, in the stream's order.
async fn messages_of(env: &TestEnv, id: Uuid) -> Vec<Stored> {
    let mut stored = env.stored().await;
    stored.retain(|it| it.event().id == id);
    stored
}

async fn open() -> Shop {
    Shop::open(PRODUCER, example(PAGE, "sql", 0)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_key_is_destroyed_is_forgotten_and_nobody_else() {
    let shop = open().await;
    let ada = shop.register("p-1", ADA).await;
    let ben = shop.register("p-2", BEN).await;
    let (of_ada, of_ben) = (json!({ "email": ADA }), json!({ "email": BEN }));
    // A consumer that nothing was delivered to has nowhere to go back to.
    shop.wait_handled(ben, 1, &of_ben).await;
    shop.rewind().await;
    shop.wait_handled(ada, 2, &of_ada).await;
    shop.wait_handled(ben, 2, &of_ben).await;
    let ciphertext = messages_of(&shop.env, ada).await[0].payload.clone();

    let secret = shop.key("jwk->>'k'", "p-1").await;
    shop.keys("CHECKPOINT;\n").await;
    let is_kept = shop.table_has(&secret).await;
    shop.keys(example(PAGE, "sql", 1)).await;
    shop.keys("CHECKPOINT;\n").await;
    assert_eq!((is_kept, shop.table_has(&secret).await), (true, false), "the key in the file");

    shop.rewind().await;
    shop.wait_handled(ada, 3, &Value::Null).await;
    shop.wait_handled(ben, 3, &of_ben).await;
    assert_eq!(messages_of(&shop.env, ada).await[0].payload, ciphertext);
    shop.verify().await;
    let (code, _, said) = shop.produce("p-1", ADA).await;
    assert_eq!((code, &*said), (Some(1), "p-1 is forgotten\n"));
    let written = "SELECT count(*) FROM outbox_events";
    assert_eq!(shop.env.query::<i64>(written).await, 2);
    let dead = "SELECT count(*) FROM inbox_dead_letter";
    assert_eq!(shop.env.query::<i64>(dead).await, 0);
}

mod long {
    use super::*;

    // proves: G-SECRET-1
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_of_an_encrypted_payload_is_in_clear_and_its_bytes_stay_as_they_are() {
        let shop = open().await;
        let env = &shop.env;
        let ada = shop.register("p-1", ADA).await;
        let ben = shop.register("p-2", BEN).await;
        shop.wait_handled(ada, 1, &json!({ "email": ADA })).await;
        shop.wait_handled(ben, 1, &json!({ "email": BEN })).await;
        shop.verify().await;

        // Copies of both are as the first messages, and as the rows.
        for source in ["stream", "table"] {
            let args =
                ["replay", "--since", "1h", "--source", source, "--execute", "--why", "a test"];
            env.ends_with(0, &args).await;
        }
        shop.verify().await;
        for (id, person) in [(ada, "p-1"), (ben, "p-2")] {
            let row: String =
                env.query(&format!("SELECT payload FROM outbox_events WHERE id = '{id}'")).await;
            let messages = messages_of(env, id).await;
            assert_eq!(messages.len(), 3);
            for message in messages {
                assert_eq!(message.payload, row);
                assert_eq!(message.header("Content-Type"), Some("application/jose"));
                let kid = shop.key("kid", person).await;
                let expected = json!({ "alg": "dir", "enc": "A256GCM", "kid": kid });
                assert_eq!(header_of(&message.payload), expected);
            }
        }

        // One that was changed, and one that the stream cannot take.
        let changed = format!(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
             SELECT gen_random_uuid(), $1, aggregate_id, event_type, $2, headers
             FROM outbox_events WHERE id = '{ben}' RETURNING id"
        );
        let payload: String =
            env.query(&format!("SELECT payload FROM outbox_events WHERE id = '{ben}'")).await;
        let (begin, end) = payload.split_at(payload.len() - 2);
        let other = format!("{begin}{}", if end == "AA" { "BB" } else { "AA" });
        let client = env.client().await;
        let insert = async |kind: &str| -> Uuid {
            client.query_one(&changed, &[&kind, &other]).await.expect("insert").get(0)
        };
        let (refused, parked) = (insert("customer").await, insert(&"x".repeat(300)).await);
        let dead = "SELECT (SELECT count(*) FROM inbox_dead_letter)
                         + (SELECT count(*) FROM outbox_dead_letter)";
        until(DEADLINE, "three dead letters", async || env.query::<i64>(dead).await == 3).await;
        let reason: String =
            env.query("SELECT min(reason) || max(reason) FROM inbox_dead_letter").await;
        assert_eq!(reason, "422 Unprocessable Entity".repeat(2));

        let shown = shop.shown(&[ada, ben, refused, parked]).await;
        assert!(
            shown.contains(&refused.to_string()) && shown.contains("CustomerRegistered"),
            "{shown}"
        );
        // What is looked for would be found.
        env.execute(&format!(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES (gen_random_uuid(), 'note', 'n-1', 'Noted', '{CLEAR}')"
        ))
        .await;
        until(DEADLINE, "both servers have it", async || shop.servers_have(CLEAR) == [true; 2])
            .await;
        for text in [ADA, BEN] {
            assert_eq!(shop.servers_have(text), [false; 2], "{text}");
            assert!(!shown.contains(text), "{text}: {shown}");
        }
    }

    /// It may be that the keys were restored, or that their database is away.
    #[tokio::test(flavor = "multi_thread")]
    async fn events_wait_for_a_key_that_is_not_there() {
        let shop = open().await;
        let ben = shop.register("p-2", BEN).await;
        let data = json!({ "email": BEN });
        shop.wait_handled(ben, 1, &data).await;
        let mut times = 1;
        for (without, with) in [
            (
                "CREATE TABLE others AS SELECT * FROM person_keys;\nDELETE FROM person_keys;\n",
                "INSERT INTO person_keys SELECT * FROM others;\n",
            ),
            (
                "ALTER TABLE person_keys RENAME TO away;\n",
                "ALTER TABLE away RENAME TO person_keys;\n",
            ),
        ] {
            shop.keys(without).await;
            shop.rewind().await;
            let waits = "SELECT count(*) FROM inbox_roles WHERE reason LIKE '%503%'";
            until(DEADLINE, "both wait", async || shop.env.query::<i64>(waits).await == 2).await;
            shop.keys(with).await;
            times += 1;
            shop.wait_handled(ben, times, &data).await;
        }
        let dead = "SELECT count(*) FROM inbox_dead_letter";
        assert_eq!(shop.env.query::<i64>(dead).await, 0);
    }

    /// In a column of JSON the payload is a JWE's other form.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_column_of_json_takes_the_form_in_json() {
        assert!(PAGE.contains("`token.serialize()`") && PAGE.contains("`application/jose+json`"));
        let producer = PRODUCER
            .replace("serialize(compact=True)", "serialize()")
            .replace("\"application/jose\"", "\"application/jose+json\"");
        let shop = Shop::open(&producer, "").await;
        let ada = shop.register("p-1", ADA).await;
        shop.wait_handled(ada, 1, &json!({ "email": ADA })).await;
        shop.verify().await;
        let message = &messages_of(&shop.env, ada).await[0];
        assert_eq!(message.header("Content-Type"), Some("application/jose+json"));
        let body: Value = serde_json::from_str(&message.payload).expect("JSON");
        let protected = body["protected"].as_str().expect("a header");
        assert_eq!(header_of(protected)["kid"], shop.key("kid", "p-1").await);
    }
}
