//! What deployments get wrong: read from both servers, judged by rules, each with what mends it.
//!
//! Reading and judging are apart. `read_*` ask the servers, every answer within a bound, and what one
//! of them cannot tell is a missing fact. The rules see facts only.

mod broker_rules;
mod canary;
mod consumer_facts;
mod consumer_rules;
mod facts;
mod locks;
mod managed_rules;
mod outbox_rules;
mod read_broker;
mod read_consumers;
mod read_outbox;
mod read_server;
mod read_shard;
mod relay_rules;
mod replication_rules;
mod server_rules;
mod stream_rules;
#[cfg(test)]
mod tests;
mod triggers;

use std::sync::Arc;
use std::time::Duration;

use crate::checks::{Category, Check, Rule, Scope, Skip};
use async_nats::Client as NatsClient;
use tokio::time::timeout;

pub use self::canary::{Canary, Legs, canaries};
use self::facts::{Contents, Facts, Failure, Known, OutboxTable, Role, Seen, Server, ShardFacts};
use self::facts::{no_nats, no_postgres};
use self::locks::Lock;
pub(crate) use self::read_broker::overlaps;
pub use self::read_consumers::{Inspected, doctor_of_consumers, exclusive_lock};
pub(crate) use self::stream_rules::taken;
use crate::LostReport;
use crate::sql::Store;
use relay::Error;
use relay::access::{Connection, answered};
use relay::{Config, Mode};

/// How long a server may take to let us in.
const CONNECT_MAX: Duration = Duration::from_secs(6);

/// How long all answers may take that follow the first.
const REST_MAX: Duration = Duration::from_secs(10);

/// The rules about all shards together, but for those about the log.
const RULES: [&[Rule<Seen>]; 5] = [
    server_rules::RULES,
    managed_rules::RULES,
    outbox_rules::RULES,
    broker_rules::RULES,
    relay_rules::RULES,
];

/// The ids of all checks, with what they are about.
pub fn doctor_checks() -> Vec<(&'static str, Category)> {
    let of_the_log = [replication_rules::RULES, replication_rules::EACH_SHARD, stream_rules::RULES];
    let rules = RULES.iter().chain(&of_the_log).flat_map(|it| it.iter());
    let rules = rules.map(|it| (it.id, it.category));
    rules.chain(consumer_rules::ids()).collect()
}

/// Looks at both servers, and judges what it finds. Takes at most 25 s, whatever the servers do,
/// and changes nothing.
pub async fn doctor(config: &Config, scope: &Scope) -> Vec<Check> {
    judge(config, &Arc::new(read(config).await), scope)
}

fn judge(config: &Config, facts: &Arc<Facts>, scope: &Scope) -> Vec<Check> {
    let configs = config.each_shard();
    let is_divided = configs.len() > 1;
    let seen = |config: &Config, shard: &Arc<ShardFacts>| Seen {
        config: config.clone(),
        facts: Arc::clone(facts),
        shard: Arc::clone(shard),
        host: config.postgres.host_name(),
    };
    let reads_log = config.mode != Mode::Poll;
    let mut checks = Vec::new();
    if let Some(shard) = facts.shards.first() {
        let seen = seen(config, shard);
        checks.extend(RULES.iter().flat_map(|rules| scope.checks(rules, &seen, None)));
        if reads_log {
            checks.extend(scope.checks(replication_rules::RULES, &seen, None));
        }
    }
    for (config, shard) in configs.iter().zip(&facts.shards) {
        let seen = seen(config, shard);
        let subject = |name| is_divided.then_some(name);
        if reads_log {
            let about = subject(config.slot.as_str());
            checks.extend(scope.checks(replication_rules::EACH_SHARD, &seen, about));
        }
        let about = subject(config.stream.name.as_str());
        checks.extend(scope.checks(stream_rules::RULES, &seen, about));
    }
    checks
}

async fn read(config: &Config) -> Facts {
    let (database, (mut broker, streams)) =
        tokio::join!(Box::pin(read_database(config)), Box::pin(read_nats(config)));
    let (server, replication, rest) = database;
    let Rest { role, locks, table, contents, shards: of_database } = rest;
    let mut shards = Vec::new();
    for ((publication, slot, lost), (stream, overlaps, clock)) in
        of_database.into_iter().zip(streams)
    {
        if let Ok(broker) = &mut broker {
            broker.clock = broker.clock.or(clock);
        }
        shards.push(Arc::new(ShardFacts { publication, slot, lost, stream, overlaps }));
    }
    Facts { server, role, locks, table, contents, replication, broker, shards }
}

type OfShard =
    (Known<facts::Publication>, Known<Option<facts::SlotFacts>>, Known<Option<LostReport>>);

