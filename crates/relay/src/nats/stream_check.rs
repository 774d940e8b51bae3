//! Whether a stream can be trusted with events.

use async_nats::Client;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{
    Config as Stream, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType,
    Stream as Found,
};
use bytes::Bytes;
use outbox::wire;
pub use outbox::wire::PARTITIONS;
use outbox::wire::{StoredMessage, header};
use servers::nats_version;
use tracing::warn;

use super::{TailReader, direct_get};
use crate::config::{Config, Mode};
use crate::error::Error;

/// What set-up writes into the metadata of a stream that it makes: it may change that one later.
pub const MADE_BY: (&str, &str) = ("made-by", "tailpost setup");

/// What a finding is about that leaves keyed mode only.
const BATCHES: &str = "batches";

/// What a finding is about where events are stored under other subjects.
const TRANSFORM: &str = "transform";

/// The header of what a stream has from another one.
const SOURCE: &str = "Nats-Stream-Source";

/// What mends it where events are stored under other subjects.
pub const STORED_SUBJECTS: &str = "name the subjects under which events are stored in inbox.NAME.subjects, or remove what changes \
     them";

/// Something about a stream, with what mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about: one word for each kind.
    pub about: &'static str,
    /// Events would be lost, duplicated or reordered: the relay refuses to start.
    pub fatal: bool,
    /// What does not fit.
    pub reason: String,
    /// What mends it.
    pub fix: String,
}

/// Refuses a server that misreads headers: the one to which the client is connected. [`findings`] know
/// the stream's leader.
pub fn check_server(client: &Client) -> Result<(), Error> {
    let version = client.server_info().version;
    if !nats_version::misreads_headers(&version) {
        return Ok(());
    }
    Err(Error::Unusable {
        problem: format!(
            "nats-server {version} takes what an event says for headers of the broker"
        ),
        fix: nats_version::UPGRADE.into(),
    })
}

/// Refuses a server or a stream that would lose events, and warns of what weakens it. Says why fenced
/// mode cannot be had, if it is wanted and cannot.
pub(crate) async fn check(
    config: &Config,
    client: &Client,
    tail: &TailReader,
) -> Result<Option<String>, Error> {
    check_server(client)?;
    let info = tail.info().await?;
    let mut unfenced = None;
    let mut findings = findings(config, &info.config, &client.server_info().version);
    findings.extend(mapped(config, client, &info).await?);
    for finding in findings {
        let Finding { about, fatal, reason, fix } = finding;
        if fatal {
            return Err(Error::stream(&config.stream.name, &reason, fix));
        }
        match about {
            BATCHES => unfenced = Some(format!("{reason}: {fix}")),
            _ => warn!(stream = config.stream.name, fix, "{reason}"),
        }
    }
    Ok(unfenced)
}

/// Whether a relay that starts now refuses the stream.
pub(crate) fn is_refused(config: &Config, found: &Info, tail: &TailReader) -> bool {
    let version = tail.client.server_info().version;
    findings(config, &found.config, &version).iter().any(|it| it.fatal)
}

/// Whether set-up made the stream.
pub fn is_made_by_setup(stream: &Stream) -> bool {
    let (name, value) = MADE_BY;
    stream.metadata.get(name).is_some_and(|it| it == value)
}

/// Everything worth saying about the stream, on a server of this version.
pub fn findings(config: &Config, stream: &Stream, version: &str) -> Vec<Finding> {
    let finding = |fatal: bool| {
        move |(about, applies, reason, fix): Check| {
            applies.then_some(Finding { about, fatal, reason, fix })
        }
    };
    let fatal = [leader(stream, version)].into_iter().chain(losses(config, stream));
    let fatal = fatal.filter_map(finding(true));
    // Without ids nothing but the fence keeps events single.
    let batches = finding(config.needs_fence())(batches(config, stream, version));
    let weaknesses = weaknesses(config, stream).into_iter().filter_map(finding(false));
    fatal.chain(weaknesses).chain(batches).collect()
}

/// An account's mappings are seen by nothing but the place of an event: that of the stream's last one.
pub async fn mapped(
    config: &Config,
    client: &Client,
    stream: &Info,
) -> Result<Option<Finding>, Error> {
    let last = stream.state.last_sequence;
    if stream.config.subject_transform.is_some() || last == 0 {
        return Ok(None);
    }
    let answer = direct_get::read(client, &config.stream.name, last).await?;
    let Some(message) = answer.message()? else { return Ok(None) };
    Ok(displaced(config, &message).map(|(stored, wanted)| Finding {
        about: TRANSFORM,
        fatal: false,
        reason: format!(
            "its last event is stored under {stored}, and the relay publishes such events under \
             {wanted}: the account maps subjects, or relay.subject or the routes have changed since"
        ),
        fix: STORED_SUBJECTS.into(),
    }))
}

