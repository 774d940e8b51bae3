mod partitioning;
mod retention_config;
mod rewind_config;
mod sharding;
mod wal_config;

use std::num::NonZeroU32;
use std::time::Duration;

use outbox::Table;
use outbox::wire::{CloudEvents, SubjectTemplate};
use serde::Deserialize;
use servers::{Error, NatsTarget, PostgresTarget, check_name};

pub use crate::engine::WindowLimits;
pub use crate::mode::Mode;
use crate::routing::Route;
use crate::shards::Shards;

pub use self::retention_config::RetentionConfig;
pub use self::rewind_config::RewindConfig;
pub use self::wal_config::WalConfig;

const DAY: Duration = Duration::from_hours(24);

/// What the stream takes unless it is said.
const DEFAULT_SUBJECTS: [&str; 1] = ["outbox.>"];

/// Everything a relay must know. See `docker/tailpost.toml` for what each setting means in use.
#[derive(Debug, Clone)]
pub struct Config {
    /// The database that holds the outbox.
    pub postgres: PostgresTarget,
    /// The servers that hold the stream.
    pub nats: NatsTarget,
    /// The outbox table.
    pub table: Table,
    /// The replication slot: `[a-z0-9_]`, at most 63 characters.
    pub slot: String,
    /// The publication: `[a-z0-9_]`, at most 63 characters.
    pub publication: String,
    /// The stream that events go to.
    pub stream: StreamConfig,
    /// How the subject is made of an event that no route takes.
    pub subject: SubjectTemplate,
    /// How many partitions divide the aggregates of a stream: fixed while it has messages.
    pub partitions: NonZeroU32,
    /// Other subjects for some events, and which are not published. The first that takes an event
    /// decides.
    pub routes: Vec<Route>,
    /// How messages get the attributes of CloudEvents beside their headers, if they do.
    pub cloudevents: Option<CloudEvents>,
    /// How duplicates and disorder are prevented.
    pub mode: Mode,
    /// How much may be in flight.
    pub window: WindowLimits,
    /// How the table is searched for rows that the log cannot bring.
    pub scan: ScanConfig,
    /// How rows are claimed in [`Mode::Poll`].
    pub poll: PollConfig,
    /// How published rows are marked.
    pub mark: MarkConfig,
    /// What the slot may make the server keep.
    pub wal: WalConfig,
    /// How long a message may stay unacknowledged before the stream's tail is read.
    pub ack_timeout: Duration,
    /// What becomes of later events of an aggregate of which one was parked.
    pub on_park: OnPark,
    /// How long what is done with is kept.
    pub retention: RetentionConfig,
    /// How far back the log can be read again.
    pub rewind: RewindConfig,
    /// Attempts after which an event is parked that the stream does not take, but might later.
    pub max_attempts: u32,
    /// Into how many shards the aggregates are divided: see [`each_shard`](Self::each_shard).
    pub shards: Shards,
}

/// What becomes of later events of an aggregate of which one was parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPark {
    /// They are published.
    #[default]
    Skip,
    /// They wait, in the dead-letter table, until that one is requeued or discarded.
    BlockKey,
}

/// The JetStream stream, as set-up creates it and start-up expects it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Its name.
    pub name: String,
    /// The subjects it takes.
    pub subjects: Vec<String>,
    /// How many servers keep it, 1 to 5.
    pub replicas: usize,
    /// How long message ids are remembered.
    pub duplicate_window: Duration,
    /// How long messages are kept; `None` means forever.
    pub max_age: Option<Duration>,
    /// How many bytes are kept; `None` means no limit.
    pub max_bytes: Option<u64>,
}

/// The fallback scanner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanConfig {
    /// Time between two looks.
    pub interval: Duration,
    /// Rows per look.
    pub batch: usize,
}

/// With [`Mode::Poll`]. A node that is silent for 30 s loses its claims. The node that claims the rows
/// next must publish them while the broker remembers their ids.
const DUPLICATE_WINDOW_MIN: Duration = Duration::from_secs(60);

/// The claiming of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollConfig {
    /// Time between two looks at a table that has nothing to claim.
    pub interval: Duration,
    /// Rows per claim.
    pub batch: usize,
    /// Claims in hand at a time, each on a connection of its own.
    pub workers: usize,
}

/// How a row of the log's says that its event is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkBy {
    /// `published_at` and its companions are written to it.
    #[default]
    Row,
    /// It is deleted.
    Delete,
    /// Not at all: a watermark beside the table says so of all rows up to there. Messages have no
    /// `Nats-Msg-Id` either, which spares the broker an index entry for each: only the sequence that
    /// they expect keeps them single. The id travels in `Tailpost-Event-Id`.
    Lean,
}

/// The marks of published rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkConfig {
    /// What a mark is.
    pub by: MarkBy,
    /// Rows per statement.
    pub batch: usize,
    /// The longest a published row waits for its mark while the database keeps up.
    pub interval: Duration,
}

