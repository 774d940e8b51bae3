//! Every setting: its name, and how a value gets into [`Settings`].

use std::time::Duration;

use outbox::Column;
use relay::{MarkBy, Mode, OnPark};
use servers::{SecretCommand, SslMode};

use super::admin_settings::{header, networks, role, token_files};
use super::error::{Error, Origin};
use super::telemetry_settings::{endpoint, headers};
use super::value::{Value, Wanted};
use super::{LogFormat, Settings};

/// A setting.
pub(super) struct Key {
    /// `section.key`, as in the file.
    pub(super) path: &'static str,
    /// Puts a value in place, or says what is wanted.
    pub(super) set: fn(&mut Settings, Value<'_>) -> Result<(), Wanted>,
    /// A secret is never given by an empty variable; any other setting's counts as not set.
    pub(super) is_secret: bool,
}

impl Key {
    pub(super) fn find(path: &str) -> Option<&'static Self> {
        KEYS.iter().find(|it| it.path == path)
    }

    /// Puts a value in place, and notes where it comes from.
    pub(super) fn apply(
        &self,
        settings: &mut Settings,
        value: Value<'_>,
        origin: Origin,
    ) -> Result<(), Error> {
        (self.set)(settings, value).map_err(|wanted| {
            Error::new(origin.clone(), format!("`{}` must be {wanted}", self.path))
        })?;
        settings.origins.insert(self.path.to_owned(), origin);
        settings.given.note(self.path, value);
        Ok(())
    }
}