type Database = (Result<Server, Failure>, Known<Result<(), Failure>>, Rest);

/// What is asked of a server that answers.
struct Rest {
    role: Known<Role>,
    locks: Known<Vec<Lock>>,
    table: Known<OutboxTable>,
    contents: Known<Contents>,
    shards: Vec<OfShard>,
}

impl Rest {
    fn unknown(config: &Config, why: &Skip) -> Self {
        let shards = config.each_shard();
        Self {
            role: Err(why.clone()),
            locks: Err(why.clone()),
            table: Err(why.clone()),
            contents: Err(why.clone()),
            shards: shards
                .iter()
                .map(|_| (Err(why.clone()), Err(why.clone()), Err(why.clone())))
                .collect(),
        }
    }
}

async fn read_database(config: &Config) -> Database {
    let asked = async {
        let connection = read_server::connect(config).await?;
        let server = read_server::server(&connection).await;
        Ok((connection, server.map_err(|error| Failure::of(&error))?))
    };
    let (connection, server) = match asked.await {
        Ok(asked) => asked,
        Err(failure) => {
            let rest = Rest::unknown(config, &no_postgres());
            return (Err(failure), Err(no_postgres()), rest);
        }
    };
    // After the walsenders were counted, of which this is one.
    let (replication, rest) = tokio::join!(
        Box::pin(read_server::replication(config)),
        timeout(REST_MAX, Box::pin(read_rest(&connection, config))),
    );
    let late = || Skip::because(format!("PostgreSQL did not answer within {REST_MAX:?}"));
    let rest = rest.unwrap_or_else(|_| Rest::unknown(config, &late()));
    (Ok(server), replication, rest)
}

async fn read_rest(connection: &Connection, config: &Config) -> Rest {
    let unread = |error| read_server::skip(&error);
    let role = read_server::role(connection, config.table.schema()).await.map_err(unread);
    let locks = read_outbox::locks(connection, &config.table).await.map_err(unread);
    let table = read_outbox::table(connection, config).await;
    let contents = match &table {
        Ok(table) => contents(connection, config, table.exists).await.map_err(unread),
        Err(why) => Err(why.clone()),
    };
    let mut shards = Vec::new();
    for config in config.each_shard() {
        let publication = read_shard::publication(connection, &config).await;
        let slot = read_shard::slot(connection, &config).await;
        shards.push((publication, slot, read_shard::lost(connection, &config).await));
    }
    Rest { role, locks, table, contents, shards }
}

/// On a connection of its own, as the relay opens them.
async fn contents(
    connection: &Connection,
    config: &Config,
    exists: bool,
) -> Result<Contents, Error> {
    let connected = async {
        let store = Store::brief(config, "tailpost doctor").await?;
        let bounded = "SET statement_timeout = '5s'; SET lock_timeout = '1s'";
        store.batch_execute("configure the session", bounded).await?;
        Ok(store)
    };
    let store = answered("connect", connected).await?;
    match exists {
        true => read_outbox::contents(connection, &store, config).await,
        // It may be called otherwise by now.
        false => Ok(Contents { former: read_outbox::former(&store).await?, ..Contents::default() }),
    }
}

type StreamAndOverlaps =
    (Known<Option<facts::StreamFacts>>, Known<Vec<facts::Overlap>>, Option<(f64, f64)>);

async fn read_nats(config: &Config) -> (Result<facts::Broker, Failure>, Vec<StreamAndOverlaps>) {
    let configs = config.each_shard();
    let (client, link) = match read_broker::connect(config).await {
        Ok(connected) => connected,
        Err(failure) => {
            let unknown = |_: &Config| (Err(no_nats()), Err(no_nats()), None);
            return (Err(failure), configs.iter().map(unknown).collect());
        }
    };
    let late = || Skip::because(format!("NATS did not answer within {REST_MAX:?}"));
    let streams = configs.iter().map(async |config| {
        let asked = timeout(REST_MAX, stream(&client, config)).await;
        asked.unwrap_or_else(|_| (Err(late()), Err(late()), None))
    });
    let (broker, streams) =
        tokio::join!(read_broker::broker(&client, &link), futures_util::future::join_all(streams));
    (Ok(broker), streams)
}

async fn stream(client: &NatsClient, config: &Config) -> StreamAndOverlaps {
    let (stream, clock) = read_broker::stream(client, &config.stream.name, Some(config)).await;
    let overlaps = read_broker::overlaps(client, config).await;
    (stream, overlaps, clock)
}

impl Failure {
    fn of(error: &Error) -> Self {
        Self { said: relay::describe(error), hint: error.hint(), sqlstate: error.code() }
    }
}
