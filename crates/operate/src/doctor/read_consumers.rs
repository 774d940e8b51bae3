//! What deployments get wrong about consumers: read from both servers, then judged by rules.

use std::time::Duration;

use async_nats::Client as NatsClient;
use async_nats::jetstream::consumer;
use inbox::access::{Config, durable_consumer};
use inbox::{Builder, Connection, Error};
use outbox::Table;
use servers::describe;
use tokio::time::timeout;
use tokio_postgres::Client;

use super::consumer_facts::{ConsumerSeen, TableFacts};
use super::facts::{Known, Permissions};
use super::locks::{LOCKS, Lock, locks};
use super::triggers::{BEFORE_ROWS, before_rows};
use super::{consumer_rules, read_broker};
use crate::checks::{Check, Scope, Skip};
use crate::consumers::{Consumers, StreamLook, look_at_stream};

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// All tables of the inbox; the last ones came with later versions.
const TABLES: &[&str] = &[
    "inbox_messages",
    "inbox_dead_letter",
    "inbox_retention",
    "inbox_decisions",
    "inbox_roles",
    "inbox_rewinds",
    "inbox_controls",
    "inbox_workers",
    "inbox_attempts",
];

/// Columns that came with later versions, or that a worker cannot begin without.
const COLUMNS: &[&str] = &[
    "inbox_roles.handled_stored_at",
    "inbox_roles.partition",
    "inbox_roles.unread_since",
    "inbox_messages.tried_since",
    "inbox_attempts.took_ms",
    "inbox_attempts.code",
    "inbox_attempts.worker",
];

/// Where to look. A server that cannot be reached is a reason.
pub struct Inspected<'a> {
    /// A connection to the database of the inbox.
    pub postgres: Result<Connection, String>,
    /// The broker.
    pub nats: Result<NatsClient, String>,
    /// The outbox, beside which the inbox's tables are.
    pub table: &'a Table,
    /// Under which subjects a relay publishes.
    pub relay: &'a relay::Config,
}

/// Looks at the tables and at these consumers, and judges what it finds. Every answer is bounded, and
/// nothing is changed.
pub async fn doctor_of_consumers(
    inspected: Inspected<'_>,
    consumers: Vec<Builder>,
    scope: &Scope,
) -> Vec<Check> {
    let Inspected { postgres, nats, table, relay } = inspected;
    let (tables, locks) = match postgres {
        Ok(connection) => {
            let locks = bounded(read_locks(connection.client(), table.schema())).await;
            (tables(connection, table).await, locks)
        }
        Err(why) => (Err(Skip::because(why.clone())), Err(Skip::because(why))),
    };
    let permissions = match &nats {
        Ok(nats) => Ok(read_broker::permissions(nats).await),
        Err(why) => Err(Skip::because(why.clone())),
    };
    let parts = consumers.into_iter().flat_map(|it| it.into_config().parts());
    let of_all = || (tables.clone(), locks.clone(), permissions.clone());
    let looks = parts.map(|it| look(it, (&nats, relay), of_all()));
    let all = futures_util::future::join_all(looks).await;
    let shared = all.first().into_iter();
    let shared = shared.flat_map(|seen| scope.checks(consumer_rules::TABLES, seen, None));
    let each = all
        .iter()
        .flat_map(|seen| scope.checks(consumer_rules::EACH, seen, Some(&seen.config.consumer)));
    let mut checks: Vec<Check> = Vec::new();
    for check in shared.chain(each) {
        // Of what all partitions are asked, the worst answer.
        match checks.iter_mut().find(|it| (it.id, &it.subject) == (check.id, &check.subject)) {
            Some(other) if other.severity >= check.severity => {}
            Some(other) => *other = check,
            None => checks.push(check),
        }
    }
    checks
}

async fn tables(connection: Connection, table: &Table) -> Known<TableFacts> {
    let mut facts = bounded(read_tables(connection.client(), table.schema())).await?;
    facts.roles = match facts.missing.iter().any(|it| it == "inbox_roles") {
        true => Err(Skip::because("there is no table inbox_roles")),
        false => bounded(Consumers::new(connection, table).held_parts()).await,
    };
    Ok(facts)
}

/// Who keeps everybody, for long, from reading the inbox's tables in the schema of `outbox`.
///
/// # Errors
///
/// If the database refuses.
pub async fn exclusive_lock(
    connection: &Connection,
    outbox: &Table,
) -> Result<Option<String>, Error> {
    let found = read_locks(connection.client(), outbox.schema()).await?;
    Ok(found.iter().find(|it| it.is_exclusive).map(Lock::said))
}

async fn read_locks(client: &Client, schema: &str) -> Result<Vec<Lock>, Error> {
    let rows = client.query(LOCKS, &[&schema, &TABLES]).await;
    Ok(locks(&rows.map_err(Error::sql("look for locks"))?))
}