/// All settings, in the order of `docker/tailpost.toml`.
pub(super) static KEYS: &[Key] = &[
    key("postgres.url", |it, v| put(&mut it.postgres.url, v.text().map(some))),
    key("postgres.password_file", |it, v| put(&mut it.postgres.password_file, v.text().map(path))),
    key("postgres.password_command", |it, v| put(&mut it.postgres.password_command, command(v))),
    key("postgres.table", |it, v| put(&mut it.postgres.table, parsed(v))),
    key("postgres.slot", |it, v| put(&mut it.postgres.slot, string(v))),
    key("postgres.publication", |it, v| put(&mut it.postgres.publication, string(v))),
    key("postgres.sslmode", |it, v| put(&mut it.postgres.tls.sslmode, sslmode(v).map(Some))),
    key("postgres.sslrootcert", |it, v| put(&mut it.postgres.tls.sslrootcert, v.text().map(path))),
    key("postgres.sslcert", |it, v| put(&mut it.postgres.tls.sslcert, v.text().map(path))),
    key("postgres.sslkey", |it, v| put(&mut it.postgres.tls.sslkey, v.text().map(path))),
    key("outbox.columns.id", |it, v| column(it, Column::Id, v)),
    key("outbox.columns.aggregate_type", |it, v| column(it, Column::AggregateType, v)),
    key("outbox.columns.aggregate_id", |it, v| column(it, Column::AggregateId, v)),
    key("outbox.columns.event_type", |it, v| column(it, Column::EventType, v)),
    key("outbox.columns.event_version", |it, v| column(it, Column::EventVersion, v)),
    key("outbox.columns.payload", |it, v| column(it, Column::Payload, v)),
    key("outbox.columns.occurred_at", |it, v| column(it, Column::OccurredAt, v)),
    key("outbox.columns.correlation_id", |it, v| column(it, Column::CorrelationId, v)),
    key("outbox.columns.causation_id", |it, v| column(it, Column::CausationId, v)),
    key("outbox.columns.headers", |it, v| column(it, Column::Headers, v)),
    key("nats.url", |it, v| put(&mut it.nats.url, string(v))),
    key("nats.creds", |it, v| put(&mut it.nats.access.creds, v.text().map(path))),
    secret("nats.nkey", |it, v| put(&mut it.nats.access.nkey, v.secret().map(some))),
    secret("nats.token", |it, v| put(&mut it.nats.access.token, v.secret().map(some))),
    key("nats.token_file", |it, v| put(&mut it.nats.access.token_file, v.text().map(path))),
    key("nats.user", |it, v| put(&mut it.nats.access.user, v.text().map(some))),
    secret("nats.password", |it, v| put(&mut it.nats.access.password, v.secret().map(some))),
    key("nats.password_file", |it, v| put(&mut it.nats.access.password_file, v.text().map(path))),
    key("nats.ca", |it, v| put(&mut it.nats.access.ca, v.text().map(path))),
    key("nats.cert", |it, v| put(&mut it.nats.access.cert, v.text().map(path))),
    key("nats.key", |it, v| put(&mut it.nats.access.key, v.text().map(path))),
    key("nats.api_prefix", |it, v| put(&mut it.nats.access.api_prefix, v.text().map(some))),
    key("nats.inbox_prefix", |it, v| put(&mut it.nats.access.inbox_prefix, v.text().map(some))),
    key("nats.tls_first", |it, v| put(&mut it.nats.access.tls_first, v.bool())),
    key("stream.name", |it, v| put(&mut it.stream.name, string(v))),
    key("stream.subjects", |it, v| put(&mut it.stream.subjects, v.list())),
    key("stream.replicas", |it, v| put(&mut it.stream.replicas, v.integer())),
    key("stream.duplicate_window", |it, v| put(&mut it.stream.duplicate_window, v.duration())),
    key("stream.max_age", |it, v| put(&mut it.stream.max_age, limit(v))),
    key("stream.max_bytes", |it, v| put(&mut it.stream.max_bytes, v.unless_off(Value::size))),
    key("relay.mode", |it, v| put(&mut it.relay.mode, mode(v))),
    key("relay.subject", |it, v| put(&mut it.relay.subject, parsed(v))),
    key("relay.shards", |it, v| put(&mut it.relay.shards, small(v))),
    key("relay.window_events", |it, v| put(&mut it.relay.window.events, v.integer())),
    key("relay.window_bytes", |it, v| put(&mut it.relay.window.bytes, bytes(v))),
    key("relay.ack_timeout", |it, v| put(&mut it.relay.ack_timeout, v.duration())),
    key("relay.max_attempts", |it, v| put(&mut it.relay.max_attempts, small(v))),
    key("relay.on_park", |it, v| put(&mut it.relay.on_park, on_park(v))),
    key("relay.scan_interval", |it, v| put(&mut it.relay.scan.interval, v.duration())),
    key("relay.scan_batch", |it, v| put(&mut it.relay.scan.batch, v.integer())),
    key("relay.mark", |it, v| put(&mut it.relay.mark.by, mark_by(v))),
    key("relay.mark_batch", |it, v| put(&mut it.relay.mark.batch, v.integer())),
    key("relay.mark_interval", |it, v| put(&mut it.relay.mark.interval, v.duration())),
    key("relay.poll_interval", |it, v| put(&mut it.relay.poll.interval, v.duration())),
    key("relay.poll_batch", |it, v| put(&mut it.relay.poll.batch, v.integer())),
    key("relay.poll_workers", |it, v| put(&mut it.relay.poll.workers, v.integer())),
    key("relay.wal_limit", |it, v| put(&mut it.relay.wal.limit, v.unless_off(Value::size))),
    key("relay.wal_messages", |it, v| put(&mut it.relay.wal.messages, v.bool())),
    key("retention.published", |it, v| put(&mut it.retention.published, limit(v))),
    key("retention.dead_letters", |it, v| put(&mut it.retention.dead_letters, limit(v))),
    key("retention.audit", |it, v| put(&mut it.retention.audit, limit(v))),
    key("retention.replays", |it, v| put(&mut it.retention.replays, limit(v))),
    key("retention.interval", |it, v| put(&mut it.retention.interval, v.duration())),
    key("rewind.retain", |it, v| put(&mut it.rewind.retain, v.unless_off(Value::size))),
    key("rewind.max_age", |it, v| put(&mut it.rewind.max_age, v.duration())),
    key("admin.listen", |it, v| put(&mut it.admin.listen, v.unless_off(address))),
    key("admin.inbox_listen", |it, v| put(&mut it.admin.inbox_listen, v.unless_off(address))),
    secret("admin.token", |it, v| put(&mut it.admin.token, v.bearer_token().map(some))),
    key("metrics.environment", |it, v| put(&mut it.metrics.environment, string(v))),
    key("metrics.interval", |it, v| put(&mut it.metrics.interval, v.duration())),
    key("admin.tokens", |it, v| put(&mut it.admin.tokens, token_files(v))),
    key("admin.trusted_proxy", |it, v| put(&mut it.admin.proxy.trusted, networks(v))),
    key("admin.proxy_user_header", |it, v| put(&mut it.admin.proxy.user_header, header(v))),
    key("admin.proxy_role_header", |it, v| {
        put(&mut it.admin.proxy.role_header, header(v).map(Some))
    }),
    key("admin.proxy_role", |it, v| put(&mut it.admin.proxy.role, role(v))),
    key("log.format", |it, v| put(&mut it.log.format, log_format(v))),
    key("telemetry.otlp_endpoint", |it, v| {
        it.telemetry.is_exact = false;
        put(&mut it.telemetry.otlp_endpoint, endpoint(v))
    }),
    secret("telemetry.otlp_headers", |it, v| put(&mut it.telemetry.otlp_headers, headers(v))),
    key("telemetry.service_name", |it, v| put(&mut it.telemetry.service_name, string(v))),
];

