//! What pages of docs/ show, run as they show it.

mod daily_pages;
mod nats_users;
mod replay_page;
mod runbook_page;
pub(crate) mod shown;

use std::io::Write;

use lab::Port;
use support::{DEADLINE, TestEnv, until};
use tempfile::NamedTempFile;
use uuid::Uuid;

use self::shown::steps;
use crate::inbox::service::Service;

const QUICKSTART: &str = include_str!("../../docs/quickstart.md");
const SECURITY: &str = include_str!("../../docs/security.md");
const MIGRATING: &str = include_str!("../../docs/migrating.md");

/// A page's `n`th example in a language.
pub(crate) fn example<'a>(page: &'a str, language: &str, n: usize) -> &'a str {
    let opening = format!("```{language}\n");
    let (at, _) = page.match_indices(&opening).nth(n).expect("an example");
    page[at + opening.len()..].split("```").next().expect("something")
}

fn configured(env: &mut TestEnv, toml: &str) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("create a file");
    file.write_all(toml.as_bytes()).expect("write the configuration");
    env.set("TAILPOST_CONFIG", file.path().to_str().expect("UTF-8"));
    file
}

fn url_of(env: &TestEnv, role: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{}/postgres", env.postgres.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_grants_of_the_security_page_are_enough_and_no_more_for_a_producer() {
    let mut env = TestEnv::new().await;
    let _file = configured(&mut env, "[inbox.billing]\nhandler = 'http://127.0.0.1:1/events'\n");
    env.execute(example(SECURITY, "sql", 0)).await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    env.execute(example(SECURITY, "sql", 1)).await;

    env.set("DATABASE_URL", &url_of(&env, "tailpost_relay"));
    env.ends_with(0, &["doctor", "--only", "outbox,replication-role"]).await;
    let _relay = env.relay();
    let producer = env.client().await;
    producer.batch_execute("SET ROLE shop_app").await.expect("the role is there");
    let emit = "SELECT outbox_emit('order', 'o-17', 'OrderPaid', '{}')";
    producer.batch_execute(emit).await.expect("a producer may emit");
    for sql in [
        "SELECT payload FROM outbox_events",
        "UPDATE outbox_events SET payload = '{}'",
        "DELETE FROM outbox_events",
        "SELECT * FROM outbox_dead_letter",
    ] {
        let refused = producer.batch_execute(sql).await.expect_err(sql);
        assert!(format!("{refused:?}").contains("permission denied"), "{sql}: {refused:?}");
    }
    env.wait_stored(1).await;
    env.wait_marked().await;

    env.set("DATABASE_URL", &url_of(&env, "tailpost_inbox"));
    env.ends_with(0, &["doctor", "--only", "inbox-tables,inbox-privileges"]).await;
}

