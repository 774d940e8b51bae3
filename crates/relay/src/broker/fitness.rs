//! Whether a stream can be trusted with events.

use async_nats::Client;
use async_nats::jetstream::stream::{
    Config as Stream, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType,
};
use outbox::wire;
use tracing::warn;

use super::TailReader;
use crate::config::{Config, Mode};
use crate::error::Error;

/// The first server whose batches a relay may rely on (nats-server#8106 fixes a race on a change
/// of leader).
pub(crate) const BATCHES_SINCE: (i64, i64, i64) = (2, 14, 1);

/// Something about a stream, with what mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Events would be lost, duplicated or reordered: the relay refuses to start.
    pub(crate) fatal: bool,
    pub(crate) reason: String,
    pub(crate) fix: String,
}

/// Refuses a stream that would lose events, and warns of what weakens it.
pub(crate) async fn check(
    config: &Config,
    client: &Client,
    tail: &TailReader,
) -> Result<(), Error> {
    let info = tail.info().await?;
    for finding in findings(config, &info.config, batches(client)) {
        if finding.fatal {
            let stream = config.stream.name.clone();
            return Err(Error::Stream { stream, reason: finding.reason, fix: finding.fix });
        }
        warn!(stream = config.stream.name, fix = finding.fix, "{}", finding.reason);
    }
    Ok(())
}

/// Whether the server knows fast-ingest batches.
pub(crate) fn batches(client: &Client) -> bool {
    let (major, minor, patch) = BATCHES_SINCE;
    client.is_server_compatible(major, minor, patch)
}

/// Everything worth saying about the stream.
pub(crate) fn findings(config: &Config, stream: &Stream, batches: bool) -> Vec<Finding> {
    let name = &config.stream.name;
    let edit = |option: &str| format!("nats stream edit {name} {option}");
    let anew = |what: &str| {
        format!(
            "{what} cannot be changed: create another stream (stream.name) with `tailpost setup`"
        )
    };
    let fenced = config.mode == Mode::Fenced;
    let pattern = config.subject.pattern();
    let covered = stream.subjects.iter().any(|subjects| covers(subjects, &pattern));
    let has_limit =
        stream.max_bytes > 0 || stream.max_messages > 0 || stream.max_messages_per_subject > 0;
    let checks = [
        (
            stream.storage == StorageType::Memory,
            true,
            "memory storage loses events with the server".to_owned(),
            anew("storage"),
        ),
        (
            stream.no_ack,
            true,
            "no_ack: the broker would never say what it stored".to_owned(),
            edit("--ack"),
        ),
        (stream.sealed, true, "it is sealed and takes no more messages".to_owned(), anew("a seal")),
        (stream.mirror.is_some(), true, "it is a mirror".to_owned(), anew("a mirror's source")),
        (
            stream.persist_mode == Some(PersistenceMode::Async),
            true,
            "persist_mode async acknowledges before it writes".to_owned(),
            anew("persist_mode"),
        ),
        (
            !covered,
            true,
            format!("it does not take the subjects of relay.subject, which are {pattern}"),
            edit(&format!("--subjects '{pattern}'")),
        ),
        (
            fenced && stream.retention != RetentionPolicy::Limits,
            true,
            "fenced mode reads the stream's end, which needs retention by limits".to_owned(),
            format!("{}; or set relay.mode = \"keyed\"", anew("retention")),
        ),
        (
            fenced && stream.sources.as_ref().is_some_and(|sources| !sources.is_empty()),
            true,
            "it has sources, and fenced mode needs a stream of its own".to_owned(),
            "remove the sources, or set relay.mode = \"keyed\"".to_owned(),
        ),
        (
            stream.num_replicas < 3,
            false,
            "a single server keeps the stream: its disk is what your events depend on".to_owned(),
            edit("--replicas 3"),
        ),
        (
            stream.duplicate_window < config.stream.duplicate_window,
            false,
            format!("its duplicate window of {:?} is short", stream.duplicate_window),
            edit(&format!("--dupe-window {}s", config.stream.duplicate_window.as_secs())),
        ),
        (
            stream.discard == DiscardPolicy::Old && has_limit,
            false,
            "at its limits it discards old events, read or not".to_owned(),
            edit("--discard new"),
        ),
        (
            batches && !stream.allow_batch_publish,
            false,
            "it does not allow batched publishing, which this server offers".to_owned(),
            edit("--allow-batch"),
        ),
    ];
    let found = checks.into_iter().filter(|(applies, ..)| *applies);
    found.map(|(_, fatal, reason, fix)| Finding { fatal, reason, fix }).collect()
}

/// Whether every subject that `pattern` matches is matched by `subjects`.
fn covers(subjects: &str, pattern: &str) -> bool {
    // A pattern's `*` stands for any token: only a wildcard takes all of them.
    wire::subject_matches(subjects, pattern)
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