const fn key(path: &'static str, set: fn(&mut Settings, Value<'_>) -> Result<(), Wanted>) -> Key {
    Key { path, set, is_secret: false }
}

const fn secret(
    path: &'static str,
    set: fn(&mut Settings, Value<'_>) -> Result<(), Wanted>,
) -> Key {
    Key { path, set, is_secret: true }
}

fn put<T>(place: &mut T, value: Result<T, Wanted>) -> Result<(), Wanted> {
    *place = value?;
    Ok(())
}

fn column(settings: &mut Settings, column: Column, value: Value<'_>) -> Result<(), Wanted> {
    let renamed = settings.postgres.columns.rename(column, value.text()?);
    renamed.map_err(|error| format!("the name of a column: {error}").into())
}

fn string(value: Value<'_>) -> Result<String, Wanted> {
    value.text().map(str::to_owned)
}

/// A duration, or none.
fn limit(value: Value<'_>) -> Result<Option<Duration>, Wanted> {
    value.unless_off(Value::duration)
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn path(text: &str) -> Option<std::path::PathBuf> {
    Some(text.into())
}

fn command(value: Value<'_>) -> Result<Option<SecretCommand>, Wanted> {
    let wanted = "a program and its arguments, such as [\"/usr/local/bin/token\", \"--short\"]";
    let argv = value.argv().map_err(|_| wanted)?;
    SecretCommand::new(argv).map(Some).ok_or_else(|| wanted.into())
}

fn parsed<T>(value: Value<'_>) -> Result<T, Wanted>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    value.text()?.parse().map_err(|error: T::Err| format!("valid: {error}").into())
}

fn bytes(value: Value<'_>) -> Result<usize, Wanted> {
    usize::try_from(value.size()?).map_err(|_| "a size that fits into memory".into())
}

fn small(value: Value<'_>) -> Result<u32, Wanted> {
    u32::try_from(value.integer()?).map_err(|_| "a smaller number".into())
}

fn sslmode(value: Value<'_>) -> Result<SslMode, Wanted> {
    let wanted = "disable, prefer, require, verify-ca, or verify-full";
    value.text().ok().and_then(|it| it.parse().ok()).ok_or_else(|| wanted.into())
}

/// One of these words.
fn word<T: Copy>(value: Value<'_>, words: &[(&str, T)]) -> Result<T, Wanted> {
    let given = value.text().ok();
    let found = words.iter().find(|(word, _)| Some(*word) == given).map(|(_, meant)| *meant);
    found.ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let (last, others) = words.split_last().expect("there are words");
        format!("{} or {last}", others.join(", ")).into()
    })
}

fn mode(value: Value<'_>) -> Result<Mode, Wanted> {
    word(value, &[("fenced", Mode::Fenced), ("keyed", Mode::Keyed), ("poll", Mode::Poll)])
}

fn on_park(value: Value<'_>) -> Result<OnPark, Wanted> {
    word(value, &[("skip", OnPark::Skip), ("block_key", OnPark::BlockKey)])
}

fn mark_by(value: Value<'_>) -> Result<MarkBy, Wanted> {
    word(value, &[("row", MarkBy::Row), ("delete", MarkBy::Delete), ("lean", MarkBy::Lean)])
}

fn address(value: Value<'_>) -> Result<std::net::SocketAddr, Wanted> {
    let wanted = "an address with a port such as \"127.0.0.1:9464\"";
    value.text().ok().and_then(|it| it.parse().ok()).ok_or_else(|| wanted.into())
}

fn log_format(value: Value<'_>) -> Result<LogFormat, Wanted> {
    word(value, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
}
