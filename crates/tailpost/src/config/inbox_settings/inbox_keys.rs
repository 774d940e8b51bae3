//! The settings of a consumer, and how a value gets into them.

use std::path::PathBuf;
use std::time::Duration;

use inbox::http::Secret;

use crate::config::value::{Value, Wanted};

/// What was said for one consumer, or for all of them.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Layer {
    pub(super) handler: Option<String>,
    pub(super) stream: Option<String>,
    pub(super) subjects: Option<Vec<String>>,
    pub(super) concurrency: Option<usize>,
    pub(super) lease: Option<Duration>,
    pub(super) ack_wait: Option<Duration>,
    pub(super) max_attempts: Option<u32>,
    pub(super) backoff_first: Option<Duration>,
    pub(super) backoff_max: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) secrets: Option<Vec<String>>,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    /// `Some(None)` if that is what was said.
    pub(super) retention: Option<Option<Duration>>,
}

/// A setting of a consumer.
pub(in crate::config) struct Key {
    pub(in crate::config) name: &'static str,
    /// Whether it is about the tables, which the consumers share.
    pub(super) shared: bool,
    pub(super) set: fn(&mut Layer, Value<'_>) -> Result<(), Wanted>,
}

/// The one that is a secret: see `is_secret` in the other table.
pub(in crate::config) const SECRETS: &str = "secrets";

/// All of them, in the order of `docker/tailpost.toml`.
pub(in crate::config) static KEYS: &[Key] = &[
    key("handler", |it, v| put(&mut it.handler, v.text().map(str::to_owned))),
    key("stream", |it, v| put(&mut it.stream, v.text().map(str::to_owned))),
    key("subjects", |it, v| put(&mut it.subjects, v.list())),
    key("concurrency", |it, v| put(&mut it.concurrency, at_least_one(v))),
    key("lease", |it, v| put(&mut it.lease, v.duration())),
    key("ack_wait", |it, v| put(&mut it.ack_wait, v.duration())),
    key("max_attempts", |it, v| put(&mut it.max_attempts, attempts(v))),
    key("backoff_first", |it, v| put(&mut it.backoff_first, v.duration())),
    key("backoff_max", |it, v| put(&mut it.backoff_max, v.duration())),
    key("timeout", |it, v| put(&mut it.timeout, v.duration())),
    key(SECRETS, |it, v| put(&mut it.secrets, secrets(v))),
    key("ca", |it, v| put(&mut it.ca, v.text().map(Into::into))),
    key("cert", |it, v| put(&mut it.cert, v.text().map(Into::into))),
    key("key", |it, v| put(&mut it.key, v.text().map(Into::into))),
    shared("retention", |it, v| put(&mut it.retention, v.unless_off(Value::duration))),
];

const fn key(name: &'static str, set: fn(&mut Layer, Value<'_>) -> Result<(), Wanted>) -> Key {
    Key { name, shared: false, set }
}

const fn shared(name: &'static str, set: fn(&mut Layer, Value<'_>) -> Result<(), Wanted>) -> Key {
    Key { name, shared: true, set }
}

fn put<T>(place: &mut Option<T>, value: Result<T, Wanted>) -> Result<(), Wanted> {
    *place = Some(value?);
    Ok(())
}

fn at_least_one(value: Value<'_>) -> Result<usize, Wanted> {
    value.integer().ok().filter(|it| *it > 0).ok_or_else(|| "a whole number from 1".into())
}

fn attempts(value: Value<'_>) -> Result<u32, Wanted> {
    u32::try_from(at_least_one(value)?).map_err(|_| "a whole number from 1".into())
}

fn secrets(value: Value<'_>) -> Result<Vec<String>, Wanted> {
    let secrets = value.list()?;
    match secrets.iter().find_map(|it| it.parse::<Secret>().err()) {
        Some(_) => Err("a list of secrets: whsec_ and 24 to 64 bytes in Base64".into()),
        None => Ok(secrets),
    }
}