/// Where an event is stored, and where the relay publishes such events, if that is another subject. What
/// a replay or a source brought may be anywhere.
pub fn displaced(config: &Config, message: &StoredMessage<'_>) -> Option<(String, String)> {
    let headers = message.headers().to_text().unwrap_or_default();
    let is_copy = headers.iter().any(|it| [header::REPLAY, SOURCE].contains(&it.0));
    let event = wire::parse_event(headers, Bytes::new()).ok().filter(|_| !is_copy)?;
    let wanted = config.routing().subject(&event).ok()?;
    (wanted != message.subject).then(|| (message.subject.clone().into_owned(), wanted))
}

/// A leader that misreads headers.
fn leader(stream: &Stream, connected: &str) -> Check {
    let found = nats_version::misreading_leader(connected, &stream.metadata);
    let reason = format!(
        "its leader is {}, which takes what an event says for headers of the broker",
        found.as_deref().unwrap_or_default()
    );
    ("leader", found.is_some(), reason, nats_version::UPGRADE.into())
}

/// What fenced mode needs.
fn batches(config: &Config, stream: &Stream, version: &str) -> Check {
    let is_known = nats_version::takes_batches(version);
    let applies = config.mode == Mode::Fenced && !(is_known && stream.allow_batch_publish);
    let (lack, fix) = match is_known {
        false => (
            format!("nats-server {version} does not have them"),
            "upgrade nats-server to 2.14.1 or later, then run `tailpost setup`".into(),
        ),
        true => (
            "the stream does not allow them (allow_batched)".into(),
            match is_made_by_setup(stream) {
                true => "tailpost setup".into(),
                false => edit(config, "--allow-batch"),
            },
        ),
    };
    let reason = match config.needs_fence() {
        false => format!("fenced mode needs batches, and {lack}"),
        true => format!(
            "relay.mark = \"lean\" needs fenced mode and batches, which \"row\" does not, and {lack}"
        ),
    };
    (BATCHES, applies, reason, fix)
}