/// Each of the two roles sees its own side, and is told what it lacks for the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_one_side_is_shown_that_side_and_told_what_the_other_needs() {
    let mut env = TestEnv::new().await;
    let config = configured(&mut env, "[inbox.billing]\nhandler = 'http://127.0.0.1:1/events'\n");
    env.execute(example(SECURITY, "sql", 0)).await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    env.execute(example(SECURITY, "sql", 1)).await;
    let lacks = |side: &str| {
        format!("hint: run the command as the owner of the tables, or GRANT SELECT{side}")
    };

    env.set("DATABASE_URL", &url_of(&env, "tailpost_relay"));
    let (told, said) = env.ends_with(4, &["status"]).await;
    assert!(told.contains("slot           tailpost, not active"), "{told}");
    assert!(told.contains("inbox          unknown: could not look at the inbox"), "{told}");
    assert!(said.contains("the role lacks rights on the tables of the inbox"), "{said}");
    assert!(said.contains(&lacks(" on all tables of the inbox")), "{said}");
    let (told, said) = env.ends_with(4, &["maintain"]).await;
    assert!(told.contains("  published    0 rows deleted") && !told.contains("inbox "), "{told}");
    assert!(said.contains(&lacks(", INSERT, UPDATE, DELETE on all tables of the inbox")), "{said}");

    env.set("DATABASE_URL", &url_of(&env, "tailpost_inbox"));
    let (told, said) = env.ends_with(4, &["status"]).await;
    assert!(told.contains("consumer       billing, stream OUTBOX"), "{told}");
    assert!(told.contains("outbox         unknown: could not"), "{told}");
    assert!(said.contains(&lacks(" on all tables of the outbox")), "{said}");
    // It owns no partitions, and drops none here.
    let (told, said) = env.ends_with(4, &["maintain", "--dry-run"]).await;
    assert!(told.contains("inbox          0 records to delete"), "{told}");
    assert!(
        said.contains(&lacks(", INSERT, UPDATE, DELETE on all tables of the outbox")),
        "{said}"
    );

    // A relay whose configuration names no consumer has seen all that it asks for.
    drop(config);
    let _none = configured(&mut env, "");
    env.set("DATABASE_URL", &url_of(&env, "tailpost_relay"));
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("inbox          unknown: could not look at the inbox"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_switch_from_sequin_loses_and_doubles_nothing() {
    let mut env = TestEnv::new().await;
    env.execute(example(MIGRATING, "sql", 1)).await;
    env.execute("SELECT pg_create_logical_replication_slot('sequin_slot', 'pgoutput')").await;
    let _file = configured(&mut env, example(MIGRATING, "toml", 1));
    let events = async |n: i32| -> Vec<Uuid> {
        let mut ids = Vec::new();
        for _ in 0..n {
            let insert = "INSERT INTO outbox (topic, order_id, kind, data)
                          VALUES ('order', 'o-1', 'OrderPaid', '{}') RETURNING id";
            ids.push(env.query::<Uuid>(insert).await);
        }
        ids
    };
    // Sequin confirms as far as it has published.
    let publish = "SELECT pg_replication_slot_advance('sequin_slot', pg_current_wal_lsn())";
    events(5).await;
    env.setup().await;
    events(3).await;
    env.execute(publish).await;
    // It is stopped here; the application goes on.
    let mut expected = events(2).await;
    let switch = example(MIGRATING, "sql", 2);
    let switch = switch.replace("'debezium'", "'sequin_slot'").replace("outboxevent", "outbox");
    env.execute(&switch).await;
    expected.extend(events(2).await);
    let _relay = env.relay();
    expected.extend(events(2).await);
    env.wait_stored(expected.len() as u64).await;
    let unmarked = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
    until(DEADLINE, "all are marked", async || env.query::<i64>(unmarked).await == 0).await;
    assert_eq!(env.stored_ids().await, expected);
}

/// The event's id, as the page has it.
const PAID: &str = "d05b6ad0-4ae2-4e41-8109-28baf8797b80";

#[tokio::test(flavor = "multi_thread")]
async fn the_quickstart_can_be_followed() {
    let mut env = TestEnv::new().await;
    let (admin, service) = (Port::reserve().expect("a free port"), Service::start().await);
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.execute("CREATE TABLE orders (id text, state text, total_cents bigint)").await;
    let (_, write) = QUICKSTART.split_once("<<'SQL'\n").expect("the quickstart writes an event");
    let (write, _) = write.split_once("\nSQL\n").expect("the statements end");
    let mut running = Vec::new();
    let mut id = String::new();
    let steps = steps(QUICKSTART);
    assert!(steps.len() > 6, "{} commands", steps.len());
    for step in steps {
        let args: Vec<&str> = step.args.iter().map(String::as_str).collect();
        match &args[..] {
            // The page's server lacks what this one has.
            ["doctor", ..] => drop(env.ends_with(0, &args).await),
            ["relay"] => {
                let relay = env.relay();
                relay.wait_active().await;
                running.push(relay);
                env.execute(write).await;
                id = env.query::<Uuid>("SELECT id FROM outbox_events").await.to_string();
            }
            ["inbox", "run", "--consumer", "billing", "--handler", _] => {
                let url = service.url();
                running.push(env.spawn(&[&args[..5], &[&*url]].concat()));
                let done = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL";
                let is_done = async || env.query::<i64>(done).await == 1;
                until(DEADLINE, "the event is handled", is_done).await;
            }
            _ => drop(step.play(&env, &[(PAID, &id)]).await),
        }
    }
    assert_eq!(env.stored_ids().await, [id.parse::<Uuid>().expect("an id")]);
    assert_eq!(service.calls_of(id.parse().expect("an id")), 1);
}