impl Config {
    /// Every setting but the servers at its default.
    pub fn new(postgres: PostgresTarget, nats: NatsTarget) -> Self {
        Self {
            postgres,
            nats,
            table: Table::default(),
            slot: "tailpost".into(),
            publication: "tailpost".into(),
            stream: StreamConfig {
                name: "OUTBOX".into(),
                subjects: DEFAULT_SUBJECTS.map(str::to_owned).into(),
                replicas: 1,
                duplicate_window: Duration::from_mins(2),
                max_age: None,
                max_bytes: None,
            },
            subject: SubjectTemplate::default(),
            partitions: NonZeroU32::MIN,
            routes: Vec::new(),
            cloudevents: None,
            mode: Mode::default(),
            window: WindowLimits { events: 8192, bytes: 16 << 20 },
            scan: ScanConfig { interval: Duration::from_secs(5), batch: 1000 },
            poll: PollConfig { interval: Duration::from_millis(50), batch: 32, workers: 8 },
            mark: MarkConfig { by: MarkBy::Row, batch: 1000, interval: Duration::from_millis(50) },
            wal: WalConfig::default(),
            ack_timeout: Duration::from_secs(5),
            on_park: OnPark::default(),
            retention: RetentionConfig {
                published: Some(7 * DAY),
                dead_letters: Some(14 * DAY),
                audit: Some(90 * DAY),
                replays: Some(90 * DAY),
                interval: Duration::from_hours(1),
            },
            rewind: RewindConfig { retain: None, max_age: DAY },
            max_attempts: 10,
            shards: Shards::default(),
        }
    }

    /// Whether only the expected sequence keeps messages single, because they have no
    /// `Nats-Msg-Id`: such a relay works in fenced mode or not at all.
    pub fn needs_fence(&self) -> bool {
        self.mark.by == MarkBy::Lean
    }

    /// Checks names, and settings that must fit each other. Each by itself is within the bounds of
    /// its line in the configuration.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], naming the setting as `section.key`.
    pub fn validate(&self) -> Result<(), Error> {
        check_name("postgres.slot", &self.slot)?;
        check_name("postgres.publication", &self.publication)?;
        check_stream_name(&self.stream.name)?;
        if self.stream.subjects.is_empty() {
            return Err(Error::invalid("stream.subjects", "name at least one subject"));
        }
        self.retention.check(&self.stream)?;
        self.rewind.check(&self.slot)?;
        if self.mode == Mode::Poll && self.on_park == OnPark::BlockKey {
            let reason = "\"block_key\" does not work with relay.mode = \"poll\"";
            return Err(Error::invalid("relay.on_park", reason));
        }
        if self.mode == Mode::Poll && self.stream.duplicate_window < DUPLICATE_WINDOW_MIN {
            let reason = "must be at least 60s with relay.mode = \"poll\"";
            return Err(Error::invalid("stream.duplicate_window", reason));
        }
        if self.needs_fence() && self.mode != Mode::Fenced {
            let reason = "\"lean\" needs relay.mode = \"fenced\": its messages have no \
                          Nats-Msg-Id, by which the other modes keep them single; take \"row\" or \
                          \"delete\"";
            return Err(Error::invalid("relay.mark", reason));
        }
        self.wal.check(self)?;
        if self.stream.max_age.is_some_and(|age| age < self.stream.duplicate_window) {
            return Err(Error::invalid(
                "stream.max_age",
                "must not be shorter than stream.duplicate_window",
            ));
        }
        self.check_partitions()?;
        self.check_shards()
    }
}