async fn read_tables(client: &Client, schema: &str) -> Result<TableFacts, Error> {
    let doing = "look at the tables of the inbox";
    let sql = "SELECT name, format('%I.%I', $1::text, name), c.oid IS NULL,
                   CASE WHEN c.oid IS NULL THEN '{}' ELSE ARRAY(
                       SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'])
                           AS privilege
                       WHERE NOT has_table_privilege(c.oid, privilege)) END,
                   current_user::text,
                   ARRAY(SELECT it FROM unnest($3::text[]) AS it
                       WHERE name = split_part(it, '.', 1) AND NOT EXISTS (
                           SELECT FROM pg_attribute
                           WHERE attrelid = c.oid AND attname = split_part(it, '.', 2))),
                   coalesce(row_security_active(c.oid), false)
               FROM unnest($2::text[]) WITH ORDINALITY AS wanted (name, place)
               LEFT JOIN pg_namespace ON nspname = $1
               LEFT JOIN pg_class c ON relnamespace = pg_namespace.oid AND relname = name
               ORDER BY place";
    let rows = client.query(sql, &[&schema, &TABLES, &COLUMNS]).await.map_err(Error::sql(doing))?;
    let found = client.query(BEFORE_ROWS, &[&schema, &TABLES]).await.map_err(Error::sql(doing))?;
    let mut facts = TableFacts {
        missing: Vec::new(),
        lacks: Vec::new(),
        role: String::new(),
        policed: Vec::new(),
        before_rows: before_rows(&found),
        roles: Ok(Vec::new()),
    };
    for row in &rows {
        let (quoted, is_missing): (String, bool) = (row.get(1), row.get(2));
        let (lacks, columns): (Vec<String>, Vec<String>) = (row.get(3), row.get(5));
        if row.get(6) {
            facts.policed.push(quoted.clone());
        }
        if is_missing {
            facts.missing.push(row.get(0));
        } else if !columns.is_empty() {
            facts.missing.extend(columns);
        } else if !lacks.is_empty() {
            facts.lacks.push((quoted, lacks));
        }
        facts.role = row.get(4);
    }
    Ok(facts)
}

/// What is the same for all consumers.
type OfAll = (Known<TableFacts>, Known<Vec<Lock>>, Known<Option<Permissions>>);

async fn look(
    config: Config,
    (nats, relay): (&Result<NatsClient, String>, &relay::Config),
    (tables, locks, permissions): OfAll,
) -> ConsumerSeen {
    let nats = nats.as_ref().map_err(|why| Skip::because(why.clone()));
    let stream = match &nats {
        Ok(nats) => read_broker::stream(nats, &config.stream, None).await.0,
        Err(why) => Err(why.clone()),
    };
    let consumer = match (&nats, &stream) {
        (Ok(nats), Ok(Some(_))) => bounded(read_consumer(nats, &config)).await,
        (_, Ok(_)) => Ok(None),
        (_, Err(why)) => Err(why.clone()),
    };
    let seen = match (&nats, &stream) {
        (Ok(nats), Ok(Some(_))) => {
            bounded(look_at_stream(relay, nats, &config.stream, &config.filter_subjects)).await
        }
        (_, Ok(_)) => Ok(StreamLook::default()),
        (_, Err(why)) => Err(why.clone()),
    };
    let left_over = match (&consumer, &nats) {
        // Once for all of its partitions. A user's rights name the durable consumers that there are.
        (Ok(Some(_)), Ok(nats)) if config.partition == 0 && was_divided(&config, &tables) => {
            bounded(left_over(nats, &config)).await
        }
        _ => Ok(Vec::new()),
    };
    ConsumerSeen { config, tables, locks, stream, look: seen, consumer, left_over, permissions }
}

/// Whether it has partitions, or roles say that it had.
fn was_divided(config: &Config, tables: &Known<TableFacts>) -> bool {
    let roles = tables.as_ref().ok().and_then(|it| it.roles.as_ref().ok());
    let mut of_consumer = roles.into_iter().flatten().filter(|it| it.consumer == config.consumer);
    config.partitions.is_some() || of_consumer.any(|it| it.partition > 0)
}

async fn left_over(nats: &NatsClient, config: &Config) -> Result<Vec<String>, Error> {
    let stream = servers::jetstream_of(nats).get_stream_no_info(&config.stream).await;
    let stream = stream.map_err(Error::jetstream("look up the stream"))?;
    durable_consumer::left_over(&stream, config).await
}

async fn read_consumer(
    nats: &NatsClient,
    config: &Config,
) -> Result<Option<consumer::Info>, Error> {
    let stream = servers::jetstream_of(nats).get_stream_no_info(&config.stream).await;
    durable_consumer::find(&stream.map_err(Error::jetstream("look up the stream"))?, config).await
}

async fn bounded<T, E: std::error::Error>(work: impl Future<Output = Result<T, E>>) -> Known<T> {
    match timeout(ANSWER_MAX, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Skip::because(describe(&error))),
        Err(_) => Err(Skip::because(format!("no answer within {ANSWER_MAX:?}"))),
    }
}
