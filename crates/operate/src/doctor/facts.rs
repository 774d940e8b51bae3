//! What is known of the servers when the rules judge. No I/O here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::locks::Lock;
use super::triggers::BeforeRows;
use crate::checks::Skip;
use crate::horizon::Holder;
use async_nats::jetstream::stream::Config as Stream;
use relay::Config;
use relay::access::SequenceBehind;
use relay::access::columns::Misfit;
use relay::access::schema::Lack;
use relay::access::stream_check::Finding;
use serde::Deserialize;
use tokio_postgres::error::SqlState;

use crate::{LostReport, RetentionReport};

/// A fact, or why it is unknown.
pub(crate) type Known<T> = Result<T, Skip>;

/// What a server answered instead of letting us in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Failure {
    /// The error with its causes, in one line.
    pub(crate) said: String,
    /// What the operator can do about it.
    pub(crate) hint: Option<String>,
    /// PostgreSQL's code, if it gave one.
    pub(crate) sqlstate: Option<SqlState>,
}

/// Everything that the rules of a relay look at.
pub(crate) struct Facts {
    pub(crate) server: Result<Server, Failure>,
    pub(crate) role: Known<Role>,
    /// On the outbox and its companions.
    pub(crate) locks: Known<Vec<Lock>>,
    pub(crate) table: Known<OutboxTable>,
    /// Nothing where there is no outbox.
    pub(crate) contents: Known<Contents>,
    /// What PostgreSQL answered on a replication connection.
    pub(crate) replication: Known<Result<(), Failure>>,
    pub(crate) broker: Result<Broker, Failure>,
    pub(crate) shards: Vec<Arc<ShardFacts>>,
}

/// What a rule sees: all facts, and the configuration and the facts of one shard. It borrows nothing,
/// because rules are constants.
pub(crate) struct Seen {
    pub(crate) config: Config,
    pub(crate) facts: Arc<Facts>,
    pub(crate) shard: Arc<ShardFacts>,
    /// How the database is reached, as the configuration says.
    pub(crate) host: String,
}

impl Seen {
    pub(crate) fn server(&self) -> Known<&Server> {
        self.facts.server.as_ref().map_err(|_| no_postgres())
    }

    pub(crate) fn role(&self) -> Known<&Role> {
        self.facts.role.as_ref().map_err(Clone::clone)
    }

    /// The facts about the outbox, whether it exists or not.
    pub(crate) fn any_table(&self) -> Known<&OutboxTable> {
        self.facts.table.as_ref().map_err(Clone::clone)
    }

    /// The outbox, if it exists.
    pub(crate) fn table(&self) -> Known<&OutboxTable> {
        let table = self.any_table()?;
        match table.exists {
            true => Ok(table),
            false => Err(Skip::because(format!("there is no table {}", self.config.table))),
        }
    }

    pub(crate) fn contents(&self) -> Known<&Contents> {
        self.facts.contents.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn broker(&self) -> Known<&Broker> {
        self.facts.broker.as_ref().map_err(|_| no_nats())
    }

    /// The stream, if it exists.
    pub(crate) fn stream(&self) -> Known<&StreamFacts> {
        let stream = self.shard.stream.as_ref().map_err(Clone::clone)?;
        let missing = || Skip::because(format!("there is no stream {}", self.config.stream.name));
        stream.as_ref().ok_or_else(missing)
    }
}

pub(crate) fn no_postgres() -> Skip {
    Skip::because("PostgreSQL cannot be asked")
}

pub(crate) fn no_nats() -> Skip {
    Skip::because("NATS cannot be asked")
}

/// The database server.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Server {
    pub(crate) version: i32,
    pub(crate) version_text: String,
    pub(crate) database: String,
    pub(crate) in_recovery: bool,
    /// `host:port` of the server that a standby follows, if it says so.
    pub(crate) primary: Option<String>,
    /// Values at the beginning of a session of the role, in their base units.
    pub(crate) settings: HashMap<String, String>,
    pub(crate) is_encrypted: bool,
    /// Whether the connection does not leave the machine.
    pub(crate) is_local: bool,
    pub(crate) connections: i64,
    pub(crate) slots: Vec<AnySlot>,
    pub(crate) walsenders: i64,
    /// Connections of relays that poll.
    pub(crate) pollers: i64,
    /// Commits that have waited for a synchronous standby for long.
    pub(crate) held_commits: i64,
    #[serde(skip)]
    pub(crate) holders: Vec<Holder>,
    /// The server's clock less this machine's, in seconds, and how exact that is.
    #[serde(skip)]
    pub(crate) clock_ahead: f64,
    #[serde(skip)]
    pub(crate) clock_error: f64,
    /// Names of roles and of settings by which providers are known.
    pub(crate) traits: Vec<String>,
}

