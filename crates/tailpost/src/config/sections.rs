//! Every setting: a line with its name, and with the type that says what it takes and within which
//! bounds. `docker/tailpost.toml` has the defaults and the words.

use std::collections::BTreeMap;
use std::path::PathBuf;

use inbox::Rate;
use inbox::http::{Accept, BodyForm, Proxy};
use outbox::Table;
use outbox::wire::SubjectTemplate;
use relay::{MarkBy, Mode, OnPark};
use serde::Deserialize;

use super::forms::{
    ApiAddress, AttributeTemplates, Command, Count, HandlerHeaders, OrOff, Parsed, PauseList,
    Secret, SigningSecret, Size, Time, TlsMode, Word,
};

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PostgresSettings {
    pub(crate) url: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) password_command: Option<Command>,
    pub(crate) table: Parsed<Table>,
    pub(super) slot: String,
    pub(super) publication: String,
    pub(super) sslmode: Option<TlsMode>,
    pub(super) sslrootcert: Option<PathBuf>,
    pub(super) sslcert: Option<PathBuf>,
    pub(super) sslkey: Option<PathBuf>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutboxSettings {
    /// Each column of the documented table with its name in this one.
    pub(super) columns: BTreeMap<String, String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatsSettings {
    pub(crate) url: String,
    pub(super) creds: Option<PathBuf>,
    pub(super) nkey: Option<Secret>,
    pub(super) token: Option<Secret>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) tls_first: bool,
    pub(super) api_prefix: Option<String>,
    pub(super) inbox_prefix: Option<String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamSettings {
    pub(crate) name: String,
    pub(super) subjects: Vec<String>,
    pub(super) replicas: Count<1, 5>,
    pub(super) duplicate_window: Time<100>,
    pub(super) max_age: OrOff<Time>,
    pub(super) max_bytes: OrOff<Size<1>>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RelaySettings {
    pub(super) mode: Word<Mode>,
    pub(crate) shards: Count<1, 64>,
    pub(crate) partitions: Count<1, 1_024>,
    pub(super) subject: Parsed<SubjectTemplate>,
    pub(super) cloudevents: Option<AttributeTemplates>,
    /// Beyond this the client would drop acknowledgements that are not read fast enough.
    pub(super) window_events: Count<1, 65_536>,
    pub(super) window_bytes: Size<{ 64 << 10 }, { 4 << 30 }>,
    pub(super) ack_timeout: Time<100>,
    pub(super) max_attempts: Count<1, 1_000>,
    pub(super) on_park: Word<OnPark>,
    pub(super) scan_interval: Time<100>,
    pub(super) scan_batch: Count<1, 100_000>,
    pub(super) mark: Word<MarkBy>,
    pub(super) mark_batch: Count<1, 100_000>,
    pub(super) mark_interval: Time<1>,
    pub(super) poll_interval: Time<1>,
    pub(super) poll_batch: Count<1, 1_000>,
    pub(super) poll_workers: Count<1, 64>,
    pub(super) wal_limit: OrOff<Size<{ 1 << 20 }>>,
    pub(super) wal_messages: bool,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetentionSettings {
    pub(super) published: OrOff<Time>,
    pub(super) dead_letters: OrOff<Time<86_400_000>>,
    pub(super) audit: OrOff<Time<86_400_000>>,
    pub(super) replays: OrOff<Time>,
    pub(super) interval: Time<100>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewindSettings {
    pub(super) retain: OrOff<Size<{ 16 << 20 }>>,
    pub(super) max_age: Time<60_000>,
}

/// What holds for a consumer: of `[inbox]`, or of that with what `[inbox.NAME]` has otherwise.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerSettings {
    pub(crate) handler: Option<String>,
    pub(crate) stream: Option<String>,
    pub(crate) subjects: Option<Vec<String>>,
    pub(crate) partitions: Option<Count<2, 256>>,
    pub(crate) concurrency: Count<1>,
    pub(crate) lease: Time,
    pub(crate) ack_wait: Time,
    pub(crate) max_attempts: Count<1>,
    pub(crate) backoff: PauseList,
    pub(crate) give_up_after: OrOff<Time<1_000>>,
    pub(crate) rate: Option<Parsed<Rate>>,
    /// How long the handler may take to answer.
    pub(crate) timeout: Time,
    pub(crate) accept: Word<Accept>,
    pub(crate) body: Word<BodyForm>,
    pub(crate) headers: Option<HandlerHeaders>,
    pub(crate) headers_file: Option<PathBuf>,
    pub(crate) bearer_token_file: Option<PathBuf>,
    pub(crate) secrets: Option<Vec<SigningSecret>>,
    pub(crate) secrets_file: Option<PathBuf>,
    pub(crate) proxy: Option<Parsed<Proxy>>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) retention: OrOff<Time>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsoleSettings {
    /// What a relay's console shows beside the relay.
    #[serde(default)]
    pub(crate) inboxes: Vec<ApiAddress>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricsSettings {
    /// The label `env` of every metric.
    pub(crate) environment: String,
    /// How often the servers are asked for what only they know.
    pub(crate) interval: Time,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogSettings {
    pub(crate) format: Word<LogFormat>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