fn check_stream_name(name: &str) -> Result<(), Error> {
    let allowed = |it: u8| it.is_ascii_alphanumeric() || it == b'_' || it == b'-';
    if (1..=255).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(Error::invalid(
        "stream.name",
        format!("`{name}` must be made of letters, digits, `_` and `-`"),
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    mod combinations;

    use super::*;

    pub(crate) fn config() -> Config {
        let postgres = "postgres://ada@localhost/shop".parse().expect("valid");
        Config::new(postgres, "nats://localhost".parse().expect("valid"))
    }

    #[test]
    fn the_defaults_are_valid() {
        config().validate().expect("valid");
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let check = |setting: &str, break_it: fn(&mut Config)| {
            let mut config = config();
            break_it(&mut config);
            let error = config.validate().expect_err(setting).to_string();
            assert!(error.contains(setting), "{setting}: {error}");
        };
        check("postgres.slot", |it| it.slot = "My-Slot".into());
        check("postgres.publication", |it| it.publication = String::new());
        check("stream.name", |it| it.stream.name = "a.b".into());
        check("stream.subjects", |it| it.stream.subjects.clear());
        check("stream.max_age", |it| it.stream.max_age = Some(Duration::from_secs(1)));
        check("stream.duplicate_window", |it| {
            (it.mode, it.stream.duplicate_window) = (Mode::Poll, Duration::from_secs(30));
        });
        check("stream.duplicate_window, which is 120s", |it| {
            it.retention.published = Some(Duration::from_secs(119));
        });
        check("retention.dead_letters, which is 1209600s", |it| {
            it.retention.audit = Some(Duration::from_hours(13 * 24));
        });
        check("relay.wal_messages", |it| (it.wal.messages, it.mode) = (true, Mode::Poll));
        check("relay.wal_messages", |it| (it.wal.messages, it.shards) = (true, Shards::new(2)));
        check("relay.shards", |it| (it.shards, it.mode) = (Shards::new(2), Mode::Poll));
        check("relay.shards", |it| (it.shards, it.mark.by) = (Shards::new(2), MarkBy::Lean));
        check("postgres.slot", |it| (it.shards, it.slot) = (Shards::new(64), "x".repeat(57)));
        check("relay.subject", |it| {
            it.shards = Shards::new(2);
            it.subject = "sales.{aggregate_type}".parse().expect("valid");
        });
        check("stream.subjects", |it| {
            (it.shards, it.stream.subjects) = (Shards::new(2), vec!["sales.>".into()]);
        });
        check("stream.subjects", |it| it.stream.subjects = vec!["sales.{shard}.>".into()]);
        check("relay.subject", |it| it.partitions = 2.try_into().expect("above 0"));
        check("relay.partitions", |it| it.subject = "x.{partition}".parse().expect("valid"));
        check("relay.partitions", |it| it.routes = vec![route("x.{partition}")]);
        check("relay.partitions", |it| {
            it.partitions = 2.try_into().expect("above 0");
            it.subject = "outbox.{partition}.{event_type}".parse().expect("valid");
            it.routes = vec![route("x.{aggregate_type}")];
        });
        check("relay.shards", |it| {
            it.shards = Shards::new(2);
            it.subject = "sales.{shard}{aggregate_type}".parse().expect("valid");
        });
        check("relay.shards", |it| {
            it.shards = Shards::new(2);
            it.routes = vec![route("x.{aggregate_type}")];
        });
        check("relay.shards", |it| {
            it.shards = Shards::new(2);
            it.routes = vec![route("outbox.{aggregate_type}.{shard}.x")];
        });
    }

    #[test]
    fn lean_is_refused_where_only_ids_keep_messages_single() {
        for mode in [Mode::Keyed, Mode::Poll] {
            let mark = MarkConfig { by: MarkBy::Lean, ..config().mark };
            let error = Config { mode, mark, ..config() }.validate().expect_err("no fence");
            assert!(error.to_string().contains("relay.mark"), "{error}");
        }
    }

    fn route(subject: &str) -> Route {
        let any = crate::Glob::any;
        let destination = crate::Destination::Subject(subject.parse().expect("valid"));
        Route { aggregate_type: "order".parse().expect("valid"), event_type: any(), destination }
    }

    #[test]
    fn each_shard_has_slot_publication_stream_and_subjects_of_its_own() {
        let all = Config {
            shards: Shards::new(2),
            routes: vec![route("sales.{shard}.{aggregate_id}")],
            ..config()
        };
        all.validate().expect("valid");
        let shards = all.each_shard();
        let names = |it: &Config| [&it.slot, &it.publication, &it.stream.name].map(Clone::clone);
        assert_eq!(names(&shards[0]), ["tailpost_0of2", "tailpost_0of2", "OUTBOX_0"]);
        assert_eq!(names(&shards[1]), ["tailpost_1of2", "tailpost_1of2", "OUTBOX_1"]);
        assert_eq!(shards[1].routing().patterns(), ["outbox.1.*.*", "sales.1.*"]);
        assert_eq!(shards[1].each_shard().len(), 1, "it is one");
        assert_eq!(config().each_shard()[0].slot, "tailpost");
    }

    #[test]
    fn slots_of_another_number_of_shards_are_known_by_their_names() {
        let (one, two) = (config(), Config { shards: Shards::new(2), ..config() });
        for (slot, of_one, of_two) in [
            ("tailpost", false, true),
            ("renamed", false, true),
            ("tailpost_1of2", true, false),
            ("tailpost_1of4", true, true),
            ("renamed_1of2", true, true),
        ] {
            assert_eq!(one.is_of_other_shards(slot), of_one, "{slot}");
            assert_eq!(two.is_of_other_shards(slot), of_two, "{slot}");
            assert_eq!(two.each_shard()[1].is_of_other_shards(slot), of_two, "{slot}");
        }
        let before = two.before("tailpost_3of4").expect("known");
        assert_eq!((&*before.slot, &*before.stream.name), ("tailpost_3of4", "OUTBOX_3"));
        let before = two.before("tailpost").expect("known");
        assert_eq!((&*before.slot, &*before.stream.name), ("tailpost", "OUTBOX"));
        assert!(two.before("renamed").is_none());
    }
}