/// What it is about, whether it applies, what it is, what mends it.
pub type Check = (&'static str, bool, String, String);

/// What would lose, duplicate or reorder events.
fn losses(config: &Config, stream: &Stream) -> [Check; 10] {
    let name = &config.stream.name;
    let renamed = "set stream.name to a new stream and run `tailpost setup`";
    let anew = |what: &str| {
        format!(
            "{what} cannot be changed: `nats stream edit {name} --subjects 'retired.{name}'`, {renamed}"
        )
    };
    let removed = format!(
        "a seal cannot be removed: once `nats stream backup {name} ./{name}.backup` has ended well, \
         `nats stream rm {name}`, and `tailpost setup`; what consumers had not handled has to be \
         restored from the backup"
    );
    let fenced = config.mode == Mode::Fenced;
    let patterns = config.routing().patterns();
    let covered = |pattern: &&String| stream.subjects.iter().any(|it| covers(it, pattern));
    let uncovered: Vec<&str> =
        patterns.iter().filter(|it| !covered(it)).map(String::as_str).collect();
    [
        partitions(config, stream),
        (
            "storage",
            stream.storage == StorageType::Memory,
            "memory storage loses events with the server".into(),
            anew("storage"),
        ),
        (
            "acks",
            stream.no_ack,
            "no_ack: the broker would never say what it stored".into(),
            edit(config, "--ack"),
        ),
        ("seal", stream.sealed, "it is sealed and takes no more messages".into(), removed),
        ("mirror", stream.mirror.is_some(), "it is a mirror".into(), renamed.into()),
        (
            "counter",
            stream.allow_message_counter,
            "allow_msg_counter: it takes nothing but increments of counters".into(),
            anew("allow_msg_counter"),
        ),
        (
            "persistence",
            stream.persist_mode == Some(PersistenceMode::Async),
            "persist_mode async acknowledges before it writes".into(),
            anew("persist_mode"),
        ),
        (
            "subjects",
            !uncovered.is_empty(),
            format!(
                "it does not take all subjects of relay.subject and the routes: {} {} missing",
                uncovered.join(", "),
                if uncovered.len() == 1 { "is" } else { "are" }
            ),
            edit(config, &format!("--subjects '{}'", patterns.join(","))),
        ),
        retention(config, stream, &anew("retention")),
        (
            "sources",
            fenced && stream.sources.as_ref().is_some_and(|sources| !sources.is_empty()),
            "it has sources, and fenced mode needs a stream of its own".into(),
            "remove the sources, or set relay.mode = \"keyed\"".into(),
        ),
    ]
}

/// The broker changes it, except that of a queue, which has to be made `anew`.
fn retention(config: &Config, stream: &Stream, anew: &str) -> Check {
    (
        "retention",
        config.mode == Mode::Fenced && stream.retention != RetentionPolicy::Limits,
        "fenced mode reads the stream's end, which needs retention by limits".into(),
        match stream.retention {
            RetentionPolicy::WorkQueue => format!("{anew}; or set relay.mode = \"keyed\""),
            _ => edit(config, "--retention limits"),
        },
    )
}

/// Whether the stream's messages are divided as the configuration says.
fn partitions(config: &Config, stream: &Stream) -> Check {
    let name = &config.stream.name;
    let (wanted, recorded) = (config.partitions.to_string(), recorded_partitions(stream));
    let edit = format!("`nats stream edit {name} --metadata {PARTITIONS}={wanted}`");
    let other = format!("set relay.partitions = {recorded}, or stream.name to a new stream");
    let (divided, fix) = match stream.metadata.contains_key(PARTITIONS) {
        true => (
            format!("its messages are divided into {recorded}"),
            format!(
                "{other}. If it has no messages: `tailpost setup`, or, if that did not make it, {edit}"
            ),
        ),
        false => (
            "its metadata does not say how its messages are divided, which stands for 1".to_owned(),
            format!(
                "if they were divided into {wanted}, and the metadata was removed, or if there are \
                 none: {edit}. Otherwise {other}"
            ),
        ),
    };
    let reason = format!(
        "relay.partitions = {wanted}, and {divided}: events of an aggregate would be in two partitions"
    );
    (PARTITIONS, recorded != wanted, reason, fix)
}

/// How many partitions a stream has.
pub fn recorded_partitions(stream: &Stream) -> &str {
    stream.metadata.get(PARTITIONS).map_or("1", String::as_str)
}

/// What works, and could be better.
fn weaknesses(config: &Config, stream: &Stream) -> [Check; 7] {
    let window = config.stream.duplicate_window;
    let has_limit = stream.max_bytes > 0 || stream.max_messages > 0;
    let transform = stream.subject_transform.as_ref();
    let (source, destination) =
        transform.map_or(("", ""), |it| (it.source.as_str(), it.destination.as_str()));
    let is_changed = |it: &String| source.is_empty() || wire::subjects_overlap(source, it);
    [
        per_subject(stream),
        (
            "rollup",
            stream.allow_rollup,
            "allow_rollup_hdrs: one message of another writer may remove every event, read or not"
                .into(),
            edit(config, "--no-allow-rollup"),
        ),
        (
            "interest",
            stream.retention == RetentionPolicy::Interest,
            "retention by interest: events for which there is no consumer are removed at once"
                .into(),
            "create every consumer before the first event is published, or use retention by limits"
                .into(),
        ),
        (
            TRANSFORM,
            transform.is_some() && config.routing().patterns().iter().any(is_changed),
            format!(
                "its subject_transform stores {} as {destination}",
                if source.is_empty() { ">" } else { source }
            ),
            STORED_SUBJECTS.into(),
        ),
        (
            "replicas",
            stream.num_replicas < 3,
            "a single server keeps the stream: its disk is what your events depend on".into(),
            edit(config, "--replicas 3"),
        ),
        (
            "duplicate_window",
            stream.duplicate_window < window,
            format!("its duplicate window of {:?} is short", stream.duplicate_window),
            edit(config, &format!("--dupe-window {window:?}")),
        ),
        (
            "discard",
            stream.discard == DiscardPolicy::Old && has_limit,
            "at its limits it discards old events, read or not".into(),
            edit(config, "--discard new"),
        ),
    ]
}

/// Whether each subject has a limit.
pub fn per_subject(stream: &Stream) -> Check {
    let limit = stream.max_messages_per_subject;
    let then = match refuses_per_subject(stream) {
        true => "refuses more, and every later event waits",
        false => "removes older ones, read or not",
    };
    (
        "per-subject",
        limit > 0,
        format!("max_msgs_per_subject = {limit}: of each subject it {then}"),
        format!("nats stream edit {} --max-msgs-per-subject=-1", stream.name),
    )
}

/// What the stream does at its limit per subject: remove what is old, or refuse what is new.
pub fn refuses_per_subject(stream: &Stream) -> bool {
    stream.discard == DiscardPolicy::New && stream.discard_new_per_subject
}

fn edit(config: &Config, option: &str) -> String {
    format!("nats stream edit {} {option}", config.stream.name)
}

/// Whether every subject that `pattern` matches is matched by `subjects`.
fn covers(subjects: &str, pattern: &str) -> bool {
    // A pattern's `*` stands for any token: only a wildcard takes all of them.
    wire::subject_matches(subjects, pattern)
}

/// A stream; `None` if there is none of that name.
pub async fn find(client: &Client, name: &str) -> Result<Option<Found>, Error> {
    let error = match servers::jetstream_of(client).get_stream(name).await {
        Ok(stream) => return Ok(Some(stream)),
        Err(error) => error,
    };
    match error.kind() {
        GetStreamErrorKind::JetStream(it) if it.error_code() == ErrorCode::STREAM_NOT_FOUND => {
            Ok(None)
        }
        _ => Err(Error::jetstream("look at the stream")(error)),
    }
}

/// As [`find`], and [`Error::NotSetUp`] if there is none.
pub async fn look(client: &Client, name: &str) -> Result<Found, Error> {
    let missing = || Error::NotSetUp { missing: format!("stream \"{name}\"") };
    find(client, name).await?.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn a_stream_covers_a_pattern_only_as_a_whole() {
        assert!(covers("outbox.>", "outbox.*.*"));
        assert!(covers("outbox.*.*", "outbox.*.*"));
        assert!(covers(">", "outbox.*.*"));
        assert!(!covers("outbox.order.*", "outbox.*.*"));
        assert!(!covers("outbox.*", "outbox.*.*"));
        assert!(!covers("events.>", "outbox.*.*"));
    }
}