impl Server {
    pub(crate) fn setting(&self, name: &str) -> Known<&str> {
        let unknown = || Skip::because(format!("this server has no {name}"));
        self.settings.get(name).map(String::as_str).ok_or_else(unknown)
    }

    pub(crate) fn number(&self, name: &str) -> Known<i64> {
        let text = self.setting(name)?;
        text.parse().map_err(|_| Skip::because(format!("{name} is {text}")))
    }
}

/// A replication slot, of whomever.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct AnySlot {
    pub(crate) name: String,
    pub(crate) active: bool,
    pub(crate) retained_bytes: i64,
    /// Its reader.
    pub(crate) pid: Option<i32>,
    /// What it reads of this database, as far as our role may know.
    pub(crate) publications: Option<String>,
}

/// The role that Tailpost logs in as.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) is_superuser: bool,
    pub(crate) may_replicate: bool,
    /// -1 is no limit.
    pub(crate) connection_limit: i32,
    /// Those of [`Server::traits`] that it is a member of.
    pub(crate) member_of: Vec<String>,
    pub(crate) has_schema: bool,
    pub(crate) may_use_schema: bool,
    /// Whether it may create publications and schemas, and tables in the outbox's schema.
    pub(crate) may_create_in_database: bool,
    pub(crate) may_create_in_schema: bool,
}

/// The outbox with its companions.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct OutboxTable {
    pub(crate) exists: bool,
    /// The table, and partitions, that a crash empties.
    pub(crate) unlogged: Vec<String>,
    /// The owner, and whether the role may act as it and create tables beside it.
    pub(crate) owner: String,
    pub(crate) is_owner: bool,
    pub(crate) may_create: bool,
    /// Of the outbox and the dead letters, those whose policies apply to the role.
    pub(crate) policed: Vec<String>,
    /// What is wrong with the columns.
    #[serde(skip)]
    pub(crate) unfit: Option<Misfit>,
    /// The index of unmarked rows, and that of transactions.
    pub(crate) has_unmarked_index: bool,
    pub(crate) has_transactions_index: bool,
    pub(crate) has_poll_index: bool,
    /// Indexes that are there and are not used.
    pub(crate) invalid_indexes: Vec<String>,
    /// What fires when a row is marked or parked, and the statement that ends it.
    pub(crate) triggers: Vec<(String, String)>,
    /// Tables without autovacuum.
    pub(crate) unvacuumed: Vec<String>,
    /// What the role lacks: table, and the privileges.
    pub(crate) lacks: Vec<(String, Vec<String>)>,
    /// What runs before rows of the companions are written.
    #[serde(skip)]
    pub(crate) before_rows: Vec<BeforeRows>,
    /// What the migrations made, and is not there.
    #[serde(skip)]
    pub(crate) lost: Vec<Lack>,
    /// `None` if the role may not read the record.
    #[serde(skip)]
    pub(crate) migrations: Option<Migrations>,
}

/// What the companions say, and the rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    /// The statements that drop indexes for which `relay.mark` has no use.
    pub(crate) needless_indexes: Vec<String>,
    /// The largest payload among the next rows, in bytes.
    pub(crate) largest_payload: Option<i64>,
    /// The sequence of rows is behind those that wait.
    pub(crate) sequence: Option<SequenceBehind>,
    /// How long the partitions last, if there are some by day.
    pub(crate) partitions: Option<Partitions>,
    pub(crate) retention: Option<RetentionReport>,
    /// Slots of another number of shards are on record: what is wrong, and what mends it.
    pub(crate) other_shards: Option<(String, String)>,
    /// A table that was the outbox has rows that are not published: the same.
    pub(crate) former: Option<(String, String)>,
}

/// How far partitions reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Partitions {
    pub(crate) until: String,
    pub(crate) is_short: bool,
}

/// What was applied, compared with what this version knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Migrations {
    pub(crate) applied: usize,
    pub(crate) pending: Vec<String>,
    /// Of a newer version.
    pub(crate) newer: Vec<i32>,
    /// The record is of another table, or of another text.
    pub(crate) problem: Option<String>,
}

/// What a shard has of its own.
pub(crate) struct ShardFacts {
    pub(crate) publication: Known<Publication>,
    pub(crate) slot: Known<Option<SlotFacts>>,
    pub(crate) stream: Known<Option<StreamFacts>>,
    /// What the stream has lost of what it had acknowledged.
    pub(crate) lost: Known<Option<LostReport>>,
    /// Streams that take subjects of this one: name, what each takes, which of them are ours.
    pub(crate) overlaps: Known<Vec<Overlap>>,
}

impl ShardFacts {
    /// Whether the slot has a reader.
    pub(crate) fn is_read(&self) -> bool {
        matches!(&self.slot, Ok(Some(slot)) if slot.reader.is_some())
    }
}

/// Another stream that takes our subjects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) stream: String,
    pub(crate) takes: Vec<String>,
}

/// The publication.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Publication {
    #[default]
    Fit,
    Missing,
    /// What is wrong, and the statement that mends it.
    Unfit(String, String),
    /// It was changed after the slot was created.
    Changed,
}

/// The relay's slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct SlotFacts {
    pub(crate) plugin: Option<String>,
    pub(crate) database: Option<String>,
    /// Whether `tailpost_state` knows where it begins.
    #[serde(skip)]
    pub(crate) is_known: bool,
    pub(crate) wal_status: Option<String>,
    pub(crate) invalidation: Option<String>,
    pub(crate) reader: Option<Reader>,
    pub(crate) retained_bytes: i64,
    pub(crate) is_temporary: bool,
    /// While PostgreSQL makes it.
    pub(crate) waits_for: Option<Blocker>,
}

/// Whose transaction a slot waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Blocker {
    /// 0 if it is prepared.
    pub(crate) pid: i32,
    pub(crate) who: String,
}

/// Who reads the slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Reader {
    pub(crate) pid: i32,
    pub(crate) application: Option<String>,
}

/// The broker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Broker {
    pub(crate) version: String,
    pub(crate) max_payload: usize,
    pub(crate) cluster: Option<String>,
    /// Why the account has no JetStream, if it has none.
    pub(crate) no_jetstream: Option<String>,
    /// What the user may do, if the server tells.
    pub(crate) permissions: Option<Permissions>,
    /// Where answers come that the user may not hear, if that is so.
    pub(crate) unheard: Option<String>,
    /// Bytes that the account may store on disk, and does; no limit if negative.
    pub(crate) storage: Option<(i64, i64)>,
    /// The server's clock less this machine's, in seconds, and how exact that is; unknown without
    /// a stream.
    pub(crate) clock: Option<(f64, f64)>,
}

/// Subjects that a user may publish and subscribe; all if nothing is allowed in particular.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Permissions {
    pub(crate) publish: Subjects,
    pub(crate) subscribe: Subjects,
}

/// Subjects that are allowed and denied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subjects {
    pub(crate) allow: Option<Vec<String>>,
    pub(crate) deny: Vec<String>,
}

/// The stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamFacts {
    pub(crate) config: Stream,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Where the last event is, if that is not where the relay publishes it.
    pub(crate) mapped: Option<Finding>,
}

impl StreamFacts {
    pub(crate) fn max_age(&self) -> Option<Duration> {
        Some(self.config.max_age).filter(|it| !it.is_zero())
    }
}
